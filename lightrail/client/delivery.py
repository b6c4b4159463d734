"""Deliveries: a received message, and its outcome (messaging 3.4)."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.link import Link
from lightrail.amqp.link_endpoint import encode_state
from lightrail.amqp.performatives import AmqpError, Modified, Rejected
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.client.errors import ClosedError, LostError
from lightrail.client.message import Message

FAILED: Final = Modified(delivery_failed=True)
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""Annotation: the time from which on a message may be delivered."""
DISPOSITION_BYTES: Final = 64
"""Bytes of a disposition's frame without the state, at most."""
LOCK_RAN_OUT: Final = (
    "the lock of the message has expired, and the broker delivers it again: set a longer lock_duration "
    "for its queue, renew the lock in time, or receive with renew_for"
)


class LockKeeper(Protocol):
    """Renews the locks of deliveries."""

    def settled(self, delivery: "Delivery") -> None:
        """Stops renewing the lock of a delivery that has an outcome."""


class DeliveryReceiver(Protocol):
    """The receiver as its deliveries use it."""

    @property
    def keeper(self) -> LockKeeper | None:
        """Renews the locks of deliveries; None if the receiver does not."""

    def settle(self, link: Link, number: int, state: Any) -> None:
        """Sends an outcome. Raises LostError after the loss of the link."""

    def flush_outcomes(self, link: Link) -> None:
        """Sends outcomes of a link now. Raises LostError after the loss of the link."""

    async def renew(self, deliveries: "Sequence[Delivery]") -> list[float | None]:
        """Renews locks; see Locks.renew."""


class Delivery:
    """A received message, until it is settled."""

    __slots__ = ("_link", "_number", "_receiver", "_tag", "lost", "message", "settled")

    def __init__(
        self,
        receiver: DeliveryReceiver,
        link: Link,
        number: int,
        payload: bytes,
        settled: bool,
        tag: bytes = b"",
    ) -> None:
        self._receiver = receiver
        self._link = link
        self._number = number
        self._tag = tag
        self.lost = False
        """Whether its lock was found to have expired: the broker delivers the message again."""
        self.message = Message.decode(payload)
        self.settled = settled
        """Whether it has an outcome, or was sent settled."""

    @property
    def body(self) -> Any:
        """The body of its message."""
        return self.message.body

    def is_of(self, link: Link | None) -> bool:
        """Whether it was received on this link, and can still be settled there."""
        return self._link is link and not self.lost

    async def accept(self) -> None:
        """Settles a processed message: the broker deletes it.

        Raises LostError: the message is delivered again.
        """
        self.settle(ACCEPTED)

    async def release(self) -> None:
        """Releases a message that was not processed: any receiver may get it.

        Raises LostError: the message is delivered again.
        """
        self.settle(RELEASED)

    async def fail(self) -> None:
        """Counts a failed attempt: redelivered until the queue's max_delivery_count, then a dead letter.

        Raises LostError: the message is delivered again, whatever its count.
        """
        self.settle(FAILED)

    async def modify(
        self,
        *,
        delivery_failed: bool = False,
        undeliverable_here: bool = False,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        """As `release`; may count a failed attempt, exclude this receiver, add annotations (3.4.5)."""
        changed = {Symbol(key): value for key, value in (annotations or {}).items()}
        state = Modified(
            delivery_failed=delivery_failed,
            undeliverable_here=undeliverable_here,
            message_annotations=changed or None,
        )
        self._settle_if_it_fits(state)

    async def reject(
        self,
        condition: str = "amqp:internal-error",
        description: str = "",
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Rejects a message that can't be processed: it becomes a dead letter, if the queue keeps them."""
        error = AmqpError(
            condition=Symbol(condition),
            description=description or None,
            info={Symbol(key): value for key, value in info.items()} if info else None,
        )
        self._settle_if_it_fits(Rejected(error=error))

    async def dead_letter(
        self, reason: str, description: str = "", annotations: Mapping[str, Any] | None = None
    ) -> None:
        """As `reject`, with a reason by which the application finds dead letters.

        LightRail keeps reason and description in the annotations x-opt-dead-letter-condition and
        -description, and adds further annotations whose names begin with x-opt-.

        Raises LostError: the message is delivered again.
        """
        await self.reject(reason, description, annotations)

    async def defer(self, seconds: float, *, delivery_failed: bool = False) -> None:
        """Makes the broker deliver the message again after a time; for queues with the policy `delay`.

        Args:
            seconds: from now until the delivery.
            delivery_failed: whether this counts as an attempt of the queue's max_delivery_count.

        Raises LostError: the message is delivered again at once.
        """
        if seconds < 0:
            raise ValueError(f"expected 0 seconds or more, found {seconds}")
        due_ms = round((time.time() + seconds) * 1000)
        await self.modify(delivery_failed=delivery_failed, annotations={DELIVERY_TIME: Timestamp(due_ms)})

    async def renew(self) -> float | None:
        """Renews the lock of the message, if its queue has the policy `lock_duration`; for LightRail.

        Without that policy a message is locked until it is settled or the link ends.
        `Connection.receiver(renew_for=...)` renews locks automatically.

        Returns:
            Seconds for which the message is locked from now on; None if its lock does not expire.

        Raises:
            ClientError: the broker does not renew locks.
            LostError: the lock expired, or the connection was lost: the message is delivered again.
            ManagementError: the lock was not renewed; with status 503: try again.
            ClosedError: the message has an outcome.
        """
        if self.settled:
            raise ClosedError("the message has an outcome already")
        if self.lost:
            raise LostError(LOCK_RAN_OUT)
        [seconds] = await self._receiver.renew([self])
        if seconds == 0:
            if self.settled:
                raise ClosedError("the message has an outcome already")
            raise LostError(LOCK_RAN_OUT)
        return seconds

    def settle(self, state: Any) -> None:
        """Settles the delivery with any delivery state of the engine."""
        if self.settled:
            raise ClosedError("the message has an outcome already")
        if self.lost:
            raise LostError(LOCK_RAN_OUT)
        self._receiver.settle(self._link, self._number, state)
        self.settled = True
        if self._receiver.keeper is not None:
            self._receiver.keeper.settled(self)

    def _settle_if_it_fits(self, state: Any) -> None:
        """Raises ValueError for a state that is larger than a frame of the broker may be (2.3.1)."""
        most = self._state_bytes_max()
        size = len(encode_state(state))
        if size > most:
            raise ValueError(f"expected an outcome of at most {most} encoded bytes, found {size}")
        self.settle(state)

    def _state_bytes_max(self) -> int:
        return self._link.session.connection.peer_max_frame_size - DISPOSITION_BYTES

    def lose(self) -> None:
        """Marks a delivery whose lock expired, and settles it in the engine; the broker ignores that."""
        self.lost = True
        with suppress(LostError):
            self._receiver.settle(self._link, self._number, RELEASED)

    def __repr__(self) -> str:
        return f"Delivery({self.message!r})"
