"""Parking: batches that wait for room in their queue, in the order in which they were received."""

from collections import deque

from lightrail.shard.effects.peers import Producer
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.shard_queue import Queue


class Parked:
    """A batch that waits; its first `done` messages are in the queue already, or were refused."""

    __slots__ = ("batch", "done", "number", "producer", "until_ms", "whole")

    def __init__(
        self,
        producer: Producer,
        number: int,
        batch: Batch,
        done: int,
        until_ms: int | None,
        *,
        whole: bool = False,
    ) -> None:
        self.producer = producer
        self.number = number
        self.batch = batch
        self.done = done
        self.until_ms = until_ms
        """Time at which the overflow of the policy is applied to the rest; None for never."""
        self.whole = whole
        """Whether the batch is stored whole or not at all."""

    def waits(self, now_ms: int) -> bool:
        """Whether the batch may wait longer."""
        return self.until_ms is None or now_ms < self.until_ms


class Parking:
    """The batches that wait for each queue; `Queue.parked` has the same ones."""

    __slots__ = ("_by_queue", "_memory")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._by_queue: dict[Queue, deque[Parked]] = {}

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
