"""Client links: the frontend's link that is open for each link of a client, at most one (2.6.1).

A client's link is identified by a digest in its opening (`client_link`) of its container-id, name, role and
user. So a second attach finds the first one, also through another frontend. A link whose opening has no
digest, as its client does not ask that it outlives its connection, is not listed here.
"""

import logging
from collections.abc import Callable
from typing import Final

from lightrail.model import conditions
from lightrail.shard.effects.peers import Consumer, Peer, Producer
from lightrail.shard.links.awaited import AwaitedConsumer, AwaitedConsumers
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal

log = logging.getLogger("lightrail.shard.links.client_links")

Opened = Producer | Consumer


STOLEN: Final = (
    "a link of this name, which is to outlive its connection, was attached on another connection of the same"
    " container and user; if these are two processes, give each of them a container-id of its own"
)


class ClientLinks:
    """The clients' links that are open, by queue.

    Args:
        end: ends a link at its queue, which its client resumes or not, at a time; this class notifies the
            frontend of the link.
    """

    __slots__ = ("_awaited", "_by_queue", "_changed", "_counts", "_end")

    def __init__(
        self, awaited: AwaitedConsumers, end: Callable[[Opened, bool, int], None], counts: ShardCounts
    ) -> None:
        self._counts = counts
        self._awaited = awaited
        self._end = end
        self._by_queue: dict[Queue, dict[str, Opened]] = {}
        self._changed: Callable[[str, str], None] = lambda _queue, _client_link: None

    def listen(self, changed: Callable[[str, str], None]) -> None:
        """Calls `changed` with the queue and the digits of each link that is opened here or ends."""
        self._changed = changed

    def open_elsewhere(
        self, queue: Queue, peer: Peer, link: int, opening: ProducerOpen | ConsumerOpen
    ) -> Opened | AwaitedConsumer | None:
        """The link that this opening will end, and whose frames may arrive after the opening."""
        if not opening.steals or not opening.client_link:
            return None
        former = self._by_queue.get(queue, {}).get(opening.client_link)
        if former is not None:
            return None if former.peer is peer else former
        if isinstance(opening, ProducerOpen):
            return None
        return self._awaited.moved_here(queue, opening.client_link, (peer.boot, link))

    def claim(
        self, queue: Queue, peer: Peer, link: int, opening: ProducerOpen | ConsumerOpen, now_ms: int
    ) -> bool:
        """Ends the open link of the same client's link, if the client has attached it again.

        Returns:
            False if the link that is being opened must end instead: it is the older attach, and is opened
            again only because its shard was lost or its queue moved.
        """
        client_link = opening.client_link
        if not client_link:
            return True
        recovers = isinstance(opening, ConsumerOpen) and opening.recovers
        former = self._by_queue.get(queue, {}).get(client_link)
        if former is not None and (former.peer is not peer or former.link != link):
            self._counts.links_stolen += 1
            log.info(
                "link %s at queue %s was attached on another connection of its container",
                opening.label or "without a label",
                queue.name,
            )
            stolen = Refusal(conditions.STOLEN, STOLEN)
            if not opening.steals:
                peer.end_link(link, stolen)
                return False
            self._end(former, recovers, now_ms)
            former.peer.end_link(former.link, stolen)
        if opening.steals and not recovers:
            self._awaited.release_client_link(queue, client_link, now_ms, is_given_up=True)
        return True

    def add(self, queue: Queue, client_link: str, opened: Opened) -> None:
        """Adds an open link; a former one has ended."""
        if client_link:
            self._by_queue.setdefault(queue, {})[client_link] = opened
            self._changed(queue.name, client_link)

    def drop(self, queue: Queue, client_link: str, opened: Opened) -> None:
        """Removes an ended link; another one may be open in its place."""
        found = self._by_queue.get(queue) if client_link else None
        if found is not None and found.get(client_link) is opened:
            del found[client_link]
            if not found:
                del self._by_queue[queue]
            self._changed(queue.name, client_link)

    def forget(self, queue: Queue) -> None:
        """Removes all links of a queue, which have ended or open at another shard."""
        for client_link in self._by_queue.pop(queue, ()):
            self._changed(queue.name, client_link)
