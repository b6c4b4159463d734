"""Queue links: producers and consumers of one queue in this process, each with its assignment to a shard."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lightrail.shard_client.links import Consumer, Producer
from lightrail.shard_client.owners import assignments
from lightrail.shard_client.owners.assignments import AssignmentEvent, LinkState
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.wire.frames import Kind

OWNER_HELD_MAX: Final[int] = 100_000
"""Settlements and closes of one queue that wait for the shard that the queue moves to."""

log = logging.getLogger("lightrail.shard_client.owners.queue_links")

Assignment = assignments.Assignment[ShardPeer]
KEPT: Final = frozenset({int(Kind.SETTLE), int(Kind.CONSUMER_CLOSE)})
"""Kinds of frames that their links do not send again when they are reopened."""


@dataclass(slots=True, eq=False, repr=False)
class QueueLinks:
    """All links of one queue, by number."""

    producers: dict[int, Producer] = field(default_factory=dict)
    consumers: dict[int, Consumer] = field(default_factory=dict)
    _assignments: dict[int, Assignment] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Assignment:
        return self._assignments[number]

    def __iter__(self) -> Iterator[Assignment]:
        """A snapshot of the links in the order of their numbers.

        Producers of one client are opened in this order, and so are waiting consumers.
        """
        return iter([self._assignments[number] for number in sorted(self._assignments)])

    def __len__(self) -> int:
        return len(self._assignments)

    def get(self, number: int) -> Assignment | None:
        return self._assignments.get(number)

    def add_producer(self, producer: Producer) -> Assignment:
        self.producers[producer.number] = producer
        return self._add(producer.number)

    def add_consumer(self, consumer: Consumer) -> Assignment:
        self.consumers[consumer.number] = consumer
        return self._add(consumer.number)

    def _add(self, number: int) -> Assignment:
        link = self._assignments[number] = Assignment(number)
        return link

    def replace_consumer(self, consumer: Consumer) -> None:
        """Another object is the consumer of a link, unless the link has ended."""
        link = self._assignments.get(consumer.number)
        if link is not None:
            self.consumers[consumer.number] = consumer
            if link.peer is not None and consumer.number in link.peer.consumers:
                link.peer.consumers[consumer.number] = consumer

    def remove(self, number: int) -> bool:
        """Forgets a link; returns False if it is not known."""
        self.producers.pop(number, None)
        self.consumers.pop(number, None)
        return self._assignments.pop(number, None) is not None

    # --- queries ---------------------------------------------------------------------------------------

    def unassigned(self) -> list[Assignment]:
        return [link for link in self if link.state is LinkState.UNASSIGNED]

    def at_owner(self) -> list[Assignment]:
        return [link for link in self if link.is_at_owner]

    def behind(self, owner: ShardPeer | None) -> list[tuple[Assignment, ShardPeer]]:
        """Links that wait for an answer of a shard other than the owner's, with that shard."""
        behind = [(link, link.peer) for link in self if link.is_behind]
        return [(link, peer) for link, peer in behind if peer is not None and peer is not owner]

    def at(self, peer: ShardPeer) -> list[Assignment]:
        """Links that are open at one shard, whether the owner is there or has left it."""
        return [link for link in self if link.peer is peer]

    # --- at shards -------------------------------------------------------------------------------------

    def open(self, link: Assignment, peer: ShardPeer | None) -> None:
        """Opens an unassigned link at the owner's shard; without a shard it stays unassigned."""
        if peer is None:
            return
        link.assign(peer)
        if (producer := self.producers.get(link.number)) is not None:
            peer.open_producer(producer)
        else:
            peer.open_consumer(self.consumers[link.number])

    def open_unassigned(self, peer: ShardPeer | None) -> None:
        for link in self.unassigned():
            self.open(link, peer)

    def withdraw(self, link: Assignment, event: AssignmentEvent) -> None:
        """A link leaves its shard: further frames of the shard for the link are ignored."""
        if link.peer is not None:
            link.peer.producers.pop(link.number, None)
            link.peer.consumers.pop(link.number, None)
        link.apply(event)

    def withdraw_from(self, peer: ShardPeer | None, event: AssignmentEvent) -> None:
        """All links at one shard leave it."""
        if peer is not None:
            for link in self.at(peer):
                self.withdraw(link, event)

    def withdraw_all(self) -> list[Producer | Consumer]:
        """Every link leaves its shard without an answer; returns the links."""
        for link in self:
            if link.peer is not None:
                self.withdraw(link, AssignmentEvent.LOST)
        return [*self.producers.values(), *self.consumers.values()]

    # --- notices to links ------------------------------------------------------------------------------

    def disconnected(self) -> None:
        """See Producer."""
        for producer in list(self.producers.values()):
            producer.disconnected()

    def reconnected(self) -> None:
        """See Producer."""
        for producer in list(self.producers.values()):
            producer.reconnected()

    def timed_out(self) -> None:
        """See Producer."""
        for producer in list(self.producers.values()):
            producer.timed_out()


@dataclass(slots=True, eq=False, repr=False)
class HeldFrames:
    """Settlements and closes that wait for the shard that owns the queue; at most OWNER_HELD_MAX.

    Each once, in their order. The links do not send these frames again when they are reopened, so this is
    their only copy.
    """

    _queue: str
    _frames: dict[bytes, None] = field(default_factory=dict)
    _overflowed: bool = False
    """Whether a frame was dropped and this was logged."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, part: bytes) -> None:
        if len(self._frames) < OWNER_HELD_MAX:
            self._frames[part] = None
            self._overflowed = False
        elif not self._overflowed:
            # Logged once: the number of a client's settlements is not limited.
            self._overflowed = True
            log.error(
                "%d settlements wait for the shard of %s; further ones are dropped, and delivered again",
                OWNER_HELD_MAX,
                self._queue,
            )

    def clear(self) -> None:
        self._frames.clear()
