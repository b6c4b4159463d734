"""How the memory of a shard is shared: which queues are spilled above the memory mark, and how much.

The formula: while the messages in memory exceed the mark, the queue with most of them spills what is beyond
its fair share, the mark divided by the number of queues with more than that, and at least an eighth of
its messages, until nine tenths of the mark are reached. A queue always keeps `limits.RESIDENT_HEAD_BYTES` at
its head, so that consumers do not wait for the disk, or less if all heads would exceed half of the mark.
Messages that several queues share count once for each of them: the memory in use may be less than the sum,
never more. Indexes of queues count as well, by their measured sizes.

Messages in flight are spilled as well, after those that wait (ADR 29). Not all memory can be spilled: indexes
of queues that read their messages stay, parked batches, and prepared transactions (ADR 38). When the indexes
reach their share of the mark, senders to such queues wait; when all that stays is above the mark, all senders
do (ADR 20).
"""

from lightrail.model import limits
from lightrail.shard.shard_queue import Queue


class Memory:
    """Bytes of messages in memory: in queues, and in batches that wait for room in a queue."""

    __slots__ = (
        "_committing",
        "_queues",
        "flowing",
        "index",
        "mark",
        "parked",
        "prepared",
        "resident",
        "waiting",
    )

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.resident = 0
        """Bytes of all messages in memory."""
        self.flowing = 0
        """Further bytes that are being spilled, and stay in memory until their commit has ended."""
        self._committing = 0
        """Of `flowing`, the bytes that the commit under way writes."""
        self.index = 0
        """Bytes of `resident` for the indexes of queues, over messages in memory and on disk."""
        self.waiting: dict[Queue, None] = {}
        """Queues with batches that wait until the indexes are smaller."""
        self.parked = 0
        """Bytes of batches that wait for room in their queue: they are not accepted and can't be spilled."""
        self.prepared = 0
        """Bytes of prepared transactions, which can't be spilled either."""
        self._queues: dict[Queue, None] = {}

    @property
    def above_mark(self) -> bool:
        return self.resident + self.flowing > self.mark

    @property
    def far_above_mark(self) -> bool:
        return self.resident > 2 * self.mark

    @property
    def index_is_full(self) -> bool:
        """Whether queues that read their messages may store no more."""
        return self.index > max(self.mark // limits.INDEX_SHARE, limits.INDEX_BYTES_MIN)

    @property
    def is_stuck(self) -> bool:
        """Whether indexes, parked batches and prepared transactions exceed the mark, so that no sender may
        send more.

        Messages in flight are not counted: they can be spilled.
        """
        return self.index + self.parked + self.prepared > self.mark + limits.UNSPILLABLE_SLACK_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are in flight and in memory; computed only when memory is short."""
        deliveries = [queue.machine.contents.deliveries for queue in self._queues]
        return sum(each.bytes - each.evicted_bytes for each in deliveries)

    @property
    def head_bytes(self) -> int:
        """Bytes that each queue keeps at its head while memory is short, so that all use half the mark."""
        return max(1, min(limits.RESIDENT_HEAD_BYTES, self.mark // (2 * max(1, len(self._queues)))))

    @property
    def parked_max(self) -> int:
        """Maximum bytes of parked batches: half of the mark is left for messages in queues."""
        return min(limits.PARKED_BYTES_MAX, self.mark // 2)

    @property
    def prepared_max(self) -> int:
        """Maximum bytes of prepared transactions."""
        return max(self.mark // limits.TRANSACTIONS_PREPARED_SHARE, limits.TRANSACTIONS_PREPARED_BYTES_MIN)

    def commit_begun(self) -> None:
        """Notes that a commit with all spilled bytes has begun."""
        self._committing = self.flowing

    def commit_ended(self) -> None:
        """Notes that the commit is on disk."""
        self.flowing -= self._committing
        self._committing = 0

    def park(self, size: int) -> None:
        """Adds `size` parked bytes; negative if they are no longer parked."""
        self.parked += size
        self.resident += size

    def prepare(self, size: int) -> None:
        """Adds `size` bytes of prepared transactions; negative for one that is concluded."""
        self.prepared += size
        self.resident += size

    def update(self, queue: "Queue") -> None:
        """Updates the counts after a change of the queue."""
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
        """Removes a deleted queue from the counts."""
        self.resident -= queue.resident
        queue.resident = 0
        self.index -= queue.index
        queue.index = 0
        self.waiting.pop(queue, None)
        self._queues.pop(queue, None)

    def plan(self) -> list[tuple["Queue", int]]:
        """(queue, bytes to spill), the largest queue first."""
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
