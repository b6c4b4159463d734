"""A link that sends to a queue: its batches on the way to the shard, their answers, and its credit.

Backpressure is the sum of three numbers that never exceeds the window: credit that is out, messages that
came and were not answered. A shard that is slow, full or away answers nothing, so nothing more is granted.
"""

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.sections import decode_header
from lightrail.amqp.types import Symbol
from lightrail.model import conditions, limits
from lightrail.wire.frames import Kind, enqueue, frame
from lightrail.wire.messages import ProducerOpen, Refusal
from lightrail.wire.shards import Producer

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.wire.shards import ShardPeer


class Batch:
    """What was sent to the shard and not yet answered."""

    __slots__ = ("count", "first_id", "part", "settled", "size")

    def __init__(self, part: bytes, first_id: int, count: int, size: int, settled: bool) -> None:
        self.part = part
        self.first_id = first_id
        self.count = count
        self.size = size
        self.settled = settled


class ProducerLink(Producer):
    """One incoming link (the client sends) bound to a queue of a shard."""

    __slots__ = (
        "_attached",
        "_closed",
        "_connection",
        "_head",
        "_head_attributes",
        "_held_back",
        "_label",
        "_link",
        "_mean_size",
        "_next",
        "_shard",
        "_unanswered",
        "_unanswered_bytes",
        "_unanswered_messages",
        "epoch",
        "queue",
    )

    def __init__(
        self,
        connection: "ClientConnection",
        link: "Link",
        shard: "ShardPeer",
        *,
        number: int,
        queue: str,
        epoch: int,
        label: str = "",
    ) -> None:
        self.number = number
        self.queue = queue
        self.epoch = epoch
        self._connection = connection
        self._label = label
        self._link = link
        self._shard = shard
        self._attached = False
        self._closed = False
        self._held_back = False
        self._next = 1
        self._unanswered: dict[int, Batch] = {}
        self._unanswered_messages = 0
        self._unanswered_bytes = 0
        self._mean_size = 1024.0
        self._head: bytes | None = None
        self._head_attributes: tuple[bool, int, int | None] = (False, 4, None)

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """A batch came: it goes to the shard as one frame."""
        payloads = event.payloads
        count = len(payloads)
        head = event.head
        if head != self._head:
            self._learn(head)
        durable, priority, ttl = self._head_attributes
        expires = 0
        if ttl is not None:
            expires = now_ms + ttl
        if event.absolute_expiry_ms is not None:
            # The earlier of both: whichever says that the message is of no more use (messaging 3.2.1, 3.2.4).
            expires = min(expires, event.absolute_expiry_ms) if expires else event.absolute_expiry_ms
            expires = max(expires, 1)
        ends = array("I", accumulate(map(len, payloads)))
        size = ends[-1]
        number = self._next
        self._next = number + 1
        part = enqueue(
            self.number,
            self.epoch,
            number,
            ends.tobytes(),
            payloads,
            durable=durable,
            afresh=not self._unanswered,
            priority=priority,
            expires_at_ms=expires,
            message_format=event.message_format,
            size=size,
        )
        self._unanswered[number] = Batch(part, event.first_delivery_id, count, size, event.settled)
        self._unanswered_messages += count
        self._unanswered_bytes += size
        # One byte more than there is: the mean of messages without any must not come near 0.
        self._mean_size += ((size + 1) / count - self._mean_size) * 0.25
        counts = self._connection.frontend.counts
        counts.messages_received += count
        counts.message_bytes_received += size
        self._connection.frontend.intake.took(self._connection, size)
        self._shard.post(part)
        if self._unanswered_bytes > limits.LINK_UNANSWERED_BYTES:
            self._take_back()

    def _take_back(self) -> None:
        """The messages are larger than those that the credit was meant for: what is left of it shrinks."""
        if self._link.credit > limits.LINK_CREDIT_MIN:
            self._link.grant(limits.LINK_CREDIT_MIN)
            self._connection.touch()

    def _learn(self, head: bytes) -> None:
        """The attributes that every message with this header section has; the engine has checked it."""
        header = decode_header(head)
        self._head = head
        self._head_attributes = (header.durable, header.priority, header.ttl)

    # --- from the shard --------------------------------------------------------------------------------

    def say_all(self) -> None:
        """Opens this producer at the shard and sends what was never answered, in order."""
        self._shard.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self.epoch,
                body=ProducerOpen(self.queue, label=self._label).encode(),
            )
        )
        for batch in self._unanswered.values():
            self._shard.post(batch.part)
        self._connection.frontend.counts.batches_repeated += len(self._unanswered)

    def ready(self) -> None:
        """The shard took the producer: the client's attach is answered and gets its first credit."""
        if self._closed or self._attached:
            return
        self._attached = True
        self._connection.accept_incoming(self._link)
        self._top_up()

    def answered(self, number: int, count: int) -> None:
        """The batches number .. number+count-1 are where they have to be: accepted."""
        unanswered = self._unanswered
        accepted = 0
        size = 0
        first = last = -1
        for key in range(number, number + count):
            batch = unanswered.pop(key, None)
            if batch is None:
                continue
            accepted += batch.count
            size += batch.size
            if batch.settled or self._closed:
                continue
            if first >= 0 and batch.first_id == last + 1:
                last = last + batch.count
                continue
            if first >= 0:
                self._link.settle(first, last, ACCEPTED)
            first = batch.first_id
            last = first + batch.count - 1
        if first >= 0:
            self._link.settle(first, last, ACCEPTED)
        self._connection.frontend.counts.messages_accepted += accepted
        self._done(accepted, size)

    def refused(self, number: int, refusal: Refusal) -> None:
        """One batch could not be stored: rejected, with the reason."""
        batch = self._unanswered.pop(number, None)
        if batch is None:
            return
        if not batch.settled and not self._closed:
            error = AmqpError(condition=Symbol(refusal.condition), description=refusal.description)
            self._link.settle(batch.first_id, batch.first_id + batch.count - 1, Rejected(error=error))
        self._connection.frontend.counts.messages_refused += batch.count
        if refusal.condition == conditions.RESOURCE_LIMIT_EXCEEDED and not self._held_back:
            # A full disk: the sender knows, and goes on at the pace of our asking.
            self._held_back = True
            self._connection.frontend.later(limits.REFUSED_PAUSE_MS, self._go_on)
        self._done(batch.count, batch.size)

    def _go_on(self) -> None:
        self._held_back = False
        if not self._closed:
            self._top_up()
            self._connection.touch()

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this producer (any more)."""
        self._forget()
        if not self._closed:
            self._closed = True
            self._connection.refuse_link(self._link, self._attached, refusal)

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link is gone. What it sent still reaches the shard before the producer goes."""
        self._closed = True
        if not self._unanswered:
            self._shard.close_producer(self.number)

    @property
    def unanswered(self) -> int:
        """Messages that came and have no answer yet."""
        return self._unanswered_messages

    def _done(self, count: int, size: int) -> None:
        self._unanswered_messages -= count
        self._unanswered_bytes -= size
        self._connection.frontend.intake.answered(self._connection, size)
        if not self._closed:
            self._top_up()
            self._connection.touch()
        elif not self._unanswered:
            self._shard.close_producer(self.number)

    def _forget(self) -> None:
        self._connection.frontend.intake.answered(self._connection, self._unanswered_bytes)
        self._unanswered.clear()
        self._unanswered_messages = self._unanswered_bytes = 0

    def _top_up(self) -> None:
        """Grants credit when at least half of the window is free: one flow for many messages."""
        if self._connection.frontend.stopping or self._held_back:
            return
        window = int(limits.LINK_UNANSWERED_BYTES / self._mean_size)
        window = max(limits.LINK_CREDIT_MIN, min(limits.LINK_CREDIT_MAX, window))
        if self._connection.frontend.counts.unanswered_bytes > limits.FRONTEND_UNANSWERED_BYTES:
            window = limits.LINK_CREDIT_MIN
        credit = window - self._unanswered_messages
        if credit - self._link.credit >= window >> 1:
            self._link.grant(credit)
