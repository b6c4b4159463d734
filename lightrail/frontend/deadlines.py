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
    """The deadline; None without one, or if it may have become sooner."""

    @property
    def is_open(self) -> bool:
        """Whether the socket is open."""

    def next_tick(self, now_ms: int) -> int | None:
        """Executes due deadlines, and returns the next one, or None."""

    def tick(self, now_ms: int) -> None:
        """The deadline has passed."""

    def excuse(self, until_ms: int) -> None:
        """Ignores the client's silence up to `until_ms`, which the broker caused."""

    def abort(self) -> None:
        """Ends the socket at once."""


class Deadlines:
    """Keeps one valid entry per connection in a heap: that of its `deadline_ms`.

    A deadline that becomes later is noticed when the earlier one has passed; before a deadline may become

    sooner, `deadline_ms` is set to None.
    Args:
        connections: the open connections.
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
            # This process was stopped, not its clients. The bytes that they sent wait in their sockets, or in
            # their systems: TCP retransmits after a time about as long as it has failed before.
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
