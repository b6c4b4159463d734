"""The deadlines of a frontend's connections, with one timer for the next of them."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from lightrail.model import limits

log = logging.getLogger("lightrail.frontend")


class Ticking(Protocol):
    """A connection with a deadline."""

    deadline_ms: int | None
    """Its deadline; None where it has none, or it may have become sooner."""

    @property
    def is_open(self) -> bool:
        """Whether the socket is there."""

    def next_tick(self, now_ms: int) -> int | None:
        """Acts on what is due, and returns the next deadline: None for none."""

    def tick(self, now_ms: int) -> None:
        """The deadline has come."""

    def excuse(self, until_ms: int) -> None:
        """The client's silence up to then is not its own."""

    def abort(self) -> None:
        """Ends the socket at once."""


class Deadlines:
    """Keeps one valid entry per connection in a heap: that of its `deadline_ms`.

    A deadline that becomes later is noticed when the earlier one comes; before one may become sooner,
    `deadline_ms` is set to None.

    Args:
        connections: those that are open.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        connections: Collection[Ticking],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._connections = connections
        self._heap: list[tuple[int, int, Ticking]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, connection: Ticking) -> None:
        """Enters the deadline of a connection that has no valid entry."""
        if connection.deadline_ms is None and connection.is_open:
            deadline = connection.next_tick(self._now_ms())
            if deadline is not None:
                connection.deadline_ms = deadline
                heapq.heappush(self._heap, (deadline, next(self._order), connection))
                self._arm()

    def forget_ended(self) -> None:
        """Removes entries of closed connections, which would stay until their time."""
        if len(self._heap) > 2 * len(self._connections) + limits.STALE_ENTRIES_MIN:
            self._heap[:] = [
                each for each in self._heap if each[0] == each[2].deadline_ms and each[2] in self._connections
            ]
            heapq.heapify(self._heap)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._heap and (self._timer is None or self._heap[0][0] < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = self._heap[0][0]
            wait = max(0, self._timer_ms - self._now_ms()) / 1000
            self._timer = self._loop.call_later(wait, self.ring)

    def ring(self) -> None:
        """The timer fires: ticks the connections that are due."""
        self._timer = None
        now_ms = self._now_ms()
        late_ms = now_ms - self._timer_ms
        if late_ms > limits.STANDSTILL_MS:
            # This process stood still, not its clients. What they sent waits in their sockets, or in their
            # systems: TCP tries again after about as long as it has tried in vain.
            for connection in self._connections:
                connection.excuse(now_ms + late_ms)
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            deadline, _, connection = heapq.heappop(heap)
            if deadline != connection.deadline_ms:
                continue
            try:
                connection.tick(now_ms)
            except Exception:
                log.exception("a deadline of a connection failed; the connection is closed")
                connection.abort()
            if connection.deadline_ms is not None:
                deadline = connection.deadline_ms = max(connection.deadline_ms, now_ms + 1)
                heapq.heappush(heap, (deadline, next(self._order), connection))
        self._arm()
