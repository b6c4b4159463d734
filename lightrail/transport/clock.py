"""Clocks: the time of day and scheduled calls, from the event loop or controlled by tests."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Timer(Protocol):
    """A call that is due at a time."""

    def cancel(self) -> None:
        """Cancels the call."""
        ...


class Clock(Protocol):
    """The time that transports use."""

    def time(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Makes a call when the clock reaches a time, on the event loop."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after this number of seconds of this clock."""
        ...


class LoopClock:
    """The time of the machine."""

    def time(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Makes a call when the machine's clock reaches a time."""
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), call)

    async def sleep(self, seconds: float) -> None:
        """As asyncio.sleep."""
        await asyncio.sleep(seconds)


@dataclass(slots=True, eq=False, repr=False)
class _ManualTimer:
    call: Callable[[], None] | None

    def cancel(self) -> None:
        self.call = None


class ManualClock:
    """A clock that stands still until `advance` moves it.

    Args:
        now: seconds since the Unix epoch at which it starts.
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._due: list[tuple[float, int, _ManualTimer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """Seconds since the Unix epoch to which the clock was moved."""
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Makes a call when `advance` reaches a time; at once if the time has passed."""
        timer = _ManualTimer(call)
        heapq.heappush(self._due, (when, next(self._numbers), timer))
        if when <= self._now:
            asyncio.get_running_loop().call_soon(self._run_due)
        return timer

    async def sleep(self, seconds: float) -> None:
        """Returns when the clock was moved by this number of seconds."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_at(self._now + seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Moves the clock, and makes all calls that are due until then, in order of their times."""
        if seconds < 0:
            raise ValueError(f"expected 0 seconds or more, found {seconds}")
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            self._now = max(self._now, self._due[0][0])
            self._run_due()
        self._now = end

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= self._now:
            call = heapq.heappop(self._due)[2].call
            if call is not None:
                call()
