"""Messages that the AMQP transport has received, and their outcomes."""

from collections.abc import Awaitable, Mapping
from contextlib import suppress

from lightrail.client import Delivery, LostError
from lightrail.client.selecting import PASSED_OVER
from lightrail.transport.envelope import NO_HEADERS, Envelope, Header


class AmqpReceived:
    """A message that was received over AMQP."""

    __slots__ = ("delivery", "envelope")

    def __init__(self, envelope: Envelope, delivery: Delivery) -> None:
        self.envelope = envelope
        self.delivery = delivery

    @property
    def settled(self) -> bool:
        """Whether the message has an outcome, or its lock is known to have run out."""
        return self.delivery.settled or self.delivery.lost

    async def accept(self) -> None:
        """The broker deletes the message; where the link was lost meanwhile, it is delivered again."""
        await unless_lost(self.delivery.accept())

    async def release(self) -> None:
        """The message is delivered again, uncounted."""
        await unless_lost(self.delivery.release())

    async def fail(self, delay: float = 0.0) -> None:
        """The message is delivered again after so many seconds, counted."""
        if delay > 0:
            await unless_lost(self.delivery.defer(delay, delivery_failed=True))
        else:
            await unless_lost(self.delivery.fail())

    async def dead_letter(
        self, reason: str, description: str = "", notes: Mapping[str, Header] = NO_HEADERS
    ) -> None:
        """The message goes to the dead letters of its queue; other brokers than LightRail drop the notes."""
        await unless_lost(self.delivery.dead_letter(reason, description, notes))


def pass_over(delivery: Delivery) -> None:
    """Leaves a message in its queue, for other receivers."""
    with suppress(LostError):
        delivery.settle(PASSED_OVER)


async def unless_lost(settlement: Awaitable[None]) -> None:
    """Settles; a message whose link or lock was lost is delivered again, and has no outcome here."""
    with suppress(LostError):
        await settlement
