"""Renewal of the locks of deliveries, in queues whose locks expire.

A request to `$management` names the link and the delivery-tags (docs/operate/management.md, Locks). A
receiver of the same connection receives the answer, without a queue.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lightrail.client.errors import ClientError, LinkError, LostError, SendError
from lightrail.client.keeper import CAPABILITY
from lightrail.client.link import Link
from lightrail.client.management import NODE, Management, ManagementError
from lightrail.client.outcomes import OutcomeKind

if TYPE_CHECKING:
    from lightrail.client.connection import Connection

OPERATION: Final = "renew-locks"
TAGS_MAX: Final = 500
"""Deliveries that one request names."""
NOT_FOUND: Final = 404


class Locks:
    """Renews locks of one connection; opens its links when they are first needed."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._management: Management | None = None

    async def renew(self, receiver: Link, tags: Sequence[bytes]) -> list[float | None]:
        """Seconds for which each delivery is locked from now on: None for no end, 0 for an expired lock.

        Raises:
            ClientError: the broker does not renew locks.
            LostError: the link is not attached any more, or the connection was lost before the answer.
            ManagementError: nothing was renewed; 503: try again.
        """
        connection = self._connection
        if not connection.offers(CAPABILITY):
            if not connection.connected:
                raise LostError(
                    f"{receiver.address}: the connection is lost, and its messages are delivered again"
                )
            raise ClientError(
                f"{receiver.address}: expected a broker that renews locks ({CAPABILITY}), and "
                f"{connection.product or 'this one'} does not: settle messages before their locks expire"
            )
        management = self._management
        if management is None:
            management = self._management = Management(connection.node(NODE))
        locked: list[float | None] = []
        try:
            await management.opened()
            for first in range(0, len(tags), TAGS_MAX):
                body = {"delivery_tags": list(tags[first : first + TAGS_MAX])}
                answer = await management._call(OPERATION, None, None, body, {"link": receiver.name})
                locked += [None if each is None else int(each) / 1000 for each in answer["locked_ms"]]
        except ManagementError as error:
            if error.status == NOT_FOUND:
                raise LostError(
                    f"{receiver.address}: the link was lost, and its messages are delivered again"
                ) from error
            raise
        except SendError as error:
            if error.outcome.kind is not OutcomeKind.UNKNOWN:
                raise
            raise LostError(
                f"{receiver.address}: the connection was lost, and its messages are delivered again"
            ) from error
        except LinkError:
            # The broker refused a link; the next call opens new ones.
            if self._management is management:
                self._management = None
                await management.close()
            raise
        return locked
