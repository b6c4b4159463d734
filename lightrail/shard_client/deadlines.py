"""Deadlines: until when a shard may execute what a process sends it, by the clock of the shard (ADR 71).

`ShardClock` knows how far the clock of a shard is ahead of this process's. `within` sets how long the one who
has sent a request waits for its end, so that all requests to shards that follow from it have that deadline.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from lightrail.wire.frames import COUNT_MASK, HEADER, TIMED, Part

READINGS: Final[int] = 10
"""Readings after which the largest one of before is forgotten: clocks drift, and follow one that was set."""
ANSWER_MS: Final[int] = 500
"""A request is executed so long before the caller gives up, or a fourth of its time, so that there is time
for the answer."""


@dataclass(slots=True, eq=False, repr=False)
class ShardClock:
    """How far the clock of a shard is ahead of that of this process, as far as is certain.

    Each reading was on its way for some time, so that the shard's clock is further ahead than it seems. The
    largest of the latest readings is the nearest one.
    """

    _ahead_ms: int | None = None
    _before_ms: int | None = None
    """The largest of the READINGS before."""
    _readings: int = 0

    def read(self, part: Part, now_ms: int) -> None:
        """Reads the clock in a WELCOME or PONG that has arrived now; those of former versions have none."""
        _, flags, _, low, _, _, _ = HEADER.unpack_from(part)
        if not flags & TIMED:
            return
        ahead_ms = (low - now_ms + (1 << 31) & COUNT_MASK) - (1 << 31)
        if self._readings == READINGS:
            self._before_ms, self._ahead_ms, self._readings = self._ahead_ms, None, 0
        self._readings += 1
        self._ahead_ms = ahead_ms if self._ahead_ms is None else max(self._ahead_ms, ahead_ms)

    def forget(self) -> None:
        """Another process serves as the shard."""
        self._ahead_ms = self._before_ms = None
        self._readings = 0

    def at(self, time_ms: int) -> int | None:
        """Lower 32 bits of the shard's clock at a time of this process, or earlier; None if it is unknown."""
        found = [each for each in (self._ahead_ms, self._before_ms) if each is not None]
        return time_ms + max(found) & COUNT_MASK if found else None


def due_ms(now_ms: int, wait_ms: int) -> int:
    """Until when a request is executed whose caller waits so long from now on."""
    return now_ms + wait_ms - min(ANSWER_MS, wait_ms >> 2)


# --- of requests that are being executed -----------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class _Deadline:
    until_s: float | None
    """By the loop's clock; None once the request has ended: tasks that it began have none."""


_deadline: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def within(until_s: float | None) -> Iterator[None]:
    """Context manager: who waits for its end gives up at this time of the loop; None: unknown."""
    deadline = _Deadline(until_s)
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        deadline.until_s = None
        _deadline.reset(token)


def left_ms(wait_ms: int) -> int:
    """How long to wait for an answer of a shard that would be awaited for `wait_ms`; 0: it is too late."""
    deadline = _deadline.get()
    if deadline is None or deadline.until_s is None:
        return wait_ms
    left_s = deadline.until_s - asyncio.get_running_loop().time()
    return max(0, min(wait_ms, int(left_s * 1000)))
