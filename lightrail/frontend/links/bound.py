"""What a connection keeps of each of its links: the object behind the link, and the terms of its attach."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lightrail.amqp.events import Resumed, SenderSettled
from lightrail.amqp.link import SETTLE_FIRST
from lightrail.amqp.values import Symbol
from lightrail.frontend.guard import Hold
from lightrail.wire.bodies import Refusal


class Bound:
    """The object behind a client's link, which is the link's `context`.

    Besides the calls below it has those for the events of its role: `transfers`, or `credit` and `outcome`.
    """

    __slots__ = ()

    def close(self) -> None:
        """The client's link has ended."""
        raise NotImplementedError

    def writable(self) -> None:
        """The socket or the session window has room again, or the client has settled."""

    def narrow(self) -> None:
        """Less may be sent ahead from now on."""

    def closed_for_good(self) -> None:
        """Before `close`: the client has closed the link, and will not resume it."""

    def resumed(self, event: Resumed) -> None:
        """The client has resumed a delivery of a former attach."""

    def sender_settled(self, event: SenderSettled) -> None:
        """The client has settled deliveries that it sent."""

    def delivered(self) -> int:
        """Messages that the link was sent from a queue, over its life."""
        return 0

    def relieved(self) -> None:
        """The connection's messages are no longer refused."""


@dataclass(slots=True)
class Terms:
    """What a link's attach is answered with, and what ends with the link."""

    owner: str
    """Owner id of names that are deleted with the link."""
    offered: list[Symbol] = field(default_factory=list)
    """Capabilities that the answer offers."""
    filter: dict[Symbol, Any] | None = None
    """The part of the source's filter that is applied; the answer lists it (messaging 3.5.3)."""
    hold: Hold | None = None
    outlives: bool = False
    """The terminus stays when the link has ended: a durable subscription."""
    rcv_settle_mode: int = SETTLE_FIRST
    """Of a link on which the client sends."""
    suspended_s: int = 0
    """How long what is unsettled is kept after the link's end."""
    unsettled: dict[bytes, Any] | None = None
    """Deliveries of a former attach that are kept, and their states."""
    at_close: Callable[[], Awaitable[Refusal | None]] | None = None
    """Done when the client closes the link for good (detach with closed), which is answered afterwards, with
    the error that this returns. Has to be set before the link is bound."""
