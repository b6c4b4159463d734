"""A link that sends to a connection point: its messages are forwarded to a listener, and not stored.

Credit and outcomes are those of the listener. The client's credit is the sum of the credit of listeners
(GRANT), without a window of the frontend. If the shard is lost, messages without an outcome are released: the
listener may have received them, but its outcome will never arrive.
"""

from array import array
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.frontend.links.incoming import SenderLink
from lightrail.frontend.links.outcomes import decode_outcome, rejected
from lightrail.wire.bodies import ProducerOpen, Refusal, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, enqueue, frame

if TYPE_CHECKING:
    from lightrail.shard_client.owners.owner import Owner


class Passing:
    """A batch that was sent to a listener."""

    __slots__ = ("count", "first_id", "open", "settled", "size")

    def __init__(self, first_id: int, count: int, size: int, settled: bool) -> None:
        self.first_id = first_id
        self.count = count
        self.size = size
        self.settled = settled
        self.open = count
        """Number of messages without an outcome."""


@dataclass(slots=True, eq=False, repr=False)
class RelayLink(SenderLink):
    """One incoming link (the client sends) bound to a connection point."""

    _owner: "Owner"
    _: KW_ONLY
    name: str
    label: str = ""
    _sent: int = 0
    """Messages that were received over the lifetime of the link."""
    _base: int = 0
    """Messages that were received before the last opening at the shard, which counts from there."""
    _limit: int = 0
    _next: int = 1
    _passing: dict[int, Passing] = field(default_factory=dict)

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Sends a batch to the shard as one frame."""
        payloads = event.payloads
        count = len(payloads)
        durable, priority, expires = self._attributes(event, now_ms)
        ends = array("I", accumulate(map(len, payloads)))
        size = ends[-1]
        number = self._next
        self._next = number + 1
        self._sent += count
        self._passing[number] = Passing(event.first_delivery_id, count, size, event.settled)
        self._counts.messages_received += count
        self._counts.message_bytes_received += size
        self._intake.received(self._connection, size)
        self._owner.post(
            enqueue(
                self.number,
                self._owner.epoch,
                number,
                ends.tobytes(),
                payloads,
                durable=durable,
                afresh=True,
                priority=priority,
                expires_at_ms=expires,
                message_format=event.message_format,
                size=size,
            )
        )

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this relay at the shard; releases messages without an outcome."""
        for number in list(self._passing):
            self._end(number, self._not_stored)
        self._base = self._limit = self._sent
        if self._attached and not self._closed and self._link.credit:
            self._link.grant(0)
            self._connection.touch()
        if self._closed:
            return
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                body=ProducerOpen(self.name, relay=True, label=self.label).encode(),
            )
        )

    def ready(self) -> None:
        """The shard has opened the relay: answers the attach; a listener will grant credit."""
        if not self._closed and not self._attached:
            self._attached = True
            self._connection.links.accept_incoming(self._link)
            self._grant()

    def granted(self, limit: int) -> None:
        """Listeners accept messages numbered below `limit`, counted since the opening at the shard."""
        self._limit = self._base + limit
        self._grant()

    def outcome(self, number: int, first: int, count: int, code: int, detail: SettleDetail) -> None:
        """A listener's outcome for some messages of a batch."""
        batch = self._passing.get(number)
        if batch is None:
            return
        self._settle(batch.first_id + first, count, decode_outcome(code, detail), batch.settled)
        counts = self._counts
        if code == OutcomeCode.ACCEPTED:
            counts.messages_accepted += count
        else:
            counts.messages_refused += count
        batch.open -= count
        if batch.open <= 0:
            del self._passing[number]
            self._answered(batch)

    def answered(self, number: int, count: int) -> None:
        """A listener accepted whole batches."""
        for each in range(number, number + count):
            self._end(each, ACCEPTED)

    def refused(self, number: int, refusal: Refusal) -> None:
        """The shard could not forward a batch to a listener."""
        self._end(number, rejected(refusal.condition, refusal.description))

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses this relay, or has closed it."""
        for number in list(self._passing):
            self._end(number, self._not_stored)
        self._lose(refusal)

    def timed_out(self) -> None:
        """The shard is lost for too long: releases messages without an outcome."""
        for number in list(self._passing):
            self._end(number, self._not_stored)
        self._limit = self._sent
        self._grant()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link has ended: outcomes are no longer needed."""
        if not self._closed:
            self._closed = True
            for number in list(self._passing):
                self._end(number, self._not_stored)
            self._owner.close_producer(self.number)

    def _grant(self) -> None:
        if not self._attached or self._closed or self._frontend.stopping:
            return
        credit = max(0, self._limit - self._sent)
        if credit != self._link.credit:
            self._link.grant(credit)
            self._connection.touch()

    def _end(self, number: int, state: Any) -> None:
        batch = self._passing.pop(number, None)
        if batch is None:
            return
        # Some messages may have their outcomes already; the engine skips settled ones.
        self._settle(batch.first_id, batch.count, state, batch.settled)
        counts = self._counts
        if state is ACCEPTED:
            counts.messages_accepted += batch.open
        else:
            counts.messages_refused += batch.open
        self._answered(batch)

    def _settle(self, first: int, count: int, state: Any, settled: bool) -> None:
        if not settled and not self._closed:
            (self._link.settle if state is ACCEPTED else self._link.answer)(first, first + count - 1, state)
            self._connection.touch()

    def _answered(self, batch: Passing) -> None:
        self._intake.answered(self._connection, batch.size)
