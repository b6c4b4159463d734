"""A link that sends to a queue: its batches on the way to the shard, and their answers."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import AmqpError, Modified, Rejected
from lightrail.amqp.survey import survey
from lightrail.amqp.types import Symbol
from lightrail.frontend.incoming import IncomingLink, said_by
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import Kind, enqueue, frame

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.wire.owner import Owner


FAILED: Final = Modified(delivery_failed=True)
"""The outcome of messages that a shard may have stored before it went away."""


class Batch:
    """What was sent to the shard and not yet answered."""

    __slots__ = ("count", "first_id", "part", "settled", "size")

    def __init__(self, part: bytes, first_id: int, count: int, size: int, settled: bool) -> None:
        self.part = part
        self.first_id = first_id
        self.count = count
        self.size = size
        self.settled = settled


class ProducerLink(IncomingLink):
    """One incoming link (the client sends) bound to a queue."""

    __slots__ = ("_is_held", "_label", "_next", "_owner", "_said_to", "_unanswered", "queue")

    def __init__(
        self,
        connection: "ClientConnection",
        link: "Link",
        owner: "Owner",
        *,
        number: int,
        queue: str,
        label: str = "",
    ) -> None:
        super().__init__(connection, link, number)
        self.queue = queue
        self._label = label
        self._owner = owner
        self._next = 1
        self._is_held = False
        """The next answer frees no credit."""
        self._said_to = 0
        """Batches numbered below it may have reached a shard; of use only while none is there."""
        self._unanswered: dict[int, Batch] = {}

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """A batch came: it goes to the shard as one frame, or one for each priority where they count."""
        if event.mixed and self._connection.frontend.directory.get(self.queue).policy["priorities"] > 1:
            for part in _by_priority(event):
                self._send(part, now_ms)
        else:
            self._send(event, now_ms)

    def _send(self, event: Transfers, now_ms: int) -> None:
        blob: Sequence[bytes | memoryview]
        if event.pieces is None:
            blob = event.payloads
            ends = array("I", accumulate(map(len, blob)))
        else:
            blob = event.pieces
            ends = array("I", (sum(map(len, blob)),))
        count = len(ends)
        durable, priority, expires = self._attributes(event, now_ms)
        size = ends[-1]
        number = self._next
        self._next = number + 1
        part = enqueue(
            self.number,
            self._owner.epoch,
            number,
            ends.tobytes(),
            blob,
            durable=durable,
            afresh=not self._unanswered,
            priority=PRIORITY_MIXED if event.mixed else priority,
            expires_at_ms=expires,
            message_format=event.message_format,
            size=size,
        )
        self._unanswered[number] = Batch(part, event.first_delivery_id, count, size, event.settled)
        self._owner.post(part)
        self._take(count, size)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this producer at the shard and sends what was never answered, in order and unchanged."""
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                number=self._next,
                body=ProducerOpen(self.queue, label=self._label).encode(),
            )
        )
        for batch in self._unanswered.values():
            self._owner.post(batch.part)
        if self._closed:
            self._abandon()
        self._said_to = self._next
        self._free_credit()
        self._connection.frontend.counts.batches_repeated += len(self._unanswered)

    def ready(self) -> None:
        """The shard took the producer: the client's attach is answered and gets its first credit."""
        self._attach()

    def answered(self, number: int, count: int) -> None:
        """The batches number .. number+count-1 are where they have to be: accepted."""
        unanswered = self._unanswered
        before = len(unanswered)
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
        if self._is_held:
            self._is_held = False
            self._keep_credit(accepted)
        self._done(before - len(unanswered), accepted, size)

    def credit_held(self) -> None:
        """See Producer."""
        self._is_held = True

    def credit_freed(self, count: int) -> None:
        """See Producer."""
        self._free_credit(count)

    def refused(self, number: int, refusal: Refusal) -> None:
        """A batch could not be stored, or only its first messages: the rest is rejected, with the reason."""
        batch = self._unanswered.pop(number, None)
        if batch is None:
            return
        accepted = min(refusal.accepted, batch.count)
        if not batch.settled and not self._closed:
            first, end = batch.first_id + accepted, batch.first_id + batch.count
            if accepted:
                self._link.settle(batch.first_id, first - 1, ACCEPTED)
            if first < end:
                error = AmqpError(condition=Symbol(refusal.condition), description=refusal.description)
                self._link.settle(first, end - 1, Rejected(error=error))
        self._connection.frontend.counts.messages_accepted += accepted
        self._connection.frontend.counts.messages_refused += batch.count - accepted
        self._hold_back(refusal)
        self._done(1, batch.count, batch.size)

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this producer (any more)."""
        self._unanswered.clear()
        self._end(refusal)

    # --- while no shard is there -----------------------------------------------------------------------

    def away(self) -> None:
        """See Producer."""
        self._said_to = self._next

    def give_up(self) -> None:
        """What was sent and not answered is the client's again: released where no shard can have it. There is
        no credit until the shard is back. What was sent settled still waits: nobody could be told; so does
        what a client left behind when it went."""
        if self._closed:
            return
        batches = count = size = 0
        for number, batch in list(self._unanswered.items()):
            if batch.settled:
                continue
            del self._unanswered[number]
            batches += 1
            count += batch.count
            size += batch.size
            state = FAILED if number < self._said_to else RELEASED
            self._link.settle(batch.first_id, batch.first_id + batch.count - 1, state)
        self._connection.frontend.counts.messages_refused += count
        self._wait()
        if batches:
            self._done(batches, count, size)

    def back(self) -> None:
        """See Producer."""
        self._go_on_after_wait()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link is gone. What it sent still reaches the shard before the producer goes, and is
        stored if there is room for it: nobody is there any more who would know what came of it later.
        """
        self._closed = True
        if self._unanswered:
            self._abandon()
        else:
            self._owner.close_producer(self.number)

    def _abandon(self) -> None:
        self._owner.post(frame(Kind.PRODUCER_ABANDON, link=self.number))

    def _done(self, batches: int, count: int, size: int) -> None:
        self._give(batches, count, size)
        if self._closed and not self._unanswered:
            self._owner.close_producer(self.number)


def _by_priority(event: Transfers) -> Iterator[Transfers]:
    """The messages of a mixed event in runs of one priority, each with its header of the longest ttl."""
    first, id = 0, event.first_delivery_id
    payloads = event.payloads
    heads = [payload[: survey(payload).head_end] for payload in payloads]
    for _priority, run in groupby(heads, key=lambda head: said_by(head)[1]):
        some = list(run)
        last = first + len(some)
        yield Transfers(
            event.link,
            id + first,
            payloads[first:last],
            event.settled,
            event.message_format,
            max(some, key=lambda head: said_by(head)[2] or 0),
            event.absolute_expiry_ms,
        )
        first = last
