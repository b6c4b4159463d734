"""Management: names, policies, subscriptions and messages of a LightRail broker, over its node `$management`.

docs/operate/management.md describes the node, which follows the working draft of AMQP Management 1.0.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lightrail.client.errors import ClientError, LinkError, LostError, SendError
from lightrail.client.keeper import CAPABILITY
from lightrail.client.keywords import MessageId
from lightrail.client.link import Link
from lightrail.client.message import Message
from lightrail.client.outcomes import OutcomeKind

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.requests import Requester

RENEW_LOCKS: Final = "renew-locks"
TAGS_MAX: Final = 500
"""Deliveries that one request names."""
NOT_FOUND: Final = 404
NODE: Final = "$management"
QUEUE: Final = "lightrail.queue"
ROUTER: Final = "lightrail.router"
NAME: Final = "lightrail.name"
SUBSCRIPTION: Final = "lightrail.subscription"
DELAYED: Final = "delayed"
PEEK: Final = 100
PAGE: Final = 500
"""Entities in one answer to a query, at most."""


class ManagementError(ClientError):
    """The broker refused a request.

    Attributes:
        status: as of HTTP: 400 for an invalid request, 401 and 403 for a missing right, 404, 409 where the
            entity exists, 412 where it has another revision, 503 to try again.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Management:
    """Reads and changes entities of a broker. Opened by `Connection.management`."""

    def __init__(self, requester: "Requester") -> None:
        self._requester = requester

    async def __aenter__(self) -> "Management":
        await self._requester.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def opened(self) -> None:
        """Returns when requests can be sent. Raises LinkError if the broker has no such node."""
        await self._requester.opened()

    async def close(self) -> None:
        """Detaches; requests without an answer raise ClosedError."""
        await self._requester.close()

    async def create(
        self, type: str, name: str, attributes: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Creates an entity: `create(QUEUE, "orders", {"max_delivery_count": 5})`. Returns all attributes.

        Raises ManagementError; 409 if the entity exists.
        """
        return dict(await self._call("CREATE", type, name, attributes or {}))

    async def read(self, name: str, type: str = NAME) -> dict[str, Any]:
        """All attributes of an entity. Raises ManagementError; 404 for an unknown one."""
        return dict(await self._call("READ", type, name))

    async def update(
        self, name: str, attributes: Mapping[str, Any], *, type: str = NAME, revision: int | None = None
    ) -> dict[str, Any]:
        """Changes some attributes; None resets one to its default. Returns all of them.

        Args:
            revision: as read before; if the entity has another one now, the change fails with 412.
        """
        return dict(await self._call("UPDATE", type, name, attributes, _if_match(revision)))

    async def delete(self, name: str, *, type: str = NAME, revision: int | None = None) -> None:
        """Deletes an entity; a queue with its messages."""
        await self._call("DELETE", type, name, None, _if_match(revision))

    async def query(self, type: str = NAME, *attributes: str) -> AsyncIterator[dict[str, Any]]:
        """All entities of a type, with these attributes, or all of them."""
        offset = 0
        while True:
            fields = {"entityType": type, "offset": offset, "count": PAGE}
            found = await self._call("QUERY", None, None, {"attributeNames": list(attributes)}, fields)
            for result in found["results"]:
                yield dict(zip(found["attributeNames"], result, strict=True))
            if not found["results"]:
                return
            offset += len(found["results"])

    async def purge(self, queue: str) -> int:
        """Removes messages that no consumer has in flight; returns their number."""
        return int((await self._call("purge", QUEUE, queue))["purged"])

    async def peek(self, queue: str, *, start: int = 0, count: int = 20) -> list[tuple[int, str, Message]]:
        """Messages of a queue from a sequence on, without removing them: (sequence, state, message) each."""
        found = await self._call("peek", QUEUE, queue, None, {"from": start, "count": count})
        return [
            (int(each["sequence"]), str(each["state"]), Message.decode(bytes(each["message"])))
            for each in found["messages"]
        ]

    async def cancel_scheduled(self, queue: str, sequence: int) -> None:
        """Removes a scheduled message by its sequence."""
        await self._call("cancel-scheduled", QUEUE, queue, None, {"sequence": sequence})

    async def cancel(self, queue: str, id: MessageId) -> bool:
        """Removes a scheduled message by its id; returns whether there was one.

        It reads the messages of the queue until it finds the id; `cancel_scheduled` reads none.
        """
        start = 0
        while found := await self.peek(queue, start=start, count=PEEK):
            for sequence, state, message in found:
                if state == DELAYED and message.id == id:
                    await self.cancel_scheduled(queue, sequence)
                    return True
            start = found[-1][0] + 1
        return False

    async def subscriptions(self, router: str) -> list[dict[str, Any]]:
        """Subscriptions of a router, each with `id`, `target` and `filter` among its attributes."""
        prefix = f"{router}//"
        return [each async for each in self.query(SUBSCRIPTION) if str(each["name"]).startswith(prefix)]

    async def dead_letters(
        self, queue: str, *, start: int = 0, count: int = 20
    ) -> list[tuple[int, str, Message]]:
        """Messages of `QUEUE/$dlq` as of `peek`; their annotations x-opt-dead-letter-* have the reasons.

        `QUEUE/$dlq` is a queue: receive from it to send a message again.
        """
        return await self.peek(f"{queue}/$dlq", start=start, count=count)

    async def _call(
        self,
        operation: str,
        type: str | None,
        name: str | None,
        body: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Any:
        fields: dict[str, Any] = {"operation": operation} | dict(properties or {})
        if type is not None:
            fields["type"] = type
        if name is not None:
            fields["name"] = name
        request = Message(dict(body) if body is not None else None, properties=fields, durable=False)
        answer = await self._requester.request(request)
        status = int(answer.properties.get("statusCode", 0))
        if not 200 <= status < 300:
            reason = answer.properties.get("statusDescription") or "no reason was given"
            raise ManagementError(f"{operation} of {name or type or NODE}: {reason} ({status})", status)
        return answer.body


def _if_match(revision: int | None) -> dict[str, Any]:
    return {} if revision is None else {"if-match": revision}


class Locks:
    """Renews locks of the deliveries of one connection; opens its links when they are first needed.

    A request names the link and the delivery-tags (docs/operate/management.md, Locks). A receiver of the same
    connection receives the answer, without a queue.
    """

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
                answer = await management._call(RENEW_LOCKS, None, None, body, {"link": receiver.name})
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
