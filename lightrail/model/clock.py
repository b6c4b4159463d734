"""Time: the clock of a process, and things by the time at which they are due.

The clock: milliseconds since 1970 that rise evenly, even when somebody sets the system's wall clock.

Locks, times to live and time-outs are differences of two readings, so setting the wall clock must not move
them. Between two readings the clock advances by the time of the system's steady clock, one that counts while
the machine sleeps where the system has one. Then it moves towards the wall clock, by at most CLOCK_SLEW of
that time. So it never stops or runs backwards, and follows a wall clock that jumped slowly (ADR 23). A wall
clock that is only adjusted, as NTP does, is followed at once.

Timetable: things by the time at which each of them is due.

A change, and a look at what is due, cost the same among many things as among few.
"""

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

CLOCK_SLEW: Final[int] = 10
"""After the wall clock was set, a process's clock gains or loses at most 1/CLOCK_SLEW of the passing time: a
jump of a minute is corrected in ten minutes, and a lock of 30 s is meanwhile 27 to 33 s long."""
CLOCK_JUMP_MS: Final[int] = 1_000
"""Jump of the wall clock that counts as setting it and is logged."""

log = logging.getLogger("lightrail.model.clock")

_MS: Final = 1_000_000
READINGS: Final = 5
TOGETHER_NS: Final = 100_000
"""Largest time between readings of two clocks that count as simultaneous."""


steady_ns: Final[Callable[[], int]] = partial(
    time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Nanoseconds that only rise, including the time that the machine slept."""


class Clock:
    """The time of one process; `wall` and `steady` return nanoseconds."""

    __slots__ = ("_at", "_ms", "_next", "_ns", "_off", "_steady", "_wall")

    def __init__(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = steady_ns) -> None:
        self._wall = wall
        self._steady = steady
        self._at, self._ns = _both(steady, wall)
        self._ms = self._ns // _MS
        self._next = self._at + _MS - self._ns % _MS
        self._off = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        steady = self._steady()
        return self._ms if steady < self._next else self._move(steady)

    @property
    def off_ms(self) -> int:
        """How far the wall clock is ahead of this one (negative: behind it), as of the last reading."""
        return self._off // _MS

    def _move(self, steady: int) -> int:
        passed = steady - self._at
        self._at = steady
        self._ns += passed
        wall = self._wall()
        if self._steady() - steady > TOGETHER_NS:
            # The system paused the process between the two readings; the difference would contain the pause.
            wall = self._ns + self._off
        off = wall - self._ns
        most = passed // CLOCK_SLEW
        step = most if off > most else -most if off < -most else off
        self._ns += step
        off -= step
        if abs(off - self._off) > CLOCK_JUMP_MS * _MS + passed:
            self._tell(off)
        self._off = off
        self._ms = self._ns // _MS
        self._next = steady + _MS - self._ns % _MS
        return self._ms

    def _tell(self, off: int) -> None:
        seconds = abs(off) / 1e9
        log.warning(
            "the wall clock of this machine was set: it is %.1f s %s the clock of this process, which "
            "follows it in about %.0f s; locks and time-outs are not moved by that",
            seconds,
            "before" if off > 0 else "behind",
            seconds * CLOCK_SLEW,
        )


def _both(steady: Callable[[], int], wall: Callable[[], int]) -> tuple[int, int]:
    """Both clocks at one moment: the reading that took the least time of several.

    If the system paused the process between reading one and the other, the clock would be wrong by the pause.
    """
    least = None
    for _ in range(READINGS):
        before, at, after = steady(), wall(), steady()
        if least is None or after - before < least[0]:
            least = (after - before, (before + after) // 2, at)
    assert least is not None
    return least[1], least[2]


_CLOCK: Final = Clock()
"""The clock of this process."""


wall_ms: Final = _CLOCK.now_ms
"""Milliseconds since 1970 by this process's clock. A frontend reads it a dozen times for a message that comes
alone, so no function stands in between."""


def off_ms() -> int:
    """How far the wall clock is ahead of `wall_ms`."""
    _CLOCK.now_ms()
    return _CLOCK.off_ms


T = TypeVar("T", bound=Hashable)
STALE_MIN: Final = 64
"""Entries of things that were dropped or have another time, beyond those with a time, that may remain."""


@dataclass(slots=True, eq=False, repr=False)
class Timetable(Generic[T]):
    """Things, each with one time in milliseconds."""

    _times: dict[T, int] = field(default_factory=dict)
    _heap: list[tuple[int, int, T]] = field(default_factory=list)
    """(time, order, thing); an entry counts only while the thing has this time."""
    _order: int = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, thing: T, time_ms: int) -> None:
        """Adds a thing, or changes its time."""
        self._times[thing] = time_ms
        self._order += 1
        heappush(self._heap, (time_ms, self._order, thing))
        if len(self._heap) > 2 * len(self._times) + STALE_MIN:
            self._heap = [(at_ms, order, each) for order, (each, at_ms) in enumerate(self._times.items())]
            self._order = len(self._heap)
            heapify(self._heap)

    def drop(self, thing: T) -> None:
        """Removes a thing, which need not be there."""
        self._times.pop(thing, None)

    def take_due(self, now_ms: int, most: int | None = None) -> list[T]:
        """Removes and returns the things whose time has come, the earliest first; at most so many."""
        found: list[T] = []
        heap, times = self._heap, self._times
        while heap and heap[0][0] <= now_ms and len(found) != most:
            time_ms, _, thing = heappop(heap)
            if times.get(thing) == time_ms:
                del times[thing]
                found.append(thing)
        return found
