"""Unoffered: ready messages that a consumer, or every consumer, has not been offered yet, in their order.

Ranges of sequences are a heap by rank. It does not follow removals: a range under which nothing is ready
falls out when it gets to the top, or when the heap has grown far beyond what is ready.

`RunCount` knows how many runs of one queue are in flight, counted from time to time.
"""

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.values.counters import Counters

RENEWED_LOCK_BYTES: Final[int] = 100
"""Bytes of the note of a lock that was renewed, beside its run."""
RUNS_BETWEEN_COUNTS_MAX: Final[int] = 10_000
"""Runs by which the count of a queue may be wrong, however many messages are in flight: 8 MB."""


def runs_of(consumer: Consumer) -> int:
    """The runs in flight at a consumer; renewed locks, each noted by itself, count by their memory."""
    line = consumer.in_flight
    runs = len(line.runs) - line.head
    return runs + len(consumer.renewed) * RENEWED_LOCK_BYTES // limits.RUN_BYTES if consumer.renewed else runs


@dataclass(slots=True, eq=False, repr=False)
class RunCount:
    """The number of runs in flight, about: it may differ by a fourth of the messages, and by
    RUNS_BETWEEN_COUNTS_MAX.

    A delivery adds one run at most, and so does a settlement, which may leave two parts of one. To count at
    each of them would cost more than to count all runs when many messages were delivered or settled.
    """

    _consumers: Consumers
    _counters: Counters
    _at: int = 0
    _runs: int = 0
    tolerance: int = -1
    """Deliveries and settlements after which the runs are counted again."""

    def of(self, messages: int) -> int:
        """The number of runs, if so many messages are in flight."""
        consumers = self._consumers
        if len(consumers.by_id) == 1 and consumers.are_attached:
            # As nearly every queue has one consumer, its runs are counted each time.
            (consumer,) = consumers.by_id.values()
            return min(runs_of(consumer), messages)
        # Twice the deliveries minus the growth is the number of deliveries and settlements.
        change = 2 * self._counters.delivered - messages - self._at
        tolerance = self.tolerance
        if change > tolerance or -change > tolerance:
            self._at += change
            self._runs = sum(map(runs_of, consumers))
            # To count them costs as much as there are consumers, so as many changes lie between two counts.
            count = len(consumers.by_id) + (len(consumers.departed) >> 2)
            self.tolerance = max(
                min(messages >> 2, RUNS_BETWEEN_COUNTS_MAX), count, limits.RUNS_UNCOUNTED_MAX
            )
        return min(self._runs, messages)

    def outdate(self) -> None:
        """Notes that runs were parted or joined otherwise: they are counted again."""
        self.tolerance = -1

    def came_otherwise(self, messages: int) -> None:
        """Notes messages in flight that were not delivered; otherwise they would count as settled."""
        self._at -= 2 * messages


Range = tuple[Any, int, int]
"""(rank, first sequence, last sequence): lower ranks come first, and lower sequences in them."""


class Unoffered:
    """Ranges of sequences that may be ready; all messages of a range have its rank."""

    __slots__ = ("_joins", "_thin_at", "heap")

    def __init__(self, heap: list[Range] | None = None, joins: bool = True) -> None:
        self.heap: list[Range] = [] if heap is None else heap
        self._joins = joins
        """Whether neighbours become one range; not if each range must stay one message."""
        self._thin_at = max(limits.STALE_RANGES_MIN, 2 * len(self.heap))

    def copy(self) -> "Unoffered":
        """A copy with the same ranges, for a consumer that needs a separate view."""
        return Unoffered(self.heap.copy(), self._joins)

    def push(self, rank: Any, first: int, last: int) -> None:
        heappush(self.heap, (rank, first, last))

    def fill(self, ranges: list[Range]) -> None:
        """Sets all ranges, in any order; faster than adding each at its position."""
        self._keep(ranges, None)

    def top(self, ready: Ready) -> int:
        """The index in `ready` of the run at or in the first range, -1 if there is none."""
        heap = self.heap
        while heap:
            _, first, last = heap[0]
            index = ready.find(first, last)
            if index >= 0:
                return index
            heappop(heap)
        return -1

    def advance(self, position: int) -> None:
        """Removes the part of the first range below `position`."""
        rank, _, last = self.heap[0]
        if position >= last:
            heappop(self.heap)
        else:
            heapreplace(self.heap, (rank, position, last))

    def thin(self, ready: Ready) -> None:
        """Removes stale ranges and joins neighbours, if there are many."""
        if len(self.heap) < self._thin_at:
            return
        if not self._joins and len(self.heap) <= limits.STALE_RANGES_MIN + 2 * len(ready):
            # Most ranges are needed and none can be joined, so a search through all would change nothing.
            self._thin_at = limits.STALE_RANGES_MIN + 2 * len(ready) + 1
            return
        self._keep(self.heap, ready)

    def _keep(self, ranges: list[Range], ready: Ready | None) -> None:
        """Neighbours become one; with `ready`, a range under which nothing is ready is dropped."""
        kept: list[Range] = []
        for each in sorted(ranges):
            rank, first, last = each
            if self._joins and kept and kept[-1][0] == rank and first <= kept[-1][2]:
                kept[-1] = (rank, kept[-1][1], max(last, kept[-1][2]))
            elif ready is None or ready.find(first, last) >= 0:
                kept.append(each)
        self.heap = kept
        self._thin_at = max(limits.STALE_RANGES_MIN, 2 * len(kept))
