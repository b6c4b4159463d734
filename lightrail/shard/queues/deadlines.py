"""Deadlines: the time at which each queue needs a Tick."""

from heapq import heappop, heappush, heapreplace

from lightrail.shard.queues.shard_queue import Queue


class Deadlines:
    """Queues by the time of their next Tick, so that a step need not check all; entries may be stale."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Queue]] = []
        self._order = 0

    @property
    def next_ms(self) -> int | None:
        """The earliest time, or None; skips queues that no longer need a Tick."""
        heap = self._heap
        while heap:
            due_ms, order, queue = heap[0]
            if due_ms != queue.due_ms:
                heappop(heap)
                continue
            true_ms = queue.next_deadline_ms if queue.ownership.is_serving else None
            if true_ms == due_ms:
                return due_ms
            queue.due_ms = true_ms
            if true_ms is None:
                heappop(heap)
            else:
                heapreplace(heap, (true_ms, order, queue))
        return None

    def note(self, queue: Queue) -> None:
        """Notes the deadline of a changed queue, which may be earlier than before."""
        due_ms = queue.next_deadline_ms if queue.parked else queue.machine.next_deadline_ms
        if due_ms is None or not queue.ownership.is_serving:
            return
        if queue.due_ms is None or due_ms < queue.due_ms:
            queue.due_ms = due_ms
            self._order += 1
            heappush(self._heap, (due_ms, self._order, queue))

    def due(self, now_ms: int) -> list[Queue]:
        """Removes and returns the queues that need a Tick now."""
        found: list[Queue] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            due_ms, _, queue = heappop(heap)
            if due_ms != queue.due_ms:
                continue
            queue.due_ms = None
            if not queue.ownership.is_serving:
                continue
            later_ms = queue.next_deadline_ms
            if later_ms is not None and later_ms <= now_ms:
                found.append(queue)
            else:
                self.note(queue)
        return found
