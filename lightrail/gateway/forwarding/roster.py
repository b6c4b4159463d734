"""Roster: the forwarders that the namespace requires now, opened one after another.

The user of a roster sets the forwarder of each queue, or none. Opening a forwarder looks up the queue at the
coordinator, so one task opens all of them; a failed attempt is repeated after a pause.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from lightrail.gateway.forwarding.forwarder import Forwarder
from lightrail.shard_client.shard_connections import ShardConnections

FORWARDER_OPEN_PAUSE_MS: Final[int] = 1_000
"""Pause before a forwarder whose consumer could not be opened, or was closed, tries again."""

log = logging.getLogger("lightrail.gateway.forwarding.roster")

Wanted = TypeVar("Wanted")
"""The description of a forwarder; a different value requires a different forwarder."""


class Roster(Generic[Wanted]):
    """Forwarders by queue.

    Args:
        make: makes a forwarder for a queue; the last argument is called when the shard closed its consumer.
    """

    def __init__(
        self, shards: ShardConnections, make: Callable[[str, Wanted, Callable[[Forwarder], None]], Forwarder]
    ) -> None:
        self._shards = shards
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._forwarders: dict[str, tuple[Wanted, Forwarder]] = {}
        self._to_open: dict[Forwarder, None] = {}
        self._opening: asyncio.Task[None] | None = None
        self._timers: dict[Forwarder, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._forwarders)

    def get(self, queue: str) -> Forwarder | None:
        """The forwarder of a queue, if it has one."""
        found = self._forwarders.get(queue)
        return None if found is None else found[1]

    def want(self, queue: str, wanted: Wanted | None) -> None:
        """Sets the forwarder of a queue, or none; a running forwarder with an equal description is kept."""
        present = self._forwarders.get(queue)
        if present is not None:
            if present[0] == wanted:
                return
            del self._forwarders[queue]
            self._end(present[1])
        if wanted is not None:
            forwarder = self._make(queue, wanted, self._lost)
            self._forwarders[queue] = (wanted, forwarder)
            self._open(forwarder)

    def close(self) -> None:
        """Stops all forwarders."""
        for _, forwarder in self._forwarders.values():
            self._end(forwarder)
        self._forwarders.clear()
        if self._opening is not None:
            self._opening.cancel()

    def _end(self, forwarder: Forwarder) -> None:
        self._to_open.pop(forwarder, None)
        timer = self._timers.pop(forwarder, None)
        if timer is not None:
            timer.cancel()
        forwarder.close()

    def _lost(self, forwarder: Forwarder) -> None:
        """Opens a forwarder again after a pause, if it is still wanted: its consumer was closed."""
        if self.get(forwarder.queue) is forwarder:
            pause_s = FORWARDER_OPEN_PAUSE_MS / 1000
            self._timers[forwarder] = self._loop.call_later(pause_s, self._open, forwarder)

    def _open(self, forwarder: Forwarder) -> None:
        self._timers.pop(forwarder, None)
        self._to_open[forwarder] = None
        if self._opening is None:
            self._opening = self._loop.create_task(self._open_all())

    async def _open_all(self) -> None:
        try:
            while self._to_open:
                forwarder = next(iter(self._to_open))
                del self._to_open[forwarder]
                try:
                    await forwarder.open(self._shards)
                except Exception as error:
                    log.warning("%s can't be consumed now; this is tried again: %s", forwarder.queue, error)
                    self._lost(forwarder)
        finally:
            self._opening = None
