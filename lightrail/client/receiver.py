"""Receivers: receive messages, by iteration, in batches, or chosen by the application."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import events
from lightrail.amqp.link import Link as EngineLink
from lightrail.amqp.performatives import AmqpError, Source, Target
from lightrail.amqp.session import Session
from lightrail.client import sources
from lightrail.client.delivery import Delivery
from lightrail.client.errors import ClosedError, LinkError, LostError, link_error
from lightrail.client.incoming import Incoming
from lightrail.client.keeper import CAPABILITY, Keeper
from lightrail.client.link import Link
from lightrail.client.message import Message
from lightrail.client.sources import NEVER, Handler
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire

CLOSE_S: Final = 5.0
"""How long a receiver that closes waits for messages on their way."""
CREDIT: Final = 100
"""Messages that the broker sends ahead to a receiver."""


class Receiver(Link):
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
        super().__init__(connection, address, name, presettled=presettled)
        self._source = source
        self._target = Target(address=target)
        self._incoming = Incoming(connection.loop, credit, self._touch)
        self._outcome: Any = None
        """Outcome of consecutive deliveries that is gathered in this turn."""
        self._first = self._last = 0
        self._durable = source.expiry_policy == NEVER
        """Whether the subscription outlives the link."""
        self._unsubscribed: asyncio.Future[None] | None = None
        """The broker's answer to the end of a durable subscription."""
        self._drained: asyncio.Future[None] | None = None
        """Done when the broker has sent all messages of the drain of a receiver that closes."""
        self.keeper: Keeper | None = None
        """Renews locks, with renew_for."""
        if renew_for:
            self.keeper = Keeper(connection.loop, self.renew, renew_for, self._locks_lost)
        self.on_lost: Callable[[], None] | None = None
        """Called when the link is lost, before it is attached again."""

    # --- for the application -----------------------------------------------------------------------------

    async def __aenter__(self) -> "Receiver":
        await self._enter()
        return self

    @property
    def what(self) -> str:
        return f"the receiver of {self.address or 'a dynamic node'}"

    def __aiter__(self) -> "Receiver":
        return self

    async def __anext__(self) -> Delivery:
        """The next message, when there is one. Ends when the receiver is closed."""
        while not self._incoming.buffer:
            if self._closed is not None:
                raise StopAsyncIteration if isinstance(self._closed, ClosedError) else self._closed
            await self._wait()
        return self._incoming.pop()

    async def receive(
        self,
        count: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - that nothing came in time is no error
    ) -> list[Delivery]:
        """Up to `count` received messages; without any, waits up to `timeout` seconds for one.

        Raises LinkError or ClosedError where the receiver ended.
        """
        incoming = self._incoming
        if not incoming.buffer:
            try:
                async with asyncio.timeout(timeout):
                    while not incoming.buffer:
                        if self._closed is not None:
                            raise self._closed
                        await self._wait()
            except TimeoutError:
                return []
        return [incoming.pop() for _ in range(min(count, len(incoming.buffer)))]

    def put_back(self, delivery: Delivery) -> None:
        """Makes a delivery the next one that `receive` returns.

        A delivery whose link was lost meanwhile is not put back: the broker delivers it again.
        """
        if self._closed is None and not delivery.settled and delivery.is_of(self._link):
            self._incoming.put_back(delivery)

    async def select(
        self,
        choose: Callable[[Message], Handler | None],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - that nothing came in time is no error
    ) -> bool:
        """Waits for a message that `choose` returns a handler for, and calls the handler with the delivery.

        A message without a handler stays in the queue for other receivers; this one does not receive it
        again. An awaitable result of the handler is awaited; then the message is accepted, unless the handler
        settled it. Where `choose` or the handler raises, the attempt fails, and the exception is raised here.

        Args:
            choose: returns the handler of a message, or None.
            timeout: seconds to wait for a message with a handler.

        Returns:
            Whether a handler was called.
        """
        self.refuse_to_lose()
        return await sources.select(self, choose, timeout)

    async def grant(self, count: int) -> None:
        """Grants credit for `count` more messages, to a receiver that was opened with a credit of 0.

        For applications that bound their unsettled messages: a window bounds those that they have not
        received. Unused credit is granted again after a loss; a negative count revokes as much of it as the
        broker has not used. Raises ValueError for a receiver with a window.
        """
        incoming = self._incoming
        sources.check_has_no_window(self.address, incoming.window)
        incoming.granted = max(0, incoming.granted + count)
        if self._link is not None and self._attached:
            self._link.grant(incoming.credit)
            assert self._wire is not None
            self._wire.touch()

    async def close(self) -> None:
        """Detaches; unsettled messages are released at once. A durable subscription stays: see `unsubscribe`.

        First the link is drained, for CLOSE_S at most: messages on their way at the end of a link count as
        failed deliveries.
        """
        if self._closed is not None:
            return
        self._connection.check_loop()
        error, link = ClosedError(f"{self.what} is closed"), self._link
        if link is None or not self._attached or self._presettled:
            self.end(error)
            return
        self.flush()
        self._stop(error)
        try:
            if link.credit > 0 and link.grant(link.credit, drain=True):
                self._drained = self._connection.loop.create_future()
                assert self._wire is not None
                self._wire.touch()
                async with asyncio.timeout(CLOSE_S):
                    await self._drained
        except TimeoutError:
            pass
        finally:
            self.flush()
            if link is self._link:
                self._release(link)
            self._leave()

    def _release(self, link: EngineLink) -> None:
        """Releases deliveries without an outcome."""
        link.release_unsettled()

    async def unsubscribe(self) -> None:
        """Closes the receiver, and ends its durable subscription with its messages.

        Raises LinkError where the broker could not end it, LostError where the connection was lost before.
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
            self.end(ClosedError(f"{self.what} is closed"))

    # --- inside ------------------------------------------------------------------------------------------

    def refuse_to_lose(self) -> None:
        """Raises ClientError where the broker drops messages that a receiver passes over."""
        sources.check_keeps_passed_over(self._connection, self.address)

    async def _wait(self) -> None:
        self._connection.check_loop()
        await self._incoming.wait()

    async def renew(self, deliveries: Sequence[Delivery]) -> list[float | None]:
        """Renews locks; see Locks.renew.

        Deliveries whose lock has expired can't be settled any more, and `receive` does not return them.
        """
        link = self._link
        if link is None or any(each._link is not link for each in deliveries):
            raise LostError(f"{self.address}: the link was lost, and its messages are delivered again")
        locked = await self._connection.locks.renew(self, [each._tag for each in deliveries])
        for delivery, seconds in zip(deliveries, locked, strict=True):
            if seconds == 0 and not delivery.settled:
                delivery.lose()
                self._incoming.remove(delivery)
        return locked

    def _locks_lost(self, count: int, why: str) -> None:
        text = f"the locks of {count} messages expired, and these are delivered again"
        self._connection.report("lock-lost", self.address or "", f"{text}: {why}" if why else text)

    def settle(self, link: EngineLink, number: int, state: Any) -> None:
        """Settles a delivery, at the end of this turn."""
        self._check_link(link)
        assert self._wire is not None
        if self._outcome is not None:
            if state is self._outcome and number == self._last + 1:
                self._last = number
                return
            link.settle(self._first, self._last, self._outcome)
        self._outcome = state
        self._first = self._last = number
        self._wire.touch(self)

    def flush_outcomes(self, link: EngineLink) -> None:
        """Sends outcomes of a link now, ahead of other links. Raises LostError after its loss."""
        self._check_link(link)
        self.flush()

    def _check_link(self, link: EngineLink) -> None:
        self._connection.check_loop()
        if link is not self._link or self._wire is None:
            raise LostError(
                f"{self.address}: the connection that the message came by was lost, and its outcome can't "
                "reach the broker any more, which delivers it again"
            )

    def end(self, error: Exception) -> None:
        if self._closed is not None:
            self._leave()
            return
        self.flush()
        self._stop(error)
        self._leave()

    def _stop(self, error: Exception) -> None:
        """Ends `receive` for the application."""
        self._closed = error
        self._incoming.buffer.clear()
        if self.keeper is not None:
            self.keeper.stop()
        self._fail_opening(error)
        self._incoming.wake_all()

    def _leave(self) -> None:
        """Detaches."""
        self._connection.forget(self)
        link, self._link = self._link, None
        if link is not None and self._wire is not None:
            link.detach(closed=not self._durable)
            self._wire.touch()
        self._attached = False
        self._end_drain()

    def _drop(self) -> None:
        """The link was lost: the broker delivers its messages again."""
        self._attached = False
        self._outcome = None
        self._incoming.buffer.clear()
        if self.keeper is not None:
            self.keeper.stop()

    def _end_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # --- from the connection -----------------------------------------------------------------------------

    def attach(self, wire: "Wire", session: Session) -> None:
        """Attaches, and asks for delivery-tags, by which locks are renewed."""
        self._wire = wire
        mode = 1 if self._presettled else 0
        link = self._link = session.attach(
            self.name, False, source=self._source, target=self._target, snd_settle_mode=mode
        )
        link.context = self
        if self._connection.offers(CAPABILITY) and not self._presettled:
            link.keep_tags()
        wire.touch()

    def lost(self) -> None:
        """Drops received messages, which the broker delivers again."""
        self._wire = self._link = None
        self._drop()
        if self._unsubscribed is not None and not self._unsubscribed.done():
            text = f"{self.address}: the connection was lost before the broker had ended the subscription"
            self._unsubscribed.set_exception(LostError(text))
        self._end_drain()
        if self.on_lost is not None:
            self.on_lost()

    # --- from the engine ---------------------------------------------------------------------------------

    def attached(self) -> None:
        link = self._link
        if link is None or link.attach is None or link.attach.source is None:
            # The broker's detach follows at once, with the reason (2.6.3).
            return
        found = link.attach.source
        missing = sources.unmet(self._connection, self._source, found, renews=self.keeper is not None)
        if missing:
            self.end(LinkError(f"{self.what}: {missing}", conditions.NOT_IMPLEMENTED))
            return
        self._attached = True
        if self._source.dynamic and isinstance(found, Source):
            # The broker makes a node with another name for each attach (2.6.3).
            self.address = str(found.address)
        self._open()
        self._incoming.received = 0
        link.grant(self._incoming.credit)
        self._connection.link_attached(self)
        assert self._wire is not None
        self._wire.touch()

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
        self._drop()
        if self.on_lost is not None:
            self.on_lost()
        if self._closed is not None:
            self._leave()
            return
        self._connection.link_lost(self, self.what, error)

    def handle(self, event: events.Event) -> None:
        if self._closed is not None:
            # Messages of the drain are released with the rest.
            if event.link.credit <= 0:  # type: ignore[attr-defined]
                self._end_drain()
        elif isinstance(event, events.Transfers):
            link, number, settled = event.link, event.first_delivery_id, event.settled
            tags = event.tags or repeat(b"", len(event.payloads))
            deliveries = [
                Delivery(self, link, number, payload, settled, tag)
                for number, (payload, tag) in enumerate(zip(event.payloads, tags, strict=True), number)
            ]
            if self.keeper is not None and not settled:
                self.keeper.add(deliveries)
            self._incoming.add(deliveries)

    def flush(self) -> None:
        """Sends gathered outcomes, and credit for messages that the application received."""
        link = self._link
        if link is None:
            return
        if self._outcome is not None:
            link.settle(self._first, self._last, self._outcome)
            self._outcome = None
        incoming = self._incoming
        if incoming.needs_refill and self._closed is None:
            incoming.received = 0
            link.grant(incoming.credit)
