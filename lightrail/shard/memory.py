"""How the memory of a shard is shared: which queues flow to disk, and how much, above the mark.

The formula: while the messages in memory exceed the mark, the queue that holds most gives up what is beyond
its fair share, the mark divided by the number of queues that hold more than that, and at least an eighth of
what it holds, until nine tenths of the mark are reached. A queue always keeps `limits.RESIDENT_HEAD_BYTES` at
its head, so that consumers do not wait for the disk; with many queues less, half of the mark for all heads.
Messages that several queues share count once for each of them: what is in memory may be less than the sum,
never more. What queues keep beside their messages counts as well, by what it was measured to take.

What is delivered and not settled flows to disk as well, after what waits (ADR 29). Some of it can't: indexes
of queues that look into their messages, and what is parked. Where the indexes reach their share of the mark,
who sends to such a queue waits; where they and what is parked are more than that, everybody does (ADR 20).
"""

from lightrail.model import limits
from lightrail.shard.shard_queue import Queue


class Memory:
    """Bytes of messages in memory: in the queues, and parked before one until it has room."""

    __slots__ = ("_committing", "_queues", "flowing", "index", "mark", "parked", "resident", "waiting")

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.resident = 0
        """All of them."""
        self.flowing = 0
        """Beside those, bytes that left the queues for the disk; in memory until their commit has ended."""
        self._committing = 0
        """Of `flowing`, what the commit under way writes."""
        self.index = 0
        """Of them, what queues keep of messages wherever those are."""
        self.waiting: dict[Queue, None] = {}
        """Queues before which batches wait until the indexes are smaller."""
        self.parked = 0
        """Those that wait for room in their queue: they can't flow to disk, nobody has accepted them."""
        self._queues: dict[Queue, None] = {}

    @property
    def above_mark(self) -> bool:
        return self.resident + self.flowing > self.mark

    @property
    def far_above_mark(self) -> bool:
        return self.resident > 2 * self.mark

    @property
    def index_is_full(self) -> bool:
        """Whether queues that look into their messages may take no more."""
        return self.index > max(self.mark // limits.INDEX_SHARE, limits.INDEX_BYTES_MIN)

    @property
    def is_stuck(self) -> bool:
        """Whether indexes, and what is parked, are more than the mark: then nobody may send more.

        What consumers hold is not in this: it flows to disk.
        """
        return self.index + self.parked > self.mark + limits.UNFLOWABLE_SLACK_BYTES

    @property
    def held_bytes(self) -> int:
        """Delivered and not settled, and in memory. Asked for only when memory is short."""
        deliveries = [queue.machine.contents.deliveries for queue in self._queues]
        return sum(each.bytes - each.evicted_bytes for each in deliveries)

    @property
    def head_bytes(self) -> int:
        """What a queue keeps at its head while memory is short: all heads together fit into half the mark."""
        return max(1, min(limits.RESIDENT_HEAD_BYTES, self.mark // (2 * max(1, len(self._queues)))))

    @property
    def parked_max(self) -> int:
        """How much may be parked: half of the mark is left for what is in the queues."""
        return min(limits.PARKED_BYTES_MAX, self.mark // 2)

    def commit_begun(self) -> None:
        """What flows is in the commit that now runs."""
        self._committing = self.flowing

    def commit_ended(self) -> None:
        """The disk has it."""
        self.flowing -= self._committing
        self._committing = 0

    def park(self, size: int) -> None:
        """So many bytes more are parked; negative where they are not any more."""
        self.parked += size
        self.resident += size

    def update(self, queue: "Queue") -> None:
        """Counts the queue again after it changed."""
        index, now = queue.machine.contents.sizes()
        before = queue.resident
        if now != before:
            self.resident += now - before
            queue.resident = now
            if not now:
                del self._queues[queue]
            elif not before:
                self._queues[queue] = None
        if index != queue.index:
            self.index += index - queue.index
            queue.index = index

    def remove(self, queue: "Queue") -> None:
        """The queue is gone, with all it held."""
        self.resident -= queue.resident
        queue.resident = 0
        self.index -= queue.index
        queue.index = 0
        self.waiting.pop(queue, None)
        self._queues.pop(queue, None)

    def plan(self) -> list[tuple["Queue", int]]:
        """(queue, bytes that it should give up), the largest queue first."""
        surplus = self.resident - int(self.mark * limits.MEMORY_LOW_WATER)
        by_size = sorted(self._queues, key=lambda queue: queue.resident, reverse=True)
        share = self.mark // max(1, len(by_size))
        plan = []
        for queue in by_size:
            if surplus <= 0:
                break
            wanted = min(surplus, max(queue.resident - share, queue.resident // 8))
            plan.append((queue, wanted))
            surplus -= wanted
        return plan
