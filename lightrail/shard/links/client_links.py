"""Client links: the link at this shard of each link of a client, at most one (2.6.1).

A client's link is identified by a digest in its opening (`client_link`) of its container-id, name, role and
user. So a second attach finds the first one, also through another frontend. A link whose opening has no
digest, as its client does not ask that it outlives its connection, is not listed here.
"""

from collections.abc import Callable
from typing import Final

from lightrail.shard.effects.peers import Consumer, Peer, Producer
from lightrail.shard.effects.receiving_link import ReceivingLink
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen

ClientLink = Producer | ReceivingLink
Opened = Producer | Consumer
"""A link that a frontend has open."""

STOLEN: Final = (
    "a link of this name, which is to outlive its connection, was attached on another connection of the same"
    " container and user; if these are two processes, give each of them a container-id of its own"
)


class ClientLinks:
    """The clients' links by queue: open ones, and receiving links that a frontend may take over."""

    __slots__ = ("_by_queue", "_changed")

    def __init__(self) -> None:
        self._by_queue: dict[Queue, dict[str, ClientLink]] = {}
        self._changed: Callable[[str, str], None] = lambda _queue, _client_link: None

    def listen(self, changed: Callable[[str, str], None]) -> None:
        """Calls `changed` with the queue and the digits of each link that is opened here, waits or ends."""
        self._changed = changed

    def get(self, queue: Queue, client_link: str) -> ClientLink | None:
        """The link of these digits."""
        return self._by_queue.get(queue, {}).get(client_link)

    def opened(self, queue: Queue, client_link: str) -> Opened | None:
        """The frontend's link of these digits, if one is open."""
        found = self.get(queue, client_link)
        return found.consumer if isinstance(found, ReceivingLink) else found

    def open_elsewhere(
        self, queue: Queue, peer: Peer, link: int, opening: ProducerOpen | ConsumerOpen
    ) -> Opened | ReceivingLink | None:
        """The link that this opening will end, and whose frames may arrive after the opening: an open one, or
        one whose queue moved here, and that is to be opened or closed here.
        """
        if not opening.steals or not opening.client_link:
            return None
        former = self.opened(queue, opening.client_link)
        if former is not None:
            return None if former.peer is peer else former
        found = self.get(queue, opening.client_link)
        if not isinstance(found, ReceivingLink) or not found.is_waiting or found.has_ended:
            return None
        return None if found.key == (peer.boot, link) else found

    def add(self, queue: Queue, client_link: str, link: ClientLink) -> None:
        """Notes that a link is opened, or waits for a frontend; a former one has ended."""
        if client_link:
            self._by_queue.setdefault(queue, {})[client_link] = link
            self._changed(queue.name, client_link)

    def drop(self, queue: Queue, client_link: str, link: ClientLink) -> None:
        """Removes an ended link; another one may be in its place."""
        found = self._by_queue.get(queue) if client_link else None
        if found is not None and found.get(client_link) is link:
            del found[client_link]
            if not found:
                del self._by_queue[queue]
            self._changed(queue.name, client_link)

    def forget(self, queue: Queue) -> None:
        """Removes all links of a queue, which have ended or open at another shard."""
        for client_link in self._by_queue.pop(queue, ()):
            self._changed(queue.name, client_link)
