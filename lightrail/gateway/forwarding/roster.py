"""Roster: which carriers there have to be now, and opening them one after another.

Whoever keeps a roster says for each queue which carrier it wants, or none. Opening asks the coordinator where
the queue is, so it happens in one task for all of them; what fails is tried again after a pause.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from lightrail.gateway.forwarding.forwarder import Carrier
from lightrail.gateway.forwarding.source import Links
from lightrail.model import limits

log = logging.getLogger("lightrail.gateway.forwarding.roster")

Wanted = TypeVar("Wanted")
"""What a carrier is made from; another value makes another carrier."""


class Roster(Generic[Wanted]):
    """Carriers by queue.

    Args:
        make: a carrier for a queue; the second argument is what it tells when its consumer was sent away.
    """

    def __init__(
        self, links: Links, make: Callable[[str, Wanted, Callable[[Carrier], None]], Carrier]
    ) -> None:
        self._links = links
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._carriers: dict[str, tuple[Wanted, Carrier]] = {}
        self._to_open: dict[Carrier, None] = {}
        self._opening: asyncio.Task[None] | None = None
        self._timers: dict[Carrier, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._carriers)

    def get(self, queue: str) -> Carrier | None:
        """The carrier of a queue, if there has to be one."""
        found = self._carriers.get(queue)
        return None if found is None else found[1]

    def want(self, queue: str, wanted: Wanted | None) -> None:
        """The queue has to have such a carrier, or none; one that is the same goes on."""
        present = self._carriers.get(queue)
        if present is not None:
            if present[0] == wanted:
                return
            del self._carriers[queue]
            self._end(present[1])
        if wanted is not None:
            carrier = self._make(queue, wanted, self._lost)
            self._carriers[queue] = (wanted, carrier)
            self._open(carrier)

    def close(self) -> None:
        """All of them end."""
        for _, carrier in self._carriers.values():
            self._end(carrier)
        self._carriers.clear()
        if self._opening is not None:
            self._opening.cancel()

    def _end(self, carrier: Carrier) -> None:
        self._to_open.pop(carrier, None)
        timer = self._timers.pop(carrier, None)
        if timer is not None:
            timer.cancel()
        carrier.close()

    def _lost(self, carrier: Carrier) -> None:
        """Sent away, or not let in: if nobody says meanwhile that it is not wanted, it tries again."""
        if self.get(carrier.queue) is carrier:
            pause_s = limits.COURIER_OPEN_PAUSE_MS / 1000
            self._timers[carrier] = self._loop.call_later(pause_s, self._open, carrier)

    def _open(self, carrier: Carrier) -> None:
        self._timers.pop(carrier, None)
        self._to_open[carrier] = None
        if self._opening is None:
            self._opening = self._loop.create_task(self._open_all())

    async def _open_all(self) -> None:
        try:
            while self._to_open:
                carrier = next(iter(self._to_open))
                del self._to_open[carrier]
                try:
                    await carrier.open(self._links)
                except Exception as error:
                    log.warning("%s can't be consumed now, this is tried again: %s", carrier.queue, error)
                    self._lost(carrier)
        finally:
            self._opening = None
