"""What each link of a client is in this process: its bound object, and the terms of its attach.

An `Attach` is a link whose attach is not answered yet, with the record of its name. From the answer on the
link is `Bound` to what it sends to or receives from: a `RequestingLink` to a node that answers requests.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightrail.amqp.events import Resumed, SenderSettled, Transfers
from lightrail.amqp.link import ATTACHING, SETTLE_FIRST, Link
from lightrail.amqp.values import Symbol
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions
from lightrail.model.links import Ending
from lightrail.namespace.records import Name, Right
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.frontend.guard import Hold
    from lightrail.frontend.transactions.transaction import Transaction
    from lightrail.shard_client.owners.owner import Owner


class Bound:
    """The object of a client's link, which is the link's `context`.

    It also has methods for the events of its role: `transfers`, or `credit` and `outcome`.
    """

    __slots__ = ()

    def close(self) -> None:
        """The client's link has ended."""
        raise NotImplementedError

    def ends(self, ending: Ending) -> None:
        """Called before `close` with the way in which the link ends, unless the broker ends it."""

    def writable(self) -> None:
        """The socket or the session window has room again, or the client has settled."""

    def exceeds_share(self) -> bool:
        """Whether the link waits for settlements while its connection has too much unsettled."""
        return False

    def narrow(self) -> None:
        """Fewer messages may be sent ahead from now on."""

    def when_released(self, call: Callable[[], None]) -> None:
        """Calls it after `close`, when no transaction holds deliveries of the link any more."""
        call()

    def closed_for_good(self) -> None:
        """Called before `close` if the client has closed the link, and will not resume it."""

    def resumed(self, event: Resumed) -> None:
        """The client has resumed a delivery of a former attach."""

    def sender_settled(self, event: SenderSettled) -> None:
        """The client has settled deliveries that it sent."""

    def delivered(self) -> int:
        """Messages that were sent from a queue over this link."""
        return 0

    def relieved(self) -> None:
        """The connection's messages are no longer refused."""


@dataclass(slots=True)
class Terms:
    """Fields of the answer to a link's attach, and the state that ends with the link."""

    owner: str
    """Owner id of names that are deleted with the link."""
    again: Callable[[], None] | None = None
    """Attaches the link again if its name is deleted before its attach is answered."""
    offered: list[Symbol] = field(default_factory=list)
    """Capabilities that the answer offers."""
    filter: dict[Symbol, Any] | None = None
    """The part of the source's filter that is applied; the answer lists it (messaging 3.5.3)."""
    properties: dict[Symbol, Any] | None = None
    """Properties of the answer to the attach of a link on which the client receives."""
    hold: "Hold | None" = None
    outlives: bool = False
    """Whether the terminus stays when the link has ended: a durable subscription."""
    rcv_settle_mode: int = SETTLE_FIRST
    """The mode of a link on which the client sends, in the answer to its attach."""
    suspended_s: int = 0
    """How long unsettled deliveries are kept after the end of the link."""
    durability: int = 0
    """How much of that is stored durably (model/links.py)."""
    unsettled: dict[bytes, Any] | None = None
    """Deliveries of a former attach that are kept, and their states."""
    at_close: Callable[[], Awaitable[Refusal | None]] | None = None
    """Executed when the client closes the link for good (detach with closed); the detach is answered after
    that, with the error that this returns. It has to be set before the link is bound."""


def right_of(link: Link) -> Right:
    """The right that a link needs at its name; the broker's role is the opposite of the client's."""
    return Right.LISTEN if link.is_sender else Right.SEND


@dataclass(slots=True)
class Attach:
    """One attach whose rights have been checked."""

    connection: "ClientConnection"
    link: Link
    record: Name
    number: int
    """Number of the link, unique in the lifetime of this process."""
    terms: Terms

    @property
    def frontend(self) -> "Frontend":
        return self.connection.frontend

    @property
    def open(self) -> bool:
        """Whether the client still waits for the answer."""
        return self.connection.is_open and self.link.state == ATTACHING

    def bind(self, bound: Bound) -> None:
        """Sets the object of the link; the guard watches the link's name."""
        link, connection = self.link, self.connection
        link.context = bound
        link.answers_close = self.terms.at_close is not None
        self.terms.hold = self.frontend.guard.hold(
            connection.client,
            right_of(link),
            self.record,
            lambda condition, description: connection.links.detach(link, condition, description),
        )
        connection.links.bind(bound, self.terms)

    async def place(self) -> "Owner | None":
        """The owner of the name, for a link that is opened before the loop turns.

        None if the client has disconnected in the meantime.

        Raises:
            ConditionError: the name was deleted in the meantime, or the right to it removed.
        """
        name = self.record.name
        found = await self.frontend.place(name)
        current = self.frontend.directory.get(name)
        if current.created != self.record.created or current.role is not self.record.role:
            self.frontend.forget_route(name)
            raise ConditionError(conditions.RESOURCE_DELETED, f"{name} was just deleted; attach again")
        guard, right = self.frontend.guard, right_of(self.link)
        guard.demand(self.connection.client, right, current)
        guard.demand_open(right, current)
        return found if self.open else None


class RequestingLink(Bound):
    """The object of a link on which the client sends requests."""

    __slots__ = ()

    @property
    def is_transactional(self) -> bool:
        """Whether requests may be part of a transaction."""
        raise NotImplementedError

    def transacted(self, event: Transfers, transaction: "Transaction") -> None:
        """The client sends requests that are part of a transaction."""
        raise NotImplementedError
