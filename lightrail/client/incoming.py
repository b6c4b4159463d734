"""Deliveries that wait in a receiver for the application, and the credit for more."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from lightrail.client.delivery import Delivery


class Incoming:
    """The buffer of one receiver.

    Args:
        window: messages that the broker sends ahead; 0: only those that the application requests.
        refill: called when half of the window is received by the application, for new credit.
    """

    __slots__ = ("_loop", "_refill", "_waiters", "buffer", "granted", "received", "window")

    def __init__(self, loop: asyncio.AbstractEventLoop, window: int, refill: Callable[[], None]) -> None:
        self._loop = loop
        self._refill = refill
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.window = window
        self.buffer: deque[Delivery] = deque()
        self.received = 0
        """Messages that the application received since the last grant of credit."""
        self.granted = 0
        """Without a window: messages that the application requested and that have not arrived."""

    @property
    def credit(self) -> int:
        """Credit for messages that there is room for, or that the application requested."""
        return max(0, self.window - len(self.buffer)) if self.window else self.granted

    @property
    def needs_refill(self) -> bool:
        """Whether the application has received half of the window."""
        return self.received << 1 >= self.window > 0

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Adds deliveries that the broker sent."""
        self.buffer.extend(deliveries)
        if not self.window:
            self.granted = max(0, self.granted - len(deliveries))
        if self._waiters:
            self.wake()

    def pop(self) -> Delivery:
        """Removes the first delivery, which the application receives."""
        delivery = self.buffer.popleft()
        self.received += 1
        if self.received << 1 >= self.window > 0:
            self._refill()
        if self._waiters and self.buffer:
            self.wake()
        return delivery

    def put_back(self, delivery: Delivery) -> None:
        """Makes a delivery the first one again."""
        self.buffer.appendleft(delivery)
        self.received -= 1
        self.wake()

    def remove(self, delivery: Delivery) -> None:
        """Drops a delivery whose lock expired, if the application has not received it."""
        if delivery in self.buffer:
            self.buffer.remove(delivery)
            self.received += 1

    async def wait(self) -> None:
        """Returns when there may be a delivery, or the receiver ended."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiters.remove(waiter)
            if not waiter.cancelled():
                # This waiter was woken for a message that another one may receive.
                self.wake()
            raise

    def wake(self) -> None:
        """Wakes one waiter."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Wakes every waiter: the receiver ended."""
        while self._waiters:
            self.wake()
