"""The loopback transport: a list in the process, scanned from its head, at most once.

A message is removed before its handler runs: an exception of the handler does not return the message.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightrail.transport.envelope import NO_HEADERS, Envelope, Header
from lightrail.transport.errors import SendRefusedError, TransportClosedError, TransportError
from lightrail.transport.protocol import Offers, Selector

LENGTH_MAX: Final = 100_000
"""Largest number of messages that wait at one address."""
OFFERS: Final = Offers(selective=True)


@dataclass(eq=False, repr=False)
class Loopback:
    """Addresses of one process. Transports with the same address share its messages."""

    length_max: int = LENGTH_MAX
    _lists: dict[str, deque[Envelope]] = field(default_factory=dict)
    _waiters: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    def transport(self, address: str) -> "LoopbackTransport":
        """A transport of an address."""
        return LoopbackTransport(self, address)

    def messages(self, address: str) -> deque[Envelope]:
        """The messages that wait at an address, the oldest first."""
        return self._lists.setdefault(address, deque())

    async def ready(self, address: str) -> None:
        """Returns when a message was added at an address."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(address, []).append(waiter)
        await waiter

    def wake(self, address: str) -> None:
        """Lets all calls of `ready` for an address return."""
        for waiter in self._waiters.pop(address, ()):
            if not waiter.done():
                waiter.set_result(None)


class LoopbackTransport:
    """One address of a Loopback."""

    def __init__(self, loopback: Loopback, address: str) -> None:
        self.address: Final = address
        self.offers: Final = OFFERS
        self._loopback = loopback
        self._is_closed = False

    async def open(self) -> None:
        """No action: there is nothing to open."""

    async def listen(self) -> None:
        """Messages can be received at once."""

    async def send(self, envelope: Envelope) -> None:
        """Adds the message. Raises SendRefusedError if `length_max` messages wait."""
        if self._is_closed:
            raise TransportClosedError(f"the transport to {self.address} is closed")
        messages = self._loopback.messages(self.address)
        if len(messages) >= self._loopback.length_max:
            raise SendRefusedError(
                f"{self.address}: {len(messages)} messages wait already, the maximum", is_passing=True
            )
        messages.append(envelope)
        self._loopback.wake(self.address)

    async def receive(self, select: Selector, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Scans for a message that `select` has a handler for, removes the message, and calls the handler."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        looked: set[int] = set()
        while True:
            if self._is_closed:
                raise TransportClosedError(f"the transport from {self.address} is closed")
            messages = self._loopback.messages(self.address)
            for index, envelope in enumerate(messages):
                if id(envelope) in looked:
                    continue
                handler = None
                try:
                    handler = select(envelope)
                except BaseException:
                    del messages[index]
                    raise
                if handler is not None:
                    del messages[index]
                    result = handler(AtMostOnce(envelope))
                    if inspect.isawaitable(result):
                        await result
                    return True
            # Only messages that still wait: the ids of removed ones may be used again.
            looked = {id(envelope) for envelope in messages}
            try:
                async with asyncio.timeout_at(deadline):
                    await self._loopback.ready(self.address)
            except TimeoutError:
                return False

    async def close(self) -> None:
        """Ends calls of `receive` that wait, with TransportClosedError; waiting messages stay."""
        self._is_closed = True
        self._loopback.wake(self.address)


@dataclass(eq=False, repr=False)
class AtMostOnce:
    """A received message that was removed from its transport already."""

    envelope: Envelope
    settled: bool = False

    async def accept(self) -> None:
        """No action: the message was removed already."""
        self.settled = True

    async def release(self) -> None:
        """Raises TransportError."""
        raise TransportError("expected a transport with locks; this one removes messages before handlers run")

    async def fail(self, delay: float = 0.0) -> None:
        """Raises TransportError."""
        await self.release()

    async def dead_letter(
        self, reason: str, description: str = "", notes: Mapping[str, Header] = NO_HEADERS
    ) -> None:
        """Raises TransportError."""
        raise TransportError(
            f"expected a transport with dead letters for a message that is {reason}: give its endpoint an "
            "error transport"
        )
