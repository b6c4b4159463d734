"""The keeper of a receiver: renews the locks of its unsettled deliveries, while handlers work.

The first answer of the broker has the duration of a lock; from then on a lock is renewed when a quarter of
that time has passed, so a delivery that is settled sooner costs nothing. Passes are a quarter apart, too: at
least half of the time is left whenever a request is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightrail.client.delivery import Delivery
from lightrail.client.errors import ClientError

CAPABILITY: Final = "lightrail:renew-locks"
"""Offered by brokers whose `$management` renews locks."""
LONGEST_S: Final = 10.0
"""Longest time between renewals, also of locks without an end: the policy may change to a shorter time."""
AGAIN_S: Final = 0.25
"""Longest pause after a request that failed; shorter for short locks."""


@dataclass(eq=False, repr=False)
class Keeper:
    """Renews locks for as long as its receiver is attached.

    Args:
        renew: renews locks; returns seconds for which each delivery is locked, None for no end, 0 for an
            expired lock.
        longest: seconds after the arrival of a delivery for which its lock is renewed.
        lost: called with the number of locks that expired, and why they were not renewed, if known.
    """

    _loop: asyncio.AbstractEventLoop
    _renew: Callable[[Sequence[Delivery]], Awaitable[list[float | None]]]
    _longest: float
    _lost: Callable[[int, str], None]
    _kept: dict[Delivery, list[float]] = field(default_factory=dict)
    """By delivery: times of its arrival and of its latest renewal, by the clock of the loop."""
    _interval: float | None = None
    """Seconds from a lock to its renewal; None before the first answer."""
    _why: str = ""
    """Why the latest request failed."""
    _some: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Renews the locks of received deliveries from now on."""
        now = self._loop.time()
        for delivery in deliveries:
            self._kept[delivery] = [now, now]
        self._some.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="renewal of locks")

    def settled(self, delivery: Delivery) -> None:
        """Stops renewing the lock of a delivery: it has an outcome."""
        self._kept.pop(delivery, None)

    def stop(self) -> None:
        """Stops all renewals: the link was lost or closed; locks of the next link may be shorter."""
        self._kept.clear()
        self._interval = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            if not self._kept:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(await self._pass())

    async def _pass(self) -> float:
        """Renews locks that are due; returns the seconds until the next pass."""
        now = self._loop.time()
        interval = self._interval
        over = [each for each, (arrived, _) in self._kept.items() if now - arrived >= self._longest]
        for each in over:
            del self._kept[each]
        due = [each for each, (_, since) in self._kept.items() if now - since >= (interval or 0.0)]
        if due:
            try:
                # A later answer would be too late for the locks.
                async with asyncio.timeout(max(AGAIN_S, 2 * (interval or LONGEST_S))):
                    locked = await self._renew(due)
            except (ClientError, TimeoutError) as error:
                self._why = str(error) or "the broker did not answer in time"
                return min(AGAIN_S, interval or AGAIN_S)
            self._answered(due, locked, now)
        return AGAIN_S if self._interval is None else self._interval

    def _answered(self, due: Sequence[Delivery], locked: list[float | None], asked_at: float) -> None:
        lost = 0
        for delivery, seconds in zip(due, locked, strict=True):
            times = self._kept.get(delivery)
            if times is None:
                # The delivery was settled, or the link was lost, before the answer arrived.
                continue
            if seconds == 0:
                lost += 1
                self.settled(delivery)
                continue
            times[1] = asked_at
            self._interval = LONGEST_S if seconds is None else min(LONGEST_S, seconds / 4)
        if lost:
            self._lost(lost, self._why)
        self._why = ""
