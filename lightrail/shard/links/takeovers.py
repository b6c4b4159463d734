"""Takeovers: a client attaches a link that is still open elsewhere (transport 2.6.1).

The client may have settled deliveries on the former link, or closed it, or closed its connection, and
these frames may still be in transit: frames of two frontends have no order here, and where the queue has
just moved, frames of a link that has not been opened here yet follow it from its former shard. So the new
link waits, and finds settled or forgotten what its client had settled or closed before:

    the former link is open      its frontend gets YIELD, and answers YIELDED behind all that it has sent
    its queue has moved here     until that link is opened here, which makes it the case above, or closed

It is opened without that after YIELD_MS, as the former frontend may be lost.
"""

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.shard.effects.peers import Peer, Producer
from lightrail.shard.effects.receiving_link import ReceivingLink
from lightrail.shard.links.client_links import Opened
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen
from lightrail.wire.frames import Kind, Part, frame

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

YIELD_MS: Final[int] = 500
"""A link that its client attaches anew waits so long for the frontend that still has it open: outcomes of the
client may be on their way from there."""
TAKEOVERS_AT_ONCE: Final[int] = 500
"""Links that a shard opens in one turn in the place of former links of their clients: 10 to 20 ms."""

Name = tuple[str, str]
"""Queue, and digits of the client's link."""


class LinkOpening(NamedTuple):
    """A CONSUMER_OPEN or PRODUCER_OPEN."""

    peer: Peer
    link: int
    epoch: int
    body: ProducerOpen | ConsumerOpen
    next_number: int = 0
    """See Numbered."""


@dataclass(slots=True, eq=False, repr=False)
class Takeover:
    """An opening that waits for the former link of its client."""

    opening: LinkOpening
    former: Opened | ReceivingLink
    until_ms: int
    """When the link is opened without an answer."""
    credit: Part | None = None
    """The latest CREDIT of the link."""


class Takeovers:
    """The openings that wait, by frontend and link.

    Each event of a former link concerns only the openings of its name, so a mass takeover, as after the loss
    of a frontend, costs as much for each link as a single one.
    """

    __slots__ = ("_by_name", "_changed", "_links", "due", "waiting")

    def __init__(self, links: "Links") -> None:
        self._links = links
        self.waiting: dict[tuple[Peer, int], Takeover] = {}
        """In the order of their times."""
        self._by_name: dict[Name, dict[Takeover, None]] = {}
        self._changed: dict[Takeover, None] = {}
        """Those whose former link may have ended, or may be another one."""
        self.due: dict[Takeover, None] = {}
        """Those that need not wait any more."""
        links.client_links.listen(self._name_changed)

    def begin(self, opening: LinkOpening, now_ms: int) -> bool:
        """Whether the opening has to wait; then `take_due` returns it later."""
        peer, link, _, body, _ = opening
        former = self._links.open_elsewhere(peer, link, body)
        if former is None:
            return False
        self.drop(peer, link)
        takeover = Takeover(opening, former, now_ms + YIELD_MS)
        self._add(takeover)
        self._ask(takeover)
        return True

    def put_back(self, takeover: Takeover) -> None:
        """Lets an opening wait for the commit under way, which `take_due` has returned."""
        self._add(takeover)
        self._changed[takeover] = None

    def _add(self, takeover: Takeover) -> None:
        peer, link, _, body, _ = takeover.opening
        self.waiting[peer, link] = takeover
        self._by_name.setdefault((body.queue, body.client_link), {})[takeover] = None

    def _ask(self, takeover: Takeover) -> None:
        """Asks the frontend of the former link; one whose queue has moved here is looked at in each turn."""
        former = takeover.former
        if isinstance(former, ReceivingLink):
            self._changed[takeover] = None
        else:
            former.peer.out.append(frame(Kind.YIELD, link=former.link))

    def credit(self, peer: Peer, link: int, part: Part) -> bool:
        """Keeps the CREDIT of a link until it is open; False where the link does not wait."""
        takeover = self.waiting.get((peer, link))
        if takeover is not None:
            takeover.credit = part
        return takeover is not None

    def drop(self, peer: Peer, link: int) -> bool:
        """The link is not opened any more; False where it does not wait."""
        takeover = self.waiting.get((peer, link))
        if takeover is not None:
            self._remove(takeover)
        return takeover is not None

    def _remove(self, takeover: Takeover) -> None:
        peer, link, _, body, _ = takeover.opening
        del self.waiting[peer, link]
        name = (body.queue, body.client_link)
        del self._by_name[name][takeover]
        if not self._by_name[name]:
            del self._by_name[name]
        self._changed.pop(takeover, None)
        self.due.pop(takeover, None)

    def yielded(self, peer: Peer, link: int) -> None:
        """A frontend has answered for its link."""
        former = peer.consumers.get(link) or peer.producers.get(link)
        if former is None:
            return
        for takeover in self._by_name.get((former.queue.name, _client_link(former)), ()):
            if takeover.former is former:
                self.due[takeover] = None

    def _name_changed(self, queue: str, client_link: str) -> None:
        """A client's link was opened at a queue, or has ended there."""
        self._changed.update(self._by_name.get((queue, client_link), {}))

    def take_due(self, now_ms: int) -> list[Takeover]:
        """Takes out the openings that need not wait any more, no more than a turn has time for."""
        changed, self._changed = self._changed, {}
        for takeover in changed:
            self._look_again(takeover)
        for takeover in self.waiting.values():
            if takeover.until_ms > now_ms:
                break
            self.due[takeover] = None
        due = [*islice(self.due, TAKEOVERS_AT_ONCE)]
        for takeover in due:
            self._remove(takeover)
        return due

    def _look_again(self, takeover: Takeover) -> None:
        peer, link, _, body, _ = takeover.opening
        former = self._links.open_elsewhere(peer, link, body)
        if former is None:
            self.due[takeover] = None
        elif former is not takeover.former:
            # It was opened here, behind its queue, or stolen by another one.
            takeover.former = former
            self._ask(takeover)
        elif isinstance(former, ReceivingLink):
            self._changed[takeover] = None


def _client_link(former: Opened) -> str:
    if isinstance(former, Producer):
        return former.client_link
    return "" if former.opened is None else former.opened.client_link
