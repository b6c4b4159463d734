"""Forwarders that repeat failed attempts without end, with longer and longer pauses."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lightrail.gateway.forwarding.forwarder import Forwarder, Settlement
from lightrail.shard_client.receiving.queue_consumer import Delivery

FORWARD_WINDOW: Final[int] = 100
"""Dead letters of one queue that are being forwarded at a time."""
FORWARD_PAUSE_MS: Final[int] = 1_000
"""Pause before a dead letter that its target refused is sent again; it doubles up to FORWARD_PAUSE_MS_MAX."""
FORWARD_PAUSE_MS_MAX: Final[int] = 60_000

Pause = Callable[[float], Awaitable[None]]
"""Waits the given number of seconds; tests inject it."""
Attempt = Callable[[], Awaitable[Settlement | None]]
"""Sends one message; returns its outcome for the queue, or None if the attempt is to be repeated."""


class RepeatingForwarder(Forwarder):
    """Forwards the messages of one queue.

    Args:
        log: for problems, one line for each change.
        waiting: of that line, for the queue and the problem.
        again: of the line after a problem.
    """

    def __init__(
        self,
        queue: str,
        label: str,
        pause: Pause,
        lost: Callable[[Forwarder], None],
        *,
        log: logging.Logger,
        waiting: str,
        again: str,
    ) -> None:
        super().__init__(queue, window=FORWARD_WINDOW, label=label, lost=lost)
        self._pause = pause
        self._log = log
        self._waiting = waiting
        self._again = again
        self._problem = ""
        """The last logged problem."""

    def attempt(self, delivery: Delivery) -> Attempt:
        """The attempts of a message, which notes each problem."""
        raise NotImplementedError

    async def carry(self, delivery: Delivery) -> Settlement:
        """See Forwarder."""
        attempt = self.attempt(delivery)
        pause_ms = FORWARD_PAUSE_MS
        while True:
            settlement = await attempt()
            if settlement is not None:
                return settlement
            await self._pause(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, FORWARD_PAUSE_MS_MAX)

    def note(self, problem: str) -> None:
        """Logs the problem of an attempt, or "" after none, if it is another one than before."""
        if problem != self._problem:
            self._problem = problem
            if problem:
                self._log.warning("%s: %s", self._waiting, problem)
            else:
                self._log.info("%s", self._again)
