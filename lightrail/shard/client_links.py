"""Client links: which link of a frontend is open as a client's link, of which a queue has one (2.6.1).

A client's link is known by the digits in its opening (`client_link`): of its container-id, its name, its role
and its user. A second attach finds the first one here, whichever frontends the two came through. A link whose
opening has no digits shares its name with nobody, and is not here.
"""

from collections.abc import Callable

from lightrail.model import conditions
from lightrail.shard.awaited import AwaitedConsumer, AwaitedConsumers
from lightrail.shard.peers import Consumer, Peer, Producer
from lightrail.shard.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal

Opened = Producer | Consumer


class ClientLinks:
    """The clients' links that are open, by queue.

    Args:
        end: ends a link at its queue; whoever has it is notified here.
    """

    __slots__ = ("_awaited", "_by_queue", "_end")

    def __init__(self, awaited: AwaitedConsumers, end: Callable[[Opened, int], None]) -> None:
        self._awaited = awaited
        self._end = end
        self._by_queue: dict[Queue, dict[str, Opened]] = {}

    def open_elsewhere(
        self, queue: Queue, peer: Peer, link: int, opening: ConsumerOpen
    ) -> Consumer | AwaitedConsumer | None:
        """The consumer whose link ends when this opening claims it, and whose frames may come after it."""
        if not opening.steals or not opening.client_link:
            return None
        former = self._by_queue.get(queue, {}).get(opening.client_link)
        if former is None:
            return self._awaited.moved_here(queue, opening.client_link, (peer.boot, link))
        return former if isinstance(former, Consumer) and former.peer is not peer else None

    def claim(
        self, queue: Queue, peer: Peer, link: int, opening: ProducerOpen | ConsumerOpen, now_ms: int
    ) -> bool:
        """Ends the link that is open as the same client's link, where the client has attached it anew.

        Returns:
            False where the link that is opened ends instead: its client attached it before the other one,
            and it opens again as its shard was lost or its queue moved.
        """
        client_link = opening.client_link
        if not client_link:
            return True
        former = self._by_queue.get(queue, {}).get(client_link)
        if former is not None and (former.peer is not peer or former.link != link):
            stolen = Refusal(
                conditions.STOLEN, "the client attached a link of this name on another connection"
            )
            if not opening.steals:
                peer.end_link(link, stolen)
                return False
            self._end(former, now_ms)
            former.peer.end_link(former.link, stolen)
        if opening.steals and not (isinstance(opening, ConsumerOpen) and opening.recovers):
            self._awaited.release_client_link(queue, client_link, now_ms)
        return True

    def add(self, queue: Queue, client_link: str, opened: Opened) -> None:
        """The link is open from now on; a former one has ended."""
        if client_link:
            self._by_queue.setdefault(queue, {})[client_link] = opened

    def drop(self, queue: Queue, client_link: str, opened: Opened) -> None:
        """The link has ended; another one may be open in its place."""
        found = self._by_queue.get(queue) if client_link else None
        if found is not None and found.get(client_link) is opened:
            del found[client_link]
            if not found:
                del self._by_queue[queue]

    def forget(self, queue: Queue) -> None:
        """All links of a queue have ended, or open again elsewhere."""
        self._by_queue.pop(queue, None)
