"""Store and forward: `send` stores a message on the local disk; a forwarder sends the messages, in order.

No call of `send` fails because the network or the broker is down. A forwarded message has the same id at
every attempt, so that a queue with a duplicate_window drops copies.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightrail.transport.clock import Clock, LoopClock
from lightrail.transport.envelope import Envelope
from lightrail.transport.errors import SendRefusedError, TransportClosedError, TransportError
from lightrail.transport.outbox_file import Depth, OutboxFile, Stored
from lightrail.transport.protocol import Offers, Selector, Transport
from lightrail.transport.threads import Threads

MESSAGES_MAX: Final = 10_000_000
BYTES_MAX: Final = 10 << 30
BATCH: Final = 500
"""Messages that are read from the file and sent at a time."""
BATCH_BYTES: Final = 8 << 20
STORE_MAX: Final = 1_000
"""Messages of one commit."""
PAUSE_FIRST_S: Final = 0.05
PAUSE_LONGEST_S: Final = 5.0
LOOK_S: Final = 0.25
"""How often the forwarder looks for messages of other processes, and for the end of another forwarder."""
REFUSALS_MAX: Final = 10
"""Attempts after which a message that its address refuses is set aside."""


@dataclass(frozen=True, slots=True)
class ForwarderProgress:
    """Progress and errors of a forwarder.

    Attributes:
        forwarded: number of messages since the forwarder was opened.
        failures: number of consecutive failed attempts.
        error: text of the last failure; empty after a success.
    """

    forwarded: int
    failures: int
    error: str


class StoreForwardTransport:
    """A durable outbox in front of another transport.

    Args:
        transport: the transport to forward to; closed with this one.
        path: file of the outbox (SQLite), for messages of this address only.
        messages_max, bytes_max: limits of waiting messages; beyond them `send` raises OutboxFullError.
        batch: messages sent at once. A message that is refused is sent again behind the others of its batch;
            with 1 the order is kept even then.
        clock: of the pauses between attempts.
    """

    def __init__(
        self,
        transport: Transport,
        path: str | Path,
        *,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
        batch: int = BATCH,
        clock: Clock | None = None,
    ) -> None:
        if batch < 1:
            raise ValueError(f"expected a batch of 1 message or more, found {batch}")
        self.offers: Final[Offers] = transport.offers
        self._transport = transport
        self._file = OutboxFile(Path(path), messages_max, bytes_max)
        self._batch = batch
        self._clock = clock or LoopClock()
        self._threads = Threads(1, "lightrail-outbox")
        self._waiting: list[tuple[Envelope, asyncio.Future[None]]] = []
        """Messages of `send` calls that the next commit stores."""
        self._storing: asyncio.Task[None] | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._refusals: dict[int, int] = {}
        self._forwarded = 0
        self._failures = 0
        self._error = ""
        self._is_closed = False

    @property
    def address(self) -> str:
        """The address of the transport behind the outbox."""
        return self._transport.address

    @property
    def progress(self) -> ForwarderProgress:
        """Progress and errors of the forwarder."""
        return ForwarderProgress(self._forwarded, self._failures, self._error)

    async def depth(self) -> Depth:
        """The messages that wait to be forwarded."""
        return await self._threads.call(self._file.depth)

    async def open(self) -> None:
        """Begins to forward waiting messages; `send` does so as well."""
        if self._is_closed:
            raise TransportClosedError(f"the outbox for {self.address} is closed")
        if self._forwarding is None:
            self._forwarding = asyncio.create_task(self._forward(), name=f"outbox for {self.address}")

    async def listen(self) -> None:
        """Returns when the transport behind it can receive."""
        await self._transport.listen()

    async def send(self, envelope: Envelope) -> None:
        """Stores a message; returns when it is on the disk.

        Raises:
            OutboxFullError: the outbox is at its limit.
            OutboxError: the disk is full or broken.
        """
        await self.open()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((envelope, stored))
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store())
        # A call that is cancelled here may have stored its message all the same.
        await stored

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Receives from the transport behind the outbox."""
        return await self._transport.receive(select, timeout)

    async def drained(self) -> None:
        """Returns when nothing waits to be forwarded."""
        while (await self.depth()).messages:  # noqa: ASYNC110 - another process may forward
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Stores messages of `send` calls, and closes the transport; waiting messages stay on the disk."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._storing is not None:
            await self._storing
        if self._forwarding is not None:
            self._forwarding.cancel()
            await asyncio.gather(self._forwarding, return_exceptions=True)
        await self._threads.call(self._file.close)
        self._threads.close()
        await self._transport.close()

    # --- storing -----------------------------------------------------------------------------------------

    async def _store(self) -> None:
        """Stores waiting messages in batches: calls during a commit share the next commit."""
        while self._waiting:
            batch, self._waiting = self._waiting[:STORE_MAX], self._waiting[STORE_MAX:]
            try:
                results = await self._threads.call(self._file.append, [envelope for envelope, _ in batch])
            except Exception as error:
                results = [error] * len(batch)
            for (_, stored), result in zip(batch, results, strict=True):
                if stored.done():
                    continue
                if result is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(result)
            self._arrived.set()

    # --- forwarding --------------------------------------------------------------------------------------

    async def _forward(self) -> None:
        while True:
            self._arrived.clear()
            try:
                if not await self._threads.call(self._file.forward):
                    # Another process forwards, and may end at any time.
                    await asyncio.sleep(LOOK_S)
                    continue
                # Begins with the oldest message, even after a failure, to keep the order of `send`.
                batch = await self._threads.call(self._file.next, self._batch, BATCH_BYTES)
                is_done = not batch or await self._forward_batch(batch)
            except Exception as error:
                # No error may end this task: stored messages would never be forwarded.
                self._error = str(error) or repr(error)
                is_done = False
            if not is_done:
                self._failures += 1
                await self._clock.sleep(min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2 ** min(self._failures, 16)))
                continue
            self._failures, self._error = 0, ""
            if not batch:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._arrived.wait()

    async def _forward_batch(self, batch: list[Stored]) -> bool:
        """Sends a batch; returns whether all of its messages were accepted and removed."""
        # One attempt to connect for the whole batch.
        await self._transport.open()
        sends = [asyncio.ensure_future(self._transport.send(stored.envelope)) for stored in batch]
        try:
            results = await asyncio.gather(*sends, return_exceptions=True)
        except asyncio.CancelledError:
            await asyncio.gather(*sends, return_exceptions=True)
            raise
        accepted: list[int] = []
        is_whole = True
        for stored, result in zip(batch, results, strict=True):
            if not isinstance(result, BaseException):
                accepted.append(stored.sequence)
                self._refusals.pop(stored.sequence, None)
                continue
            is_whole = False
            self._error = str(result) or repr(result)
            is_lasting = isinstance(result, SendRefusedError) and result.is_certain and not result.is_passing
            if is_lasting or not isinstance(result, TransportError):
                await self._refuse(stored, self._error)
        if accepted:
            await self._threads.call(self._file.remove, accepted)
            self._forwarded += len(accepted)
        return is_whole

    async def _refuse(self, stored: Stored, reason: str) -> None:
        """Counts a refusal; a message that is refused too often is set aside for the messages behind it."""
        count = self._refusals.get(stored.sequence, 0) + 1
        self._refusals[stored.sequence] = count
        if count >= REFUSALS_MAX:
            del self._refusals[stored.sequence]
            await self._threads.call(self._file.refuse, stored.sequence, reason)
