"""Ranked: the order of queues with priorities, and of those sorted by a key.

All consumers share one view. A consumer that selects, or that reaches a message from which it is barred,
continues with a separate view.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.unoffered import Range, Unoffered
from lightrail.shard.queue.values.effects import Effect, Fetch
from lightrail.shard.queue.values.runs import Run, sequence_of


class Ranked(Order):
    """Delivers lower ranks first, and equal ranks by sequence.

    Args:
        rank: returns the rank of a run: the same for all its messages, and in every call.
        joins: whether neighbours often have the same rank.
    """

    __slots__ = ("_line", "_rank", "_shared")

    def __init__(
        self,
        ready: Sparse,
        eviction: Eviction,
        deliveries: Deliveries,
        rank: Callable[[Run], Any],
        *,
        joins: bool = True,
    ) -> None:
        super().__init__(ready, eviction, deliveries)
        self._line = ready
        self._rank = rank
        self._shared = Unoffered(joins=joins)

    @property
    def keys(self) -> int:
        return len(self._shared.heap)

    def arrived(self, run: Run) -> None:
        entry = self._rank(run), run.sequence, run.end
        self._shared.push(*entry)
        self._shared.thin(self._ready)
        for view in self._views.values():
            view.push(*entry)
            view.thin(self._ready)

    def begin_with(self, runs: list[Run]) -> None:
        rank = self._rank
        self._shared.fill([(rank(run), run.sequence, run.end) for run in runs])
        for consumer in self._views:
            self._views[consumer] = self._shared.copy()

    def returned(self, run: Run) -> None:
        self.arrived(run)

    def cleared(self) -> None:
        super().cleared()
        self._shared.heap.clear()

    def turn(self, consumer: Consumer, share: int, effects: list[Effect]) -> tuple[bool, bool]:
        view = self._views.get(consumer.id)
        if view is not None:
            return self._choose(consumer, view, share, effects), False
        ready, shared = self._line, self._shared
        wanted = min(share, consumer.limit - consumer.next, limits.DELIVERY_SLICE_MESSAGES)
        room = consumer.turn_bytes
        got = False
        while wanted > 0 and room > 0:
            index = shared.top(ready)
            if index < 0:
                break
            run = ready.runs[index]
            if run.barred and consumer.id in run.barred:
                # Also if it is only on disk: messages behind it need not wait for it.
                self._views[consumer.id] = view = shared.copy()
                self._hand_over(consumer, effects)
                return self._choose(consumer, view, wanted, effects) or got, False
            if run.batch.data is None:
                effects.extend(Fetch(each) for each in self._wanted(index))
                break
            if consumer.exact and not consumer.fits(run, self._gathered_bytes):
                break
            if run.last - run.first == 1:
                run, size = ready.take_single(index)
            else:
                run, size = ready.take_at(index, wanted, room)
            wanted -= run.last - run.first
            room -= size
            got = True
            self._gather(consumer, run, size, effects)
        self._hand_over(consumer, effects)
        return got, False

    def expects(self, consumer: Consumer) -> bool:
        if self.loading or consumer.ring is None or consumer.id in self._views:
            return super().expects(consumer)
        return self._shared.top(self._ready) >= 0

    def _whole_view(self) -> Unoffered:
        return self._shared.copy()

    def _feed(self) -> None:
        """Does nothing: every run is added when it arrives."""

    def look_ahead(self) -> list[Run]:
        self._eviction.unseen_bytes = 0
        index = self._shared.top(self._line)
        return [] if index < 0 else self._wanted(index)

    def _wanted(self, index: int) -> list[Run]:
        return self._ahead(index) if self._eviction.joins else self._ahead_by_rank()

    def _ahead_by_rank(self) -> list[Run]:
        """Runs on disk of the first messages by rank, wherever in the line they are."""
        ready, view = self._ready, self._shared
        first: list[Range] = []
        runs: list[Run] = []
        seen = 0
        while len(first) < limits.FETCHES_AHEAD_MAX and seen < max(self._eviction.head_bytes, 1):
            index = view.top(ready)
            if index < 0:
                break
            first.append(heappop(view.heap))
            run = ready.runs[index]
            seen += run.size
            if run.batch.data is None:
                runs.append(run)
        for each in first:
            heappush(view.heap, each)
        runs.sort(key=sequence_of)
        return self._eviction.want_runs(runs)

    def _ahead(self, index: int) -> list[Run]:
        """The run at an index and the next ones of its rank on disk, as far as the window reaches."""
        ready, eviction = self._ready, self._eviction
        rank = self._rank(ready.runs[index])
        wanted: list[Run] = []
        seen = 0
        while index < len(ready.runs) and seen < eviction.head_bytes:
            run = ready.runs[index]
            index += 1
            seen += run.size
            if run.batch.data is None and self._rank(run) == rank and eviction.ask(run):
                wanted.append(run)
        return wanted
