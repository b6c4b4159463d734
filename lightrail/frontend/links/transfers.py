"""A link that sends to a queue: its batches on the way to the shard, and their answers."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.survey import survey
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.context import LinkContext
from lightrail.frontend.links.incoming import IncomingLink, header_attributes
from lightrail.frontend.links.outcomes import FAILED
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import Kind, enqueue, frame

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.wire.owner import Owner


class Batch:
    """Messages that were sent to the shard in one frame and are not answered yet."""

    __slots__ = ("count", "first_id", "part", "settled", "size")

    def __init__(self, part: bytes, first_id: int, count: int, size: int, settled: bool) -> None:
        self.part = part
        self.first_id = first_id
        self.count = count
        self.size = size
        self.settled = settled


class ProducerLink(IncomingLink):
    """One incoming link (the client sends) bound to a queue."""

    __slots__ = ("_directory", "_is_held", "_label", "_next", "_owner", "_sent_below", "_unanswered", "queue")

    def __init__(
        self,
        connection: LinkContext,
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
        self._directory = connection.frontend.directory
        self._next = 1
        self._is_held = False
        """The credit for the next answered batches is held."""
        self._sent_below = 0
        """Batches numbered below it may have reached a shard; only used while no shard is connected."""
        self._unanswered: dict[int, Batch] = {}

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Sends a batch to the shard as one frame, or one per priority where the queue orders by it."""
        if event.mixed and self._directory.get(self.queue).policy["priorities"] > 1:
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
        """Opens this producer at the shard and repeats its unanswered batches, in order and unchanged."""
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
        self._sent_below = self._next
        self._free_credit()
        self._counts.batches_repeated += len(self._unanswered)

    def ready(self) -> None:
        """The shard has opened the producer: the client's attach is answered, with the first credit."""
        self._attach()

    def answered(self, number: int, count: int) -> None:
        """The batches number .. number+count-1 are stored: accepted."""
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
        self._counts.messages_accepted += accepted
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
        """A batch could not be stored, or only its first messages: the others are rejected."""
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
        self._counts.messages_accepted += accepted
        self._counts.messages_refused += batch.count - accepted
        self._hold_back(refusal)
        self._done(1, batch.count, batch.size)

    def gone(self, refusal: Refusal) -> None:
        """The shard refuses this producer, or has closed it."""
        self._unanswered.clear()
        self._end(refusal)

    # --- while no shard is there -----------------------------------------------------------------------

    def away(self) -> None:
        """See Producer."""
        self._sent_below = self._next

    def give_up(self) -> None:
        """Unanswered messages go back to the client: released where no shard can have stored them.

        There is no credit until the shard is back. Messages that came settled still wait, since they have no
        outcome to send; so do those of a client that has gone.
        """
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
            state = FAILED if number < self._sent_below else RELEASED
            self._link.settle(batch.first_id, batch.first_id + batch.count - 1, state)
        self._counts.messages_refused += count
        self._wait()
        if batches:
            self._done(batches, count, size)

    def back(self) -> None:
        """See Producer."""
        self._go_on_after_wait()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link has ended. Its messages still reach the shard before the producer is closed.

        They are stored if there is room: without a link, nobody could be told of an outcome later.
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
    for _priority, run in groupby(heads, key=lambda head: header_attributes(head)[1]):
        some = list(run)
        last = first + len(some)
        yield Transfers(
            event.link,
            id + first,
            payloads[first:last],
            event.settled,
            event.message_format,
            max(some, key=lambda head: header_attributes(head)[2] or 0),
            event.absolute_expiry_ms,
        )
        first = last
