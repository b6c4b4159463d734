"""Scheduler: publishes events from the bus's queue of schedules, each when the broker delivers it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lightrail.bus.outgoing import TARGET
from lightrail.bus.sending import Sending
from lightrail.transport import (
    Clock,
    Envelope,
    Handler,
    Received,
    Transport,
    TransportClosedError,
    TransportError,
)

log = logging.getLogger("lightrail.bus")

NO_TARGET: Final = "lightrail:no-target"
"""Reason of a dead letter without an address."""
PAUSE_S: Final = 1.0


class Scheduler:
    """Consumes one queue of schedules.

    Args:
        transport: of the queue.
        post: sends a message.
    """

    def __init__(
        self, transport: Transport, post: Callable[[Sending], Awaitable[None]], clock: Clock
    ) -> None:
        self._transport = transport
        self._post = post
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to publish messages that are due."""
        self._task = asyncio.create_task(self._run(), name=self._transport.address)

    async def stop(self) -> None:
        """Stops publishing; unsettled messages are delivered again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._transport.receive(self._select)
            except TransportClosedError:
                return
            except TransportError as error:
                log.warning("events that are due can't be published now: %s", error)
                await self._clock.sleep(PAUSE_S)

    def _select(self, envelope: Envelope) -> Handler:
        return self._publish

    async def _publish(self, received: Received) -> None:
        envelope = received.envelope
        headers = dict(envelope.headers)
        target = headers.pop(TARGET, None)
        if not isinstance(target, str):
            await received.dead_letter(NO_TARGET, f"expected the header {TARGET}, found {target!r}")
            return
        due = envelope.replace(headers=headers, deliver_at=None)
        await self._post(Sending(target, due, None, None))
