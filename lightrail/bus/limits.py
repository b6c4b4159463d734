"""How often a handler is called: calls in a time, pauses, and repetitions of what failed.

Limits of handlers: calls in a time, and a pause when too many fail.

Retries: when a failed message is handled again, and when it becomes a dead letter.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lightrail.transport import Clock


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The largest number of calls in a time, in each process."""

    calls: int
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.calls < 1 or self.seconds <= 0:
            raise ValueError(f"expected 1 call or more in a time of more than 0 seconds, found {self}")


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """Pauses a handler when too many of its calls fail, for example because its database is unreachable.

    Attributes:
        failures: share of the calls that may fail, between 0 and 1.
        calls: number of recent calls that count; with fewer there is no pause.
        pause: seconds.
    """

    failures: float = 0.5
    calls: int = 20
    pause: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.failures <= 1 or self.calls < 1 or self.pause <= 0:
            raise ValueError(f"expected a share between 0 and 1, 1 call or more and a pause, found {self}")


class Gate:
    """The limits of a handler, which every call passes."""

    def __init__(self, rate_limit: RateLimit | None, kill_switch: KillSwitch | None, clock: Clock) -> None:
        self._rate = rate_limit
        self._switch = kill_switch
        self._clock = clock
        self._starts: deque[float] = deque()
        self._results: deque[bool] = deque(maxlen=kill_switch.calls if kill_switch else 1)
        self._paused_until = 0.0
        self._turn = asyncio.Lock()

    @property
    def has_limits(self) -> bool:
        """Whether a call may have to wait."""
        return self._rate is not None or self._switch is not None

    async def opened(self) -> None:
        """Returns when the kill switch does not pause the handler."""
        while (pause := self._paused_until - self._clock.time()) > 0:
            await self._clock.sleep(pause)

    async def enter(self) -> bool:
        """Returns when the rate lets a call begin now; False where the kill switch pauses the handler."""
        if self._rate is not None:
            await self._in_turn(self._rate)
        return self._paused_until <= self._clock.time()

    async def _in_turn(self, rate: RateLimit) -> None:
        async with self._turn:
            while len(self._starts) >= rate.calls:
                due = self._starts[0] + rate.seconds - self._clock.time()
                if due > 0:
                    await self._clock.sleep(due)
                self._starts.popleft()
            self._starts.append(self._clock.time())

    def ended(self, is_success: bool) -> bool:
        """Counts the result of a call; whether that pauses the handler now."""
        switch = self._switch
        if switch is None:
            return False
        self._results.append(is_success)
        failed = self._results.count(False)
        if len(self._results) < switch.calls or failed < switch.failures * switch.calls:
            return False
        self._results.clear()
        self._paused_until = self._clock.time() + switch.pause
        return True


CRASHES: Final = 3
"""Deliveries beyond the retries before a message whose handler kills its process becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and when a handler is called again.

    Attributes:
        immediate: attempts that follow at once, in the same process, while the message is locked.
        delayed: seconds of pauses before further deliveries, which the broker counts: they survive a crash,
            and each may be handled by another process. Every delivery has its immediate attempts.
        never: exceptions that are not retried; the message becomes a dead letter at once.
    """

    immediate: int = 0
    delayed: Sequence[float] = ()
    never: tuple[type[BaseException], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.immediate < 0:
            raise ValueError(f"expected 0 immediate attempts or more, found {self.immediate}")
        if any(pause < 0 for pause in self.delayed):
            raise ValueError(f"expected pauses of 0 seconds or more, found {list(self.delayed)}")
        object.__setattr__(self, "delayed", tuple(self.delayed))

    def pause_s(self, error: BaseException, delivery_count: int) -> float | None:
        """Seconds before the next delivery; None after the last one.

        Args:
            delivery_count: failed deliveries before this one.
        """
        if isinstance(error, self.never) or delivery_count >= len(self.delayed):
            return None
        return self.delayed[delivery_count]

    @property
    def max_delivery_count(self) -> int:
        """Deliveries after which the broker makes an unsettled message a dead letter."""
        return len(self.delayed) + 1 + CRASHES


NO_RETRY: Final = Retry()
