"""Tests of applications: a bus in memory, with a clock that the test advances, and records of messages.

async with TestBus(bus) as test:
    await test.publish(OrderPlaced(7))
    handled = await test.consumed(OrderPlaced)
    invoice = await test.published(Invoice, where=lambda invoice: invoice.order == 7)
    await test.advance(60)
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lightrail.bus.bus import Bus
from lightrail.bus.consumer import Handled, Outcome
from lightrail.bus.messages import Kind, MessageType, Scheduled, Sending, message_type
from lightrail.bus.typed import converter
from lightrail.transport import Broker, Clock, Envelope, ManualClock, MemoryBroker

__all__ = ["TestBus"]

Message = TypeVar("Message")
TIMEOUT_S: Final = 5.0


class TestBus:
    """Runs a bus on queues in memory, and restores the bus's own broker after the block.

    Args:
        bus: with all its handlers; not started.
    """

    __test__ = False

    def __init__(self, bus: Bus) -> None:
        self.bus: Final = bus
        self.clock: Final = ManualClock()
        self.broker: Final = MemoryBroker(self.clock)
        self.handled: Final[list[Handled]] = []
        """All handled messages, in order."""
        self.sendings: Final[list[Sending]] = []
        """All messages that were sent or published, by the test and by handlers, in order."""
        self._changed = asyncio.Event()
        self._before: tuple[Broker, Clock] | None = None

    async def __aenter__(self) -> "TestBus":
        self._before = (self.bus.broker, self.bus.clock)
        self.bus.broker, self.bus.clock = self.broker, self.clock
        self.bus.on_handled(self._on_handled)
        self.bus.on_sent(self._on_sent)
        await self.bus.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.bus.stop()
        self.bus.forget(self._on_handled, self._on_sent)
        assert self._before is not None
        self.bus.broker, self.bus.clock = self._before

    # --- doing -------------------------------------------------------------------------------------------

    async def publish(self, event: Any, **options: Any) -> None:
        """See `Bus.publish`."""
        await self.bus.publish(event, **options)

    async def send(self, command: Any, **options: Any) -> None:
        """See `Bus.send`."""
        await self.bus.send(command, **options)

    async def request(self, request: Any, *answers: type[Message], **options: Any) -> Message:
        """See `Bus.request`."""
        return await self.bus.request(request, *answers, **options)

    async def schedule(self, message: Any, **options: Any) -> Scheduled:
        """See `Bus.schedule`."""
        return await self.bus.schedule(message, **options)

    async def advance(self, seconds: float) -> None:
        """Advances the clock, and returns when all messages that are due then are handled."""
        await self.idle()
        self.clock.advance(seconds)
        await self.idle()

    async def idle(self) -> None:
        """Returns when no message can be delivered now, no handler runs, and the outbox is empty."""
        async with asyncio.timeout(TIMEOUT_S):
            # Let the tasks of the bus run.
            while await self._works():  # noqa: ASYNC110
                await asyncio.sleep(0)
        # Tasks that wait for messages have run as well.
        for _ in range(3):
            await asyncio.sleep(0)

    # --- looking -----------------------------------------------------------------------------------------

    async def consumed(self, type: type[Message], where: Callable[[Message], bool] | None = None) -> Message:
        """Waits for a message that was handled, and returns it. Raises AssertionError without one."""
        found: Message = await self._found(
            lambda: (
                each.context.message
                for each in self.handled
                if each.outcome is Outcome.HANDLED
                and each.context is not None
                and isinstance(each.context.message, type)
            ),
            where,
            f"a handled {type.__name__}",
            lambda: [f"{each.type.name}: {each.outcome.value}" for each in self.handled],
        )
        return found

    async def published(self, type: type[Message], where: Callable[[Message], bool] | None = None) -> Message:
        """Waits for an event that was published, and returns it. Raises AssertionError without one."""
        return await self._sent(type, where, Kind.EVENT, "published")

    async def sent(self, type: type[Message], where: Callable[[Message], bool] | None = None) -> Message:
        """Waits for a command that was sent, and returns it. Raises AssertionError without one."""
        return await self._sent(type, where, Kind.COMMAND, "sent")

    async def failed(self, type: type[Message], where: Callable[[Message], bool] | None = None) -> Handled:
        """Waits for a message that became a dead letter, and returns the dead letter."""
        wanted = message_type(type)
        found: Handled = await self._found(
            lambda: (
                each
                for each in self.handled
                if each.type is wanted
                and each.outcome in (Outcome.FAILED, Outcome.NOT_READABLE, Outcome.SKIPPED)
            ),
            None if where is None else lambda each: each.context is not None and where(each.context.message),
            f"a failed {type.__name__}",
            lambda: [f"{each.type.name}: {each.outcome.value}" for each in self.handled],
        )
        return found

    def dead_letters(self, type: type) -> list[Envelope]:
        """Dead letters of all queues of a message type."""
        wanted: MessageType = message_type(type)
        ending = f"/{wanted.wire_name}/$dlq"
        return [
            envelope
            for name, queue in self.broker.queues().items()
            if name.endswith(ending)
            for envelope in queue.envelopes()
        ]

    # --- inside ------------------------------------------------------------------------------------------

    async def _sent(
        self, type: type[Message], where: Callable[[Message], bool] | None, kind: Kind, what: str
    ) -> Message:
        found: Message = await self._found(
            lambda: (
                each.value
                for each in self.sendings
                if each.type is not None and each.type.kind is kind and isinstance(each.value, type)
            ),
            where,
            f"a {type.__name__} that was {what}",
            lambda: [each.type.name for each in self.sendings if each.type is not None],
        )
        return found

    async def _found(
        self,
        candidates: Callable[[], Any],
        where: Callable[[Any], bool] | None,
        what: str,
        seen: Callable[[], list[str]],
    ) -> Any:
        while True:
            for each in candidates():
                if where is None or where(each):
                    return each
            self._changed.clear()
            busy = await self._works()
            try:
                async with asyncio.timeout(TIMEOUT_S if busy else 0.2):
                    await self._changed.wait()
            except TimeoutError:
                if not busy and await self._works():
                    continue
                found = ", ".join(seen()) or "nothing"
                raise AssertionError(f"expected {what}, found {found}") from None

    async def _works(self) -> bool:
        """Whether a message can be delivered now, a handler runs, or messages wait for the forwarder."""
        queues = self.broker.queues()
        if any(queues[name].is_busy for name in self.bus.queues if name in queues):
            return True
        return self.bus.store is not None and bool(await self.bus.store.next(1))

    def _on_handled(self, handled: Handled) -> None:
        self.handled.append(handled)
        self._changed.set()

    def _on_sent(self, sending: Sending) -> None:
        if sending.value is None and sending.type is not None:
            # A message of an outbox, which is stored as bytes.
            value = converter(sending.type.cls).load(self.bus.formats.read(sending.envelope).data)
            sending = dataclasses.replace(sending, value=value)
        self.sendings.append(sending)
        self._changed.set()
