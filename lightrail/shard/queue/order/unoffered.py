"""Unoffered: ready messages that a consumer, or every consumer, has not been offered yet, in their order.

Ranges of sequences are a heap by rank. It does not follow removals: a range under which nothing is ready
falls out when it gets to the top, or when the heap has grown far beyond what is ready.
"""

from heapq import heappop, heappush, heapreplace
from typing import Any

from lightrail.model import limits
from lightrail.shard.queue.lines.ready import Ready

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
