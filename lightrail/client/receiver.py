"""Receivers: messages in, and what became of them back."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import events
from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import AmqpError, Modified, Rejected, Source, Target
from lightrail.amqp.values import Symbol
from lightrail.client.errors import ClosedError, LinkError, LostError
from lightrail.client.message import Message
from lightrail.client.wire import Wire

if TYPE_CHECKING:
    from lightrail.client.connection import Connection

CREDIT: Final = 100
"""Messages that a receiver has the broker send ahead."""
FAILED: Final = Modified(delivery_failed=True)


class Delivery:
    """A message that was received, for as long as it is not settled."""

    __slots__ = ("_link", "_number", "_receiver", "message", "settled")

    def __init__(self, receiver: "Receiver", link: Link, number: int, payload: bytes, settled: bool) -> None:
        self._receiver = receiver
        self._link = link
        self._number = number
        self.message = Message.decode(payload)
        self.settled = settled
        """Whether it has an outcome: of the application, or the sender asked for none."""

    @property
    def body(self) -> Any:
        """Of its message."""
        return self.message.body

    async def accept(self) -> None:
        """It was processed: the broker deletes it. Raises LostError: it comes again."""
        self._settle(ACCEPTED)

    async def release(self) -> None:
        """It was not processed: another receiver may have it. Raises LostError: so it will be."""
        self._settle(RELEASED)

    async def fail(self) -> None:
        """The attempt failed: it comes again until the queue's max_delivery_count, then is a dead letter.

        Raises LostError: it comes again anyhow.
        """
        self._settle(FAILED)

    async def modify(
        self,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        """As `release`, counted as failed or not, not for this receiver, with message-annotations (3.4.5)."""
        changed = {Symbol(key): value for key, value in (annotations or {}).items()}
        self._settle(
            Modified(
                delivery_failed=delivery_failed,
                undeliverable_here=undeliverable_here,
                message_annotations=changed or None,
            )
        )

    async def reject(self, condition: str = "amqp:internal-error", description: str = "") -> None:
        """It can't be processed: where the queue has dead letters it is one now, with this reason."""
        self._settle(Rejected(error=AmqpError(condition=Symbol(condition), description=description or None)))

    def _settle(self, state: Any) -> None:
        if self.settled:
            raise ClosedError("the message has an outcome already")
        self._receiver.settle(self._link, self._number, state)
        self.settled = True

    def __repr__(self) -> str:
        return f"Delivery({self.message!r})"


