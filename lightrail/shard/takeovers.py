"""Takeovers: a client attaches a link that is still open elsewhere (transport 2.6.1).

The client may have settled deliveries on the former link, or closed its connection, and these frames may
still be in transit: frames of two frontends have no order here, and where the queue has just moved,
frames of a link that has not been opened here yet follow it from its former shard. So the new link waits,
and finds settled what its client had settled before:

    the former link is open      its frontend gets YIELD, and answers YIELDED behind all that it has sent
    its queue has moved here     until that link is opened here, which makes it the case above, or closed

It is opened without that after limits.YIELD_MS, as the former frontend may be lost.
"""

from typing import NamedTuple

from lightrail.model import limits
from lightrail.shard.awaited import AwaitedConsumer
from lightrail.shard.links import Links
from lightrail.shard.peers import Consumer, Peer
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import Kind, frame


class Opening(NamedTuple):
    """A CONSUMER_OPEN."""

    peer: Peer
    link: int
    epoch: int
    body: ConsumerOpen


class Takeover:
    """An opening that waits for the former link of its client."""

    __slots__ = ("credit", "former", "opening", "until_ms")

    def __init__(self, opening: Opening, former: Consumer | AwaitedConsumer, until_ms: int) -> None:
        self.opening = opening
        self.former = former
        self.until_ms = until_ms
        """When the link is opened without an answer; 0 after the answer."""
        self.credit: bytes | None = None
        """The latest CREDIT of the link."""


class Takeovers:
    """The openings that wait, by frontend and link."""

    __slots__ = ("_links", "_waiting")

    def __init__(self, links: Links) -> None:
        self._links = links
        self._waiting: dict[tuple[Peer, int], Takeover] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, opening: Opening, now_ms: int) -> bool:
        """Whether the opening has to wait; then `take_due` returns it later."""
        former = self._links.open_elsewhere(opening.peer, opening.link, opening.body)
        if former is None:
            return False
        takeover = Takeover(opening, former, now_ms + limits.YIELD_MS)
        self._waiting[opening.peer, opening.link] = takeover
        self._ask(former)
        return True

    def _ask(self, former: Consumer | AwaitedConsumer) -> None:
        if isinstance(former, Consumer):
            former.peer.out.append(frame(Kind.YIELD, link=former.link))

    def credit(self, peer: Peer, link: int, part: bytes) -> bool:
        """Keeps the CREDIT of a link until it is open; False where the link does not wait."""
        takeover = self._waiting.get((peer, link))
        if takeover is not None:
            takeover.credit = part
        return takeover is not None

    def drop(self, peer: Peer, link: int) -> bool:
        """The link is not opened any more; False where it does not wait."""
        return self._waiting.pop((peer, link), None) is not None

    def yielded(self, peer: Peer, link: int) -> None:
        """A frontend has answered for its link."""
        for takeover in self._waiting.values():
            former = takeover.former
            if isinstance(former, Consumer) and former.peer is peer and former.link == link:
                takeover.until_ms = 0

    def take_due(self, now_ms: int) -> list[Takeover]:
        """Takes out the openings that need not wait any more."""
        due = [key for key, takeover in self._waiting.items() if self._is_due(takeover, now_ms)]
        return [self._waiting.pop(key) for key in due]

    def _is_due(self, takeover: Takeover, now_ms: int) -> bool:
        if takeover.until_ms <= now_ms:
            return True
        peer, link, _, body = takeover.opening
        former = self._links.open_elsewhere(peer, link, body)
        if former is not None and former is not takeover.former:
            # It was opened here, behind its queue, or stolen by another one.
            takeover.former = former
            self._ask(former)
        return former is None
