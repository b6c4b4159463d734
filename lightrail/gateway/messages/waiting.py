"""The line of requests that wait at one queue, the oldest first, with one timer for all time-outs."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

STALE_MIN: Final = 64
"""Cancelled waiters that may stay in the line; if there are more, they are removed."""

Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False, repr=False)
class WaitingLine(Generic[Answer]):
    """Futures of requests; the result is an answer, or None after its time-out.

    Args:
        timed_out: called with the number of requests that have just timed out.
    """

    _loop: asyncio.AbstractEventLoop
    _timed_out: Callable[[int], None]
    count: int = 0
    """Requests that wait."""
    _waiters: deque[asyncio.Future[Answer | None]] = field(default_factory=deque)
    _deadlines: list[tuple[float, int, asyncio.Future[Answer | None]]] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _timer_at: float = 0.0

    def join(self, wait_ms: int) -> "asyncio.Future[Answer | None]":
        """Adds a waiter at the end of the line; 0 means no time-out."""
        waiter: asyncio.Future[Answer | None] = self._loop.create_future()
        self._waiters.append(waiter)
        self.count += 1
        if wait_ms:
            at = self._loop.time() + wait_ms / 1000
            heappush(self._deadlines, (at, id(waiter), waiter))
            if self._timer is None or at < self._timer_at:
                self._arm(at)
        return waiter

    def pop(self) -> "asyncio.Future[Answer | None] | None":
        """Removes the request that has waited longest; answer it, then call `left`."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def left(self, count: int) -> None:
        """`count` requests no longer wait."""
        self.count -= count
        if len(self._waiters) > 2 * self.count + STALE_MIN:
            self._waiters = deque(waiter for waiter in self._waiters if not waiter.done())
        if len(self._deadlines) > 2 * self.count + STALE_MIN:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done()]
            heapify(self._deadlines)

    def close(self) -> "list[asyncio.Future[Answer | None]]":
        """Ends the line; returns the requests that still need an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.count = 0
        return [waiter for waiter in self._waiters if not waiter.done()]

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadlines = self._deadlines
        over = 0
        while deadlines and (deadlines[0][0] <= now or deadlines[0][2].done()):
            waiter = heappop(deadlines)[2]
            if not waiter.done():
                waiter.set_result(None)
                over += 1
        if deadlines:
            self._arm(deadlines[0][0])
        if over:
            self._timed_out(over)
