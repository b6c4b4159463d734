"""Batches that wait for room, in the order in which they arrived: parked for one queue, held for several.

A full queue whose policy lets senders wait delays the links that send to it and no others: later batches of
such a link wait as well and are not answered, and the sender runs out of credit. A routed batch that is
larger than one of its queues waits until that queue is empty, and is then accepted partially.
"""

from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from lightrail.shard.effects.peers import Producer, RouteProducer
from lightrail.shard.links.ingress.selection import fitting
from lightrail.shard.queue.values.policy import FLOW_CONTROL, Policy
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.frames import Part


def waits_until(policy: Policy, now_ms: int) -> int | None:
    """Until when a batch that arrives now waits for room; None for ever."""
    if policy.enqueue_timeout_ms is not None:
        return now_ms + policy.enqueue_timeout_ms
    return None if policy.overflow == FLOW_CONTROL else now_ms


@dataclass(slots=True, eq=False, repr=False)
class Parked:
    """A batch that waits; its first `done` messages are in the queue already, or were refused."""

    producer: Producer
    number: int
    batch: Batch
    done: int
    until_ms: int | None
    """Time at which the overflow of the policy is applied to the rest; None for never."""
    _: KW_ONLY
    whole: bool = False
    """Whether the batch is stored whole or not at all."""

    def waits(self, now_ms: int) -> bool:
        """Whether the batch may wait longer."""
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(slots=True, eq=False, repr=False)
class Parking:
    """The batches that wait for each queue; `Queue.parked` has the same ones."""

    _memory: Memory
    _by_queue: dict[Queue, deque[Parked]] = field(default_factory=dict)

    def park(self, queue: Queue, entry: Parked) -> None:
        """Parks a batch behind those that were received before."""
        self._of(queue).append(entry)
        self._memory.park(entry.batch.size)

    def first(self, queue: Queue) -> Parked | None:
        """The batch that has waited longest, or None."""
        waiting = self._by_queue.get(queue)
        return waiting[0] if waiting else None

    def begin(self, queue: Queue) -> Parked:
        """Removes the first batch to admit it; `put_back` or `end` must follow."""
        waiting = self._by_queue[queue]
        entry = waiting.popleft()
        self._forget_empty(queue)
        return entry

    def put_back(self, queue: Queue, entry: Parked) -> None:
        """Puts the batch back as the first one."""
        self._of(queue).appendleft(entry)

    def end(self, entry: Parked) -> None:
        """Ends the wait of a batch."""
        self._memory.park(-entry.batch.size)

    def remove(self, producer: Producer) -> list[Parked]:
        """Removes and returns the batches of one producer, in order."""
        waiting = self._by_queue.get(producer.queue)
        if not waiting:
            return []
        found = [entry for entry in waiting if entry.producer is producer]
        for entry in found:
            waiting.remove(entry)
            self.end(entry)
        self._forget_empty(producer.queue)
        return found

    def _of(self, queue: Queue) -> deque[Parked]:
        waiting = self._by_queue.get(queue)
        if waiting is None:
            queue.parked = waiting = self._by_queue[queue] = deque()
        return waiting

    def _forget_empty(self, queue: Queue) -> None:
        if not self._by_queue[queue]:
            del self._by_queue[queue]
            queue.parked = None


class Wait(NamedTuple):
    """The wait of a batch: its latest end in milliseconds since 1970, or None for no limit."""

    until_ms: int | None


class HeldRoute(NamedTuple):
    """A ROUTE frame that waits."""

    part: Part
    wait: Wait | None
    """None for a frame that waits only because another one is before it."""


def wait_of(targets: list[Queue], batch: Batch, now_ms: int, memory: Memory) -> Wait | None:
    """Whether a batch should wait for room in one of its queues."""
    untils: list[int | None] = []
    for queue in targets:
        if memory.must_wait(queue):
            untils.append(None)
            continue
        until_ms = waits_until(queue.view.policy, now_ms)
        if until_ms is not None and until_ms <= now_ms:
            continue
        if queue.held and fitting(queue, batch, now_ms)[0] < batch.count:
            untils.append(until_ms)
    if not untils:
        return None
    return Wait(min((until for until in untils if until is not None), default=None))


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """The lines of frames that wait, by sending link; their bytes count as those of parked batches."""

    _memory: Memory
    lines: dict[RouteProducer, deque[HeldRoute]] = field(default_factory=dict)

    def add(self, producer: RouteProducer, part: Part, wait: Wait | None) -> bool:
        """Adds a frame at the end of its line; False if too many bytes wait already."""
        memory = self._memory
        if memory.parked + len(part) > memory.parked_max:
            return False
        memory.park(len(part))
        self.lines.setdefault(producer, deque()).append(HeldRoute(part, wait))
        return True

    def begin(self, producer: RouteProducer, wait: Wait) -> None:
        """Begins the time of the head of a line, which waits for room itself."""
        line = self.lines[producer]
        line[0] = HeldRoute(line[0].part, wait)

    def take(self, producer: RouteProducer) -> None:
        """Removes the head of a line."""
        line = self.lines[producer]
        self._memory.park(-len(line.popleft().part))
        if not line:
            del self.lines[producer]

    def drop(self, producer: RouteProducer) -> list[HeldRoute]:
        """Removes a whole line because its link is closed, or a batch before it was refused."""
        line = list(self.lines.pop(producer, ()))
        self._memory.park(-sum(len(held.part) for held in line))
        return line

    @property
    def next_ms(self) -> int | None:
        """The earliest end of a batch's wait."""
        if not self.lines:
            return None
        heads = [line[0].wait for line in self.lines.values()]
        return min((w.until_ms for w in heads if w is not None and w.until_ms is not None), default=None)
