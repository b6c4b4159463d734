"""Receivers: messages in, by iteration, in batches, or chosen by the application."""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import AmqpError, Modified, Source, Target
from lightrail.client.delivery import Delivery
from lightrail.client.errors import ClientError, ClosedError, LinkError, LostError, link_error
from lightrail.client.keeper import CAPABILITY, Keeper
from lightrail.client.message import Message
from lightrail.client.sources import NEVER
from lightrail.client.wire import Wire
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.client.connection import Connection

CLOSE_S: Final = 5.0
"""How long what is closed waits for messages that are on their way."""
CREDIT: Final = 100
"""Messages that a receiver has the broker send ahead."""
PASSED_OVER: Final = Modified(undeliverable_here=True)
LOSES_PASSED_OVER: Final = frozenset({"RabbitMQ"})
"""Brokers, by the `product` of their open, that drop what a receiver says it can't take (3.4.5)."""

Handler = Callable[[Delivery], Any]


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
        target: str | None = None,
        renew_for: float = 0.0,
    ) -> None:
        self.address = address
        self.name = name
        self._connection = connection
        self._source = source
        self._target = Target(address=target)
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
        self._durable = source.expiry_policy == NEVER
        """Whether the subscription outlives the link."""
        self._unsubscribed: asyncio.Future[None] | None = None
        """The broker's answer to the end of a durable subscription."""
        self._drained: asyncio.Future[None] | None = None
        """Of a receiver that closes: the broker has sent what it had under way."""
        self.keeper: Keeper | None = None
        """Renews locks, where that was asked for."""
        if renew_for:
            self.keeper = Keeper(connection.loop, self.renew, renew_for, self._locks_lost)
        self.on_lost: Callable[[], None] = _nothing
        """Called when the link is lost, before it is attached again."""

    # --- for the application -----------------------------------------------------------------------------

    async def __aenter__(self) -> "Receiver":
        try:
            await self.opened()
        except asyncio.CancelledError:
            # Its block does not begin, so nobody else closes it.
            self._end(ClosedError(f"the opening of {self._what} was cancelled"))
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def opened(self) -> None:
        """Returns when the broker has opened it for the first time. Raises LinkError where it refused."""
        await asyncio.shield(self._opened)

    @property
    def _what(self) -> str:
        """For errors."""
        return f"the receiver of {self.address or 'a dynamic node'}"

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

    def put_back(self, delivery: Delivery) -> None:
        """Returns a delivery to the head of what was received here: the next call of `receive` has it.

        The broker still counts it as this receiver's. One whose link was lost meanwhile is not put back: the
        broker delivers it again.
        """
        if self._closed is None and not delivery.settled and delivery.is_of(self._link):
            self._buffer.appendleft(delivery)
            self._taken -= 1
            self._wake()

    async def select(
        self,
        choose: Callable[[Message], Handler | None],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - that nothing came in time is no error
    ) -> bool:
        """Waits for a message that `choose` has a handler for, and calls that with the delivery.

        A message without a handler stays in the queue for others; this receiver does not see it again. What
        the handler returns is awaited where it can be; then the message is accepted, unless the handler has
        settled it. A message whose handler raises counts as a failed attempt, and so does one that `choose`
        raises for; the exception goes on to the caller.

        Args:
            choose: looks at a message, and returns what handles it, or None.
            timeout: seconds to wait for a message that has a handler.

        Returns:
            Whether a handler was called.
        """
        self.refuse_to_lose()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    [delivery] = await self.receive()
                    try:
                        handler = choose(delivery.message)
                    except BaseException:
                        await self._failed(delivery)
                        raise
                    if handler is not None:
                        break
                    if not delivery.settled:
                        with suppress(LostError):
                            delivery.settle(PASSED_OVER)
        except TimeoutError:
            return False
        try:
            found = handler(delivery)
            if inspect.isawaitable(found):
                await found
        except BaseException:
            await self._failed(delivery)
            raise
        if not delivery.settled:
            await delivery.accept()
        return True

    async def grant(self, count: int) -> None:
        """Lets the broker send `count` more messages, for a receiver that was opened with a credit of 0.

        For applications that bound what they have not settled, where a window counts what they have not
        received from the receiver. Credit that was granted and not used is granted again after a loss. A
        negative count takes back as much of it as the broker has not used yet.

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
        """Detaches; what was received and has no outcome goes back to the queue at once, and uncounted.

        A durable subscription stays: `unsubscribe` ends it.

        Messages on their way are waited for (the link is drained), CLOSE_S at the most: those that a broker
        still has under way when a link ends count as deliveries that failed.
        """
        if self._closed is not None:
            return
        self._connection.check_loop()
        error = ClosedError(f"{self._what} is closed")
        link = self._link
        if link is None or not self._attached or self._presettled:
            self._end(error)
            return
        self.flush()
        self._stop(error)
        try:
            if link.credit > 0:
                self._drained = self._connection.loop.create_future()
                link.grant(link.credit, drain=True)
                assert self._wire is not None
                self._wire.touch()
                async with asyncio.timeout(CLOSE_S):
                    await self._drained
        except TimeoutError:
            pass
        finally:
            self.flush()
            if link is self._link:
                link.release_unsettled()
            self._leave()

    async def unsubscribe(self) -> None:
        """Closes the receiver, and ends its durable subscription with all that waits there.

        Raises LinkError where the broker could not end it, and LostError where the connection was lost first.
        """
        await self.opened()
        link, wire = self._link, self._wire
        if link is None or wire is None or not self._attached:
            raise LostError(f"{self.address}: expected a receiver that is attached, and it is not: try again")
        self.flush()
        answer = self._unsubscribed = self._connection.loop.create_future()
        self._attached = False
        link.awaits_answer = True
        link.detach()
        wire.touch()
        try:
            await answer
        finally:
            self._unsubscribed = None
            self._end(ClosedError(f"{self._what} is closed"))

    # --- inside ------------------------------------------------------------------------------------------

    def refuse_to_lose(self) -> None:
        """Raises ClientError where the broker drops what a receiver passes over."""
        product = self._connection.product
        if product in LOSES_PASSED_OVER:
            raise ClientError(
                f"{self.address}: expected a broker that keeps messages which a receiver passes over, and "
                f"{product} drops them: use a queue for each kind of message"
            )

    @staticmethod
    async def _failed(delivery: Delivery) -> None:
        """Its handler has raised; where the link was lost meanwhile it comes again anyhow."""
        if not delivery.settled:
            with suppress(LostError):
                await delivery.fail()

    def _take(self) -> Delivery:
        delivery = self._buffer.popleft()
        self._taken += 1
        if self._taken << 1 >= self._window > 0 and self._wire is not None:
            self._wire.touch(self)
        if self._waiters and self._buffer:
            self._wake()
        return delivery

    async def _for_message(self) -> None:
        self._connection.check_loop()
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiters.remove(waiter)
            if not waiter.cancelled():
                # It was woken for a message that another one may take.
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def renew(self, deliveries: Sequence[Delivery]) -> list[float | None]:
        """Locks deliveries anew; see Locks.renew.

        Those that are locked no more can't be settled, and where they wait for the application it does not
        get them.
        """
        link = self._link
        if link is None or any(each._link is not link for each in deliveries):
            raise LostError(f"{self.address}: the link was lost, and what it has received comes again")
        locked = await self._connection.locks.renew(self, [each._tag for each in deliveries])
        for delivery, seconds in zip(deliveries, locked, strict=True):
            if seconds == 0 and not delivery.settled:
                delivery.lose()
                if delivery in self._buffer:
                    self._buffer.remove(delivery)
                    self._taken += 1
        return locked

    def _locks_lost(self, count: int, why: str) -> None:
        text = f"the locks of {count} messages ran out, and they come again"
        self._connection.say("lock-lost", self.address or "", f"{text}: {why}" if why else text)

    def settle(self, link: Link, number: int, state: Any) -> None:
        """The application says what became of a message."""
        self._connection.check_loop()
        if link is not self._link or self._wire is None:
            raise LostError(
                f"{self.address}: the connection that the message came by was lost, and its outcome can't "
                "reach the broker any more, which delivers it again"
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
            self._leave()
            return
        self.flush()
        self._stop(error)
        self._leave()

    def _stop(self, error: Exception) -> None:
        """Nothing more is given out."""
        self._closed = error
        self._buffer.clear()
        if self.keeper is not None:
            self.keeper.stop()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()
        while self._waiters:
            self._wake()

    def _leave(self) -> None:
        """Detaches."""
        self._connection.forget(self)
        link, self._link = self._link, None
        if link is not None and self._wire is not None:
            link.detach(closed=not self._durable)
            self._wire.touch()
        self._attached = False
        self._end_drain()

    def _end_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # --- from the connection -----------------------------------------------------------------------------

    def attach(self, wire: Wire, session: Any) -> None:
        """The connection is there (again)."""
        self._wire = wire
        link = self._link = session.attach(
            self.name,
            False,
            source=self._source,
            target=self._target,
            snd_settle_mode=1 if self._presettled else 0,
        )
        link.context = self
        if self._connection.offers(CAPABILITY) and not self._presettled:
            link.keep_tags()
        wire.touch()

    def lost(self) -> None:
        """The connection is lost, and the broker delivers what came by it again."""
        self._wire = self._link = None
        self._attached = False
        self._outcome = None
        self._buffer.clear()
        if self.keeper is not None:
            self.keeper.stop()
        if self._unsubscribed is not None and not self._unsubscribed.done():
            text = f"{self.address}: the connection was lost before the broker had ended the subscription"
            self._unsubscribed.set_exception(LostError(text))
        self._end_drain()
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
        found = link.attach.source
        if self._source.filter and not self._filtered(found):
            return
        if self.keeper is not None and not self._connection.offers(CAPABILITY):
            text = (
                f"{self._what}: expected a broker that renews locks ({CAPABILITY}), and "
                f"{self._connection.product or 'this one'} does not: leave renew_for out"
            )
            self.refuse(LinkError(text, conditions.NOT_IMPLEMENTED))
            return
        self._attached = True
        if self._source.dynamic and isinstance(found, Source):
            # The broker made a node for it, of another name each time (2.6.3).
            self.address = str(found.address)
        if not self._opened.done():
            self._opened.set_result(None)
        self._taken = 0
        link.grant(self._window or self._granted)
        self._connection.link_attached(self)
        assert self._wire is not None
        self._wire.touch()

    def _filtered(self, source: Any) -> bool:
        """Whether the broker applies all filters; it leaves those out that it does not have (3.5.3)."""
        applied = (source.filter or {}) if isinstance(source, Source) else {}
        missing = [str(name) for name in self._source.filter or () if name not in applied]
        if missing:
            text = (
                f"{self._what}: expected a broker that filters by {', '.join(missing)}, "
                "and this one does not: choose among what arrives with `select`, or leave the filter out"
            )
            self.refuse(LinkError(text, conditions.NOT_IMPLEMENTED))
        return not missing

    def detached(self, error: AmqpError | None) -> None:
        if self._unsubscribed is not None:
            if self._unsubscribed.done():
                return
            if error is None:
                self._unsubscribed.set_result(None)
            else:
                what = f"the subscription of {self.address} was not ended"
                self._unsubscribed.set_exception(link_error(what, error))
            return
        self._link = None
        self._attached = False
        self._outcome = None
        self._buffer.clear()
        if self.keeper is not None:
            self.keeper.stop()
        self.on_lost()
        if self._closed is not None:
            self._leave()
            return
        self._connection.link_lost(self, self._what, error)

    def refuse(self, error: LinkError) -> None:
        """The broker will not have it."""
        self._end(error)

    def heard(self, event: events.Event) -> None:
        if self._closed is not None:
            # They came while it is drained, and are released with the rest.
            if event.link.credit <= 0:  # type: ignore[attr-defined]
                self._end_drain()
        elif isinstance(event, events.Transfers):
            link = event.link
            number = event.first_delivery_id
            settled = event.settled
            tags = event.tags or repeat(b"", len(event.payloads))
            came = [
                Delivery(self, link, number, payload, settled, tag)
                for number, (payload, tag) in enumerate(zip(event.payloads, tags, strict=True), number)
            ]
            self._buffer.extend(came)
            if self.keeper is not None and not settled:
                self.keeper.came(came)
            if not self._window:
                self._granted = max(0, self._granted - len(event.payloads))
            if self._waiters:
                self._wake()

    def flush(self) -> None:
        """Sends outcomes that were gathered, and credit for what the application received."""
        link = self._link
        if link is None:
            return
        if self._outcome is not None:
            link.settle(self._first, self._last, self._outcome)
            self._outcome = None
        if self._taken << 1 >= self._window > 0 and self._closed is None:
            self._taken = 0
            link.grant(max(0, self._window - len(self._buffer)))


def _nothing() -> None:
    """Nobody wants to know."""
