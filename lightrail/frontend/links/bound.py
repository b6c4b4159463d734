"""The state of each link of a connection: the bound object of the link, and the terms of its attach."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lightrail.amqp.events import Resumed, SenderSettled
from lightrail.amqp.link import SETTLE_FIRST
from lightrail.amqp.values import Symbol
from lightrail.frontend.guard import Hold
from lightrail.model.links import Ending
from lightrail.wire.bodies import Refusal


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
    hold: Hold | None = None
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
