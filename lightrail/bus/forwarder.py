"""What a bus sends by itself: the committed messages of its store's outbox, in the order of the commits,
and the events in its queue of schedules, each when the broker delivers it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from lightrail.bus.errors import BusError
from lightrail.bus.messages import Sending, known_type
from lightrail.bus.outgoing import ANSWER, TARGET
from lightrail.bus.store import Store, Waiting
from lightrail.transport import (
    Clock,
    Envelope,
    Handler,
    Received,
    SendRefusedError,
    Transport,
    TransportClosedError,
    TransportError,
)

log = logging.getLogger("lightrail.bus")

BATCH: Final = 500
LOOK_S: Final = 0.25
"""How often the outbox is checked for messages of other processes."""
REFUSALS_MAX: Final = 10
"""Attempts after which a message that its address refuses is set aside."""
STOP_S: Final = 5.0
"""How long a forwarder that stops waits for the outcomes of messages on their way."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_LONGEST_S: Final = 5.0
NO_TARGET: Final = "lightrail:no-target"
"""Reason of a dead letter without an address."""
SCHEDULE_PAUSE_S: Final = 1.0


class Forwarder:
    """Sends messages of an outbox; one process at a time does so.

    Args:
        post: sends a message.
    """

    def __init__(self, store: Store, post: Callable[[Sending], Awaitable[None]], clock: Clock) -> None:
        self._store = store
        self._post = post
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._refusals: dict[int, int] = {}
        """By sequence: how often a message was refused permanently."""
        self.forwarded = 0
        """Messages forwarded since the start."""

    def start(self) -> None:
        """Begins to forward."""
        self._task = asyncio.create_task(self._run(), name="forwarder")

    async def stop(self) -> None:
        """Stops forwarding; waiting messages stay in the outbox.

        Messages on their way are removed first, once the broker has accepted them: the next process would
        send them again, behind later ones. It waits STOP_S for that.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        arrived: asyncio.Event | None = getattr(self._store, "arrived", None)
        while True:
            if arrived is not None:
                arrived.clear()
            try:
                if not await self._store.forwards():
                    # Another process forwards, and may end at any time.
                    await asyncio.sleep(LOOK_S)
                    continue
                batch = await self._store.next(BATCH)
                is_done = not batch or await self._forward_whole(batch)
            except BusError as error:
                log.warning("the outbox can't be forwarded now: %s", error)
                is_done = False
            except Exception:
                # Nothing may end this task, or committed messages would never be sent.
                log.exception("the outbox can't be forwarded now: internal error")
                is_done = False
            if not is_done:
                failures += 1
                await self._clock.sleep(min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2 ** min(failures, 10)))
                continue
            failures = 0
            if batch:
                continue
            if arrived is None:
                await asyncio.sleep(0.01)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await arrived.wait()

    async def _forward_whole(self, batch: list[Waiting]) -> bool:
        """As `_forward`, which goes on for STOP_S when this task is cancelled."""
        forwarding = asyncio.ensure_future(self._forward(batch))
        try:
            return await asyncio.shield(forwarding)
        except asyncio.CancelledError:
            await asyncio.wait({forwarding}, timeout=STOP_S)
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
            raise

    async def _forward(self, batch: list[Waiting]) -> bool:
        """Whether all messages of a batch were accepted and removed."""
        sends = [asyncio.ensure_future(self._send(waiting)) for waiting in batch]
        try:
            results: list[Any] = await asyncio.gather(*sends, return_exceptions=True)
        except asyncio.CancelledError:
            await asyncio.gather(*sends, return_exceptions=True)
            raise
        accepted: list[int] = []
        unwanted: list[int] = []
        is_whole = True
        for waiting, result in zip(batch, results, strict=True):
            if not isinstance(result, BaseException):
                accepted.append(waiting.sequence)
                self._refusals.pop(waiting.sequence, None)
                continue
            is_lasting = isinstance(result, SendRefusedError) and result.is_certain and not result.is_passing
            if is_lasting and waiting.envelope.headers.get(ANSWER):
                log.info("%s: nobody waits for this answer: %s", waiting.address, result)
                unwanted.append(waiting.sequence)
                continue
            is_whole = False
            log.warning("%s: a message of the outbox is sent again: %s", waiting.address, result)
            if is_lasting or not isinstance(result, TransportError | BusError):
                await self._refuse(waiting, str(result) or repr(result))
        if accepted or unwanted:
            await self._store.remove([*accepted, *unwanted])
            self.forwarded += len(accepted)
        return is_whole

    async def _refuse(self, waiting: Waiting, reason: str) -> None:
        """Counts a refusal; a message that is refused too often is set aside, so that others are sent."""
        count = self._refusals.get(waiting.sequence, 0) + 1
        self._refusals[waiting.sequence] = count
        if count >= REFUSALS_MAX:
            del self._refusals[waiting.sequence]
            log.error("%s: a message of the outbox is set aside: %s", waiting.address, reason)
            await self._store.refuse(waiting.sequence, reason)

    async def _send(self, waiting: Waiting) -> None:
        type = None if waiting.type is None else known_type(waiting.type)
        await self._post(Sending(waiting.address, waiting.envelope, type, None))


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
                await self._clock.sleep(SCHEDULE_PAUSE_S)

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
