"""Deadlines: the expiry times of ranges of sequences, found without reading any message.

A heap has one entry per batch with a time to live. Entries are not removed when their messages are delivered:
they are dropped at the head of the heap when all messages up to them were delivered or they are due, or when
the heap has grown far beyond the waiting runs. Messages that return get a new entry.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from lightrail.model import limits
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queue.values.work import RUN, Work


class Deadlines:
    """Expiry times of ranges of sequences; an entry may be stale, never missing."""

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int]] = []
        """(milliseconds since the epoch, first sequence, last sequence)."""

    def add(self, run: Run) -> None:
        """Notes the expiry of a run that has one."""
        expires_at_ms = run.batch.expires_at_ms
        if expires_at_ms is not None:
            heappush(self.heap, (expires_at_ms, run.sequence, run.end))

    def due(self, now_ms: int, work: Work) -> Iterable[tuple[int, int]]:
        """Takes out the ranges of sequences that are due, earliest first, while there is work left in
        this turn."""
        heap = self.heap
        while heap and heap[0][0] <= now_ms and work.left > 0:
            work.left -= RUN
            _, first, last = heappop(heap)
            yield first, last

    @property
    def next_ms(self) -> int | None:
        """The earliest time at which a message may expire, or None."""
        return self.heap[0][0] if self.heap else None

    def forget_before(self, sequence: int, now_ms: int) -> None:
        """Drops the earliest entries while all their messages are before `sequence`, where none waits."""
        heap = self.heap
        while heap and heap[0][2] <= sequence and heap[0][0] > now_ms:
            heappop(heap)

    def crowded(self, count: int) -> bool:
        """Whether there are more than twice as many entries as the `count` runs that wait."""
        return len(self.heap) > limits.STALE_ENTRIES_MIN + 2 * count

    def thin(self, runs: Iterable[Run]) -> None:
        """Drops all entries but those of the runs that wait."""
        self.heap = [
            (run.batch.expires_at_ms, run.sequence, run.end)
            for run in runs
            if run.batch.expires_at_ms is not None
        ]
        heapify(self.heap)
