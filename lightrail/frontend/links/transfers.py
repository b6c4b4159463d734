"""A link that sends to a queue: sends its batches to the shard, and handles the answers."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, ClassVar

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.survey import survey
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.batched import BATCHED
from lightrail.frontend.links.incoming import IncomingLink, header_attributes
from lightrail.frontend.links.outcomes import rejected
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.shard_client.sending.window import SendWindow
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import Kind, enqueue, frame

if TYPE_CHECKING:
    from lightrail.shard_client.owners.owner import Owner


@dataclass(slots=True, eq=False, repr=False)
class SentBatch:
    """Messages that were sent to the shard in one frame and are not answered yet."""

    part: bytes
    first_id: int
    count: int
    size: int
    settled: bool
    ids: int
    """Number of delivery-ids from `first_id` on that have the outcome of these messages: that of the
    messages, for a transfer of batched messages (batched.py) 1, or 0 unless this is its last batch."""
    is_part: bool
    """Whether these are some messages of one transfer that is several frames: the others may be stored."""


@dataclass(slots=True, eq=False, repr=False)
class ProducerLink(IncomingLink):
    """One incoming link (the client sends) bound to a queue."""

    _owner: "Owner"
    _: KW_ONLY
    queue: str
    label: str = ""
    client_link: str = ""
    _window: SendWindow[SentBatch] = field(default_factory=SendWindow)
    _is_held: bool = False
    """Whether the credit for the next answered batches is held."""

    checks: ClassVar[bool] = False
    """Whether `refusal` refuses messages."""

    # --- from the client -------------------------------------------------------------------------------

    def refusal(self, event: Transfers) -> ConditionError | None:
        """Why messages are not for the queue; None if they are."""
        return None

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Sends a batch to the shard as one frame, or one per priority if the queue orders by priority."""
        if event.message_format == BATCHED:
            self._unpack(event, now_ms)
        elif event.mixed and self._frontend.directory.get(self.queue).policy["priorities"] > 1:
            for part in _by_priority(event):
                self._send(part, now_ms)
        else:
            self._send(event, now_ms)

    def _unpack(self, event: Transfers, now_ms: int) -> None:
        """Sends the messages of batched transfers, each transfer as one frame that is stored as a whole.

        A transfer whose messages differ in durability, expiry or priority is several frames. A shard that
        refused one frame refuses those behind it, so the outcome of the last frame is that of the transfer.
        """
        by_priority = self._frontend.directory.get(self.queue).policy["priorities"] > 1
        for found in self._unpacked(event, now_ms, by_priority=by_priority):
            for run in found:
                self._send(run.event, now_ms, int(run.is_last), is_part=len(found) > 1)

    def _send(self, event: Transfers, now_ms: int, ids: int | None = None, *, is_part: bool = False) -> None:
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
        window = self._window
        part = enqueue(
            self.number,
            self._owner.epoch,
            window.next,
            ends.tobytes(),
            blob,
            durable=durable,
            afresh=not window,
            priority=PRIORITY_MIXED if event.mixed else priority,
            expires_at_ms=expires,
            message_format=event.message_format,
            size=size,
            whole=ids is not None,
        )
        ids = count if ids is None else ids
        sent = SentBatch(part, event.first_delivery_id, count, size, event.settled, ids, is_part)
        window.add(window.next, sent)
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
                number=self._window.next,
                body=self._opening().encode(),
            )
        )
        self._repeat_all()
        if self._closed:
            self._abandon()
        self._window.mark_sent()
        self._free_credit()
        self._counts.batches_repeated += len(self._window)

    def _opening(self) -> ProducerOpen:
        """The options with which this producer is opened."""
        return ProducerOpen(
            self.queue,
            label=self.label,
            client_link=self.client_link,
            steals=not self._attached,
            sent_below=self._window.sent_below,
        )

    def _repeat_all(self) -> None:
        """Sends all unanswered batches again."""
        for batch in self._window:
            self._repeat(batch)

    def _repeat(self, batch: SentBatch) -> None:
        """Sends an unanswered batch again."""
        self._owner.post(batch.part)

    def ready(self) -> None:
        """The shard has opened the producer: answers the client's attach, and grants the first credit."""
        self._attach()

    def answered(self, number: int, count: int) -> None:
        """The batches number .. number+count-1 are stored: accepted."""
        batches = self._window.answer_run(number, count)
        accepted = 0
        size = 0
        first = last = -1
        for batch in batches:
            accepted += batch.count
            size += batch.size
            if batch.settled or self._closed or not batch.ids:
                continue
            if first >= 0 and batch.first_id == last + 1:
                last = last + batch.ids
                continue
            if first >= 0:
                self._link.settle(first, last, ACCEPTED)
            first = batch.first_id
            last = first + batch.ids - 1
        if first >= 0:
            self._link.settle(first, last, ACCEPTED)
        self._counts.messages_accepted += accepted
        if self._is_held:
            self._is_held = False
            self._keep_credit(accepted)
        self._done(len(batches), accepted, size)

    def credit_held(self) -> None:
        """See Producer."""
        self._is_held = True

    def credit_freed(self, count: int) -> None:
        """See Producer."""
        self._free_credit(count)

    def refused(self, number: int, refusal: Refusal) -> None:
        """A batch could not be stored, or only its first messages: rejects the others."""
        batch = self._window.answer(number)
        if batch is None:
            return
        accepted = min(refusal.accepted, batch.count)
        if not batch.settled and not self._closed:
            done = accepted if batch.ids == batch.count else 0
            first, end = batch.first_id + done, batch.first_id + batch.ids
            if done:
                self._link.settle(batch.first_id, first - 1, ACCEPTED)
            if first < end:
                self._link.answer(first, end - 1, rejected(refusal.condition, refusal.description))
        self._counts.messages_accepted += accepted
        self._counts.messages_refused += batch.count - accepted
        self._hold_back(refusal)
        self._done(1, batch.count, batch.size)

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses this producer, or has closed it.

        Where the link goes on, because it has other producers, the unanswered messages are rejected.
        """
        while self.shared is not None and self._window:
            self.refused(self._window.first, refusal)
        self._window.clear()
        self._end(refusal)

    # --- while no shard is connected -------------------------------------------------------------------

    def disconnected(self) -> None:
        """See Producer."""
        self._window.mark_sent()

    def timed_out(self) -> None:
        """Settles unanswered messages: as released if no shard can have stored them.

        There is no credit until the shard serves again. Messages that were sent settled still wait, since
        they have no outcome; so do those of a client that has disconnected.
        """
        if self._closed:
            return
        window = self._window
        batches = count = size = 0
        for number, batch in window.take(lambda batch: not batch.settled):
            batches += 1
            count += batch.count
            size += batch.size
            unknown = window.may_be_stored(number) or batch.is_part
            if batch.ids:
                last = batch.first_id + batch.ids - 1
                self._link.answer(batch.first_id, last, self._maybe_stored if unknown else self._not_stored)
        self._counts.messages_refused += count
        self._wait()
        if batches:
            self._done(batches, count, size)

    def reconnected(self) -> None:
        """See Producer."""
        self._go_on_after_wait()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link has ended. Its messages are still sent to the shard; then the producer is closed.

        They are stored if there is room: without a link, a later outcome can't be sent.
        """
        self._closed = True
        if self._window:
            self._abandon()
        else:
            self._owner.close_producer(self.number)

    def _abandon(self) -> None:
        self._owner.post(frame(Kind.PRODUCER_ABANDON, link=self.number))

    def _done(self, batches: int, count: int, size: int) -> None:
        self._give(batches, count, size)
        if self._closed and not self._window:
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
