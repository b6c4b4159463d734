"""Consumers: who gets the next slice, by priority and then in turn."""

from collections import deque
from collections.abc import Iterator

from lightrail.model import conditions
from lightrail.shard.queue.commands import ConsumerOptions
from lightrail.shard.queue.effects import Refused
from lightrail.shard.queue.in_flight import InFlight


class Ring:
    """Consumers of one priority that have credit, the next one first."""

    __slots__ = ("members", "priority", "turn")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members = 0
        """Consumers of this priority, with credit or without."""
        self.turn: deque[Consumer] = deque()


class Consumer:
    """One receiving link: its credit as an absolute limit, and what it has not settled."""

    __slots__ = ("cursor", "draining", "id", "in_flight", "limit", "next", "options", "ring", "waits")

    def __init__(self, identity: int, options: ConsumerOptions, ring: Ring | None) -> None:
        self.id = identity
        self.options = options
        self.ring = ring
        """None for a browser, which competes with nobody."""
        self.limit = options.first
        """It may be sent the delivery numbers below."""
        self.next = options.first
        """The next delivery number."""
        self.draining = False
        self.waits = False
        """Whether it stands in the ring of its priority: it has credit and competes."""
        self.cursor = 0
        """Nothing below this sequence is for it: what a browser has seen, what others are barred from."""
        self.in_flight = InFlight()


class Consumers:
    """All consumers of a queue, in the order they came, and the rings of those that wait."""

    __slots__ = ("browsers", "by_id", "competing", "draining", "exclusive", "passed_over", "rings")

    def __init__(self) -> None:
        self.by_id: dict[int, Consumer] = {}
        self.browsers: list[Consumer] = []
        self.competing = 0
        self.exclusive = False
        self.rings: list[Ring] = []
        """Highest priority first; one ring for nearly every queue."""
        self.draining: list[Consumer] = []
        self.passed_over = False
        """Whether a consumer that competes has a cursor above 0."""

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self.by_id.values())

    def attach(self, identity: int, options: ConsumerOptions) -> Refused | None:
        """Takes a consumer in, or says why not."""
        if identity in self.by_id:
            return Refused(
                identity,
                conditions.ILLEGAL_STATE,
                f"expected a consumer that is new, found number {identity} attached already",
            )
        if options.browse:
            consumer = Consumer(identity, options, None)
            self.browsers.append(consumer)
        else:
            if self.exclusive or (options.exclusive and self.competing):
                return Refused(
                    identity,
                    conditions.RESOURCE_LOCKED,
                    "the queue has an exclusive consumer"
                    if self.exclusive
                    else "an exclusive consumer was asked for, but the queue has consumers already",
                )
            self.exclusive = options.exclusive
            self.competing += 1
            ring = self._ring(options.priority)
            ring.members += 1
            consumer = Consumer(identity, options, ring)
        self.by_id[identity] = consumer
        return None

    def detach(self, identity: int) -> Consumer | None:
        """Lets a consumer go; what it had in flight is the caller's to settle."""
        consumer = self.by_id.pop(identity, None)
        if consumer is None:
            return None
        if consumer.draining:
            self.draining.remove(consumer)
        ring = consumer.ring
        if ring is None:
            self.browsers.remove(consumer)
            return consumer
        self.competing -= 1
        self.exclusive = False
        if consumer.waits:
            ring.turn.remove(consumer)
            consumer.waits = False
        ring.members -= 1
        if not ring.members:
            self.rings.remove(ring)
        return consumer

    def credit(self, consumer: Consumer, limit: int, drain: bool) -> None:
        """Sets the limit; one below what was sent already takes the credit away."""
        consumer.limit = limit if limit > consumer.next else consumer.next
        if drain != consumer.draining:
            consumer.draining = drain
            if drain:
                self.draining.append(consumer)
            else:
                self.draining.remove(consumer)
        ring = consumer.ring
        if ring is None:
            return
        if consumer.waits:
            if consumer.limit == consumer.next:
                ring.turn.remove(consumer)
                consumer.waits = False
        elif consumer.limit > consumer.next:
            ring.turn.append(consumer)
            consumer.waits = True

    def look_again(self, sequence: int) -> None:
        """Something came back: cursors of consumers that compete may not stand behind it."""
        self.passed_over = False
        for consumer in self.by_id.values():
            if consumer.ring is not None and consumer.cursor:
                consumer.cursor = min(consumer.cursor, sequence)
                self.passed_over = self.passed_over or consumer.cursor > 0

    def _ring(self, priority: int) -> Ring:
        for ring in self.rings:
            if ring.priority == priority:
                return ring
        ring = Ring(priority)
        self.rings.append(ring)
        self.rings.sort(key=lambda each: -each.priority)
        return ring