class Receiver:
    """Receives messages from one address. Opened by `Connection.receiver`; open again after a loss."""

    def __init__(
        self,
        connection: "Connection",
        address: str | None,
        *,
        credit: int,
        name: str,
        source: Source,
        presettled: bool,
    ) -> None:
        self.address = address
        self.name = name
        self._connection = connection
        self._source = source
        self._presettled = presettled
        self._window = credit
        self._wire: Wire | None = None
        self._link: Link | None = None
        self._attached = False
        self._buffer: deque[Delivery] = deque()
        self._taken = 0
        """Messages that the application took since credit was given last."""
        self._granted = 0
        """Of a receiver without a window: messages that the application asked for and that have not come."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._outcome: Any = None
        """What is gathered of this turn: one outcome of deliveries that follow each other."""
        self._first = self._last = 0
        self._opened: asyncio.Future[None] = connection.loop.create_future()
        self._closed: Exception | None = None
        self.on_lost: Callable[[], None] = _nothing
        """Called when the link is lost, before it is attached again."""

    # --- for the application -----------------------------------------------------------------------------

    async def __aenter__(self) -> "Receiver":
        await self.opened()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def opened(self) -> None:
        """Returns when the broker has opened it for the first time. Raises LinkError where it refused."""
        await asyncio.shield(self._opened)

    @property
    def healthy(self) -> bool:
        """Whether it is attached now."""
        return self._attached

    def __aiter__(self) -> "Receiver":
        return self

    async def __anext__(self) -> Delivery:
        """The next message; waits for it. Ends when the receiver is closed."""
        while not self._buffer:
            if self._closed is not None:
                if isinstance(self._closed, ClosedError):
                    raise StopAsyncIteration
                raise self._closed
            await self._for_message()
        return self._take()

    async def receive(
        self,
        count: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - that nothing came in time is no error
    ) -> list[Delivery]:
        """Up to `count` messages: those that are there; where none is, waits up to `timeout` seconds for one.

        Raises LinkError or ClosedError where the receiver ended.
        """
        if not self._buffer:
            try:
                async with asyncio.timeout(timeout):
                    while not self._buffer:
                        if self._closed is not None:
                            raise self._closed
                        await self._for_message()
            except TimeoutError:
                return []
        return [self._take() for _ in range(min(count, len(self._buffer)))]

    async def grant(self, count: int) -> None:
        """Lets the broker send `count` more messages, for a receiver that was opened with a credit of 0.

        For applications that bound what they have not settled, where a window counts what they have not
        taken. Credit that was granted and not used is granted again after a loss. A negative count takes back
        as much of it as the broker has not used yet.

        Raises ValueError for a receiver whose window refills itself.
        """
        if self._window:
            raise ValueError(
                f"{self.address}: expected a receiver that was opened with credit=0, found one whose window "
                f"of {self._window} refills itself"
            )
        self._granted = max(0, self._granted + count)
        if self._link is not None and self._attached and self._wire is not None:
            self._link.grant(self._granted)
            self._wire.touch()

    async def close(self) -> None:
        """Detaches; what was received and has no outcome goes back to the queue."""
        self._end(ClosedError(f"the receiver of {self.address} is closed"))

    # --- inside ------------------------------------------------------------------------------------------

    def _take(self) -> Delivery:
        delivery = self._buffer.popleft()
        self._taken += 1
        if self._taken << 1 >= self._window > 0 and self._wire is not None:
            self._wire.touch(self)
        if self._waiters and self._buffer:
            self._wake()
        return delivery

    async def _for_message(self) -> None:
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # It was woken for a message that another one may take.
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def settle(self, link: Link, number: int, state: Any) -> None:
        """The application says what became of a message."""
        if link is not self._link or self._wire is None:
            raise LostError(
                f"{self.address}: the connection that the message came by was lost, and its outcome can't be "
                "said any more: the broker gives it to a receiver again"
            )
        if self._outcome is not None:
            if state is self._outcome and number == self._last + 1:
                self._last = number
                return
            link.settle(self._first, self._last, self._outcome)
        self._outcome = state
        self._first = self._last = number
        self._wire.touch(self)

    def _end(self, error: Exception) -> None:
        if self._closed is not None:
            return
        self._closed = error
        self.flush()
        self._connection.forget(self)
        link, self._link = self._link, None
        if link is not None and self._wire is not None:
            link.detach()
            self._wire.touch()
        self._attached = False
        self._buffer.clear()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()
        while self._waiters:
            self._wake()

    # --- from the connection -----------------------------------------------------------------------------

    def attach(self, wire: Wire, session: Any) -> None:
        """The connection is there (again)."""
        self._wire = wire
        link = self._link = session.attach(
            self.name,
            False,
            source=self._source,
            target=Target(),
            snd_settle_mode=1 if self._presettled else 0,
        )
        link.context = self
        wire.touch()

    def lost(self) -> None:
        """The connection is gone, and the broker gives what came by it to a receiver again."""
        self._wire = self._link = None
        self._attached = False
        self._outcome = None
        self._buffer.clear()
        self.on_lost()

    def fail(self, error: Exception) -> None:
        """The connection is given up."""
        self._end(error)

    # --- from the engine ---------------------------------------------------------------------------------

    def attached(self) -> None:
        link = self._link
        if link is None or link.attach is None or link.attach.source is None:
            # Its detach follows at once, and says why (2.6.3).
            return
        self._attached = True
        found = link.attach.source
        if self._source.dynamic and isinstance(found, Source):
            # The broker made a node for it, of another name each time (2.6.3).
            self.address = str(found.address)
        if not self._opened.done():
            self._opened.set_result(None)
        self._taken = 0
        link.grant(self._window or self._granted)
        assert self._wire is not None
        self._wire.touch()

    def detached(self, error: AmqpError | None) -> None:
        self._link = None
        self._attached = False
        self._outcome = None
        self._buffer.clear()
        self.on_lost()
        self._connection.link_lost(self, f"the receiver of {self.address}", error)

    def refuse(self, error: LinkError) -> None:
        """The broker will not have it."""
        self._end(error)

    def heard(self, event: events.Event) -> None:
        if isinstance(event, events.Transfers):
            link = event.link
            number = event.first_delivery_id
            settled = event.settled
            append = self._buffer.append
            for payload in event.payloads:
                append(Delivery(self, link, number, payload, settled))
                number += 1
            if not self._window:
                self._granted = max(0, self._granted - len(event.payloads))
            if self._waiters:
                self._wake()

    def flush(self) -> None:
        """Outcomes that were gathered, and credit for what was taken."""
        link = self._link
        if link is None:
            return
        if self._outcome is not None:
            link.settle(self._first, self._last, self._outcome)
            self._outcome = None
        if self._taken << 1 >= self._window > 0 and self._closed is None:
            self._taken = 0
            link.grant(self._window - len(self._buffer))


def _nothing() -> None:
    """Nobody wants to know."""
