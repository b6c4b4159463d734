"""What queue machines want done, done: effects become frames for frontends and records for the store."""

import logging
from array import array
from collections.abc import Callable
from typing import Final

from lightrail.journal import record
from lightrail.journal.record import CONTINUED, REWRITTEN, SPILLED, Delivered, Settle
from lightrail.model import limits
from lightrail.model.names import dead_letter_name
from lightrail.shard.dead_letters import dead_letter_batch
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.leaving import Leaving
from lightrail.shard.peers import Consumer
from lightrail.shard.queue import commands, effects
from lightrail.shard.queue.effects import Effect, Reason
from lightrail.shard.queue.runs import Run
from lightrail.shard.queues import Queue, Queues
from lightrail.shard.reading import Read
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import Kind, deliver, frame

log = logging.getLogger("lightrail.shard.performer")

JOURNAL_OUTCOME: Final = {
    Reason.ACCEPTED: record.Outcome.ACCEPTED,
    Reason.REJECTED: record.Outcome.REJECTED,
    Reason.EXPIRED: record.Outcome.EXPIRED,
    Reason.MAX_DELIVERY_COUNT: record.Outcome.DEAD_LETTERED,
    Reason.PURGED: record.Outcome.PURGED,
    Reason.REPLACED: record.Outcome.PURGED,
    Reason.CANCELLED: record.Outcome.PURGED,
    Reason.QUEUE_FULL: record.Outcome.DEAD_LETTERED,
    Reason.DISCARDED: record.Outcome.DISCARDED,
}

WAITS_SAMPLED_EVERY: Final = 8
"""Of so many slices that are delivered one is looked at, how long it has waited: 0.1 us for each of them."""


class Performer:
    """Performs effects in the order they come; what gathers here is taken by the engine once per step."""

    __slots__ = (
        "_counts",
        "_deliveries",
        "_queues",
        "_store",
        "_untold",
        "captured_bytes",
        "consumers",
        "damaged",
        "leaving",
        "messages_unsynced",
        "reading",
        "reads",
        "touched",
        "unwritten",
    )

    def __init__(self, queues: Queues, store: Store, counts: ShardCounts) -> None:
        self._queues = queues
        self._store = store
        self._counts = counts
        self.consumers: dict[int, Consumer] = {}
        """By their number in the machines."""
        self.damaged: set[int] = set()
        """Segments with bytes that could not be read back: the cleaner keeps its hands off them."""
        self._deliveries = 0
        self._untold = False
        """The store had no room for the last that was to be told."""
        self.touched: dict[Queue, None] = {}
        """Queues to dispatch in this step."""
        self.messages_unsynced = 0
        """Messages in records that wait for the next commit."""
        self.captured_bytes = 0
        """Bytes of transient messages of captured queues in records that wait for the next commit."""
        self.leaving = Leaving(self, store, queues.work)
        """Messages that left their queues all at once."""
        self.reads: list[Read] = []
        """To be handed to the reader thread."""
        self.reading: dict[int, int] = {}
        """Reads under way, by segment: the cleaner keeps its hands off those."""
        self.unwritten: list[tuple[Queue, effects.DeadLetter]] = []
        """Dead letters that the store had no room for: in no queue now, on disk still in their own."""

    def perform(self, queue: Queue, found: list[Effect], now_ms: int) -> None:
        """Turns what a machine wants done into frames and records, in its order."""
        row: list[effects.Deliver] = []
        for effect in found:
            if isinstance(effect, effects.Deliver):
                run = effect.run
                is_small = (
                    run.last - run.first <= limits.JOINED_SLICE_MESSAGES
                    and run.batch.size <= limits.JOINED_SLICE_BYTES
                )
                if row and not (is_small and follows(row, effect)):
                    self._deliver_row(queue, row, now_ms)
                    row = []
                if is_small and run.sequence >= queue.redelivered_before:
                    row.append(effect)
                else:
                    self._deliver(queue, effect, now_ms)
                continue
            if isinstance(effect, effects.Removed):
                self.removed(queue, effect)
                continue
            if row:
                self._deliver_row(queue, row, now_ms)
                row = []
            if isinstance(effect, effects.Stored):
                # Of each batch that came: its record is written already.
                continue
            elif isinstance(effect, effects.Purged):
                self.leaving.purged(queue, effect.runs)
            elif isinstance(effect, effects.Drained):
                consumer = self.consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.peer.out.append(frame(Kind.DRAINED, link=consumer.link, number=effect.number))
            elif isinstance(effect, effects.Larger):
                consumer = self.consumers.get(effect.consumer)
                if consumer is not None:
                    kib = -(-effect.size >> 10)
                    larger = frame(Kind.LARGER, link=consumer.link, count=kib, number=effect.number)
                    consumer.peer.out.append(larger)
            elif isinstance(effect, effects.Returned):
                self._returned(queue, effect.runs, now_ms)
            elif isinstance(effect, effects.Released):
                if queue.captured:
                    for run in effect.runs:
                        self._tell(queue, _back(queue, run, record.Outcome.RELEASED), now_ms)
            elif isinstance(effect, effects.Replaced):
                self._replaced(queue, effect, now_ms)
            elif isinstance(effect, effects.DeadLetter):
                self._dead_letter(queue, effect, now_ms)
            elif isinstance(effect, effects.Fetch):
                self._fetch(queue, effect.run)
            elif isinstance(effect, effects.Refused):
                self._refused(effect)
        if row:
            self._deliver_row(queue, row, now_ms)

    def _deliver_row(self, queue: Queue, row: list[effects.Deliver], now_ms: int) -> None:
        """Slices of small batches that follow each other are one slice to their consumer.

        Senders that wait for each answer make batches of one message each, and a frame for each of them would
        cost the shard and the frontend more than the messages do.
        """
        first = row[0]
        if len(row) == 1:
            self._deliver(queue, first, now_ms)
            return
        consumer = self.consumers.get(first.consumer)
        if consumer is None:
            return
        ends = array("I")
        pieces: list[memoryview] = []
        size = 0
        for effect in row:
            run = effect.run
            if queue.captured:
                _note_delivered(queue, consumer, run)
            for index in range(run.first, run.last):
                piece = run.batch.blob(index, index + 1)
                size += len(piece)
                ends.append(size)
                pieces.append(piece)
        oldest = first.run.batch
        self._sample_wait(first.run, now_ms)
        consumer.peer.out.append(
            deliver(
                consumer.link,
                queue.epoch,
                first.first_number,
                len(ends),
                now_ms,
                first.run.sequence,
                first.run.attempts,
                oldest.expires_at_ms or 0,
                oldest.enqueued_at_ms,
                oldest.message_format,
                0,
                ends,
                b"".join(pieces),
            )
        )

    def _sample_wait(self, run: Run, now_ms: int) -> None:
        self._deliveries += 1
        if not self._deliveries % WAITS_SAMPLED_EVERY and not run.attempts:
            self._counts.wait_seconds.observe(max(0, now_ms - run.batch.enqueued_at_ms) / 1000)

    def _deliver(self, queue: Queue, effect: effects.Deliver, now_ms: int) -> None:
        consumer = self.consumers.get(effect.consumer)
        if consumer is None:
            return
        run = effect.run
        attempts = run.attempts
        if run.sequence < queue.redelivered_before:
            if run.end > queue.redelivered_before:
                self._deliver_apart(queue, effect, queue.redelivered_before - run.sequence, now_ms)
                return
            # A failed delivery that is nobody's fault: it is shown and not counted (ADR 5).
            attempts = attempts or 1
        batch = run.batch
        first, last = run.first, run.last
        if queue.captured:
            _note_delivered(queue, consumer, run)
        ends = batch.ends
        data = batch.data
        assert ends is not None
        assert data is not None
        base = ends[first - 1] if first else 0
        start = batch.base + base
        self._sample_wait(run, now_ms)
        consumer.peer.out.append(
            deliver(
                consumer.link,
                queue.epoch,
                effect.first_number,
                last - first,
                now_ms,
                run.sequence,
                attempts,
                batch.expires_at_ms or 0,
                batch.enqueued_at_ms,
                batch.message_format,
                base,
                ends[first:last],
                memoryview(data)[start : batch.base + ends[last - 1]],
            )
        )

    def _deliver_apart(self, queue: Queue, effect: effects.Deliver, count: int, now_ms: int) -> None:
        """The first `count` messages, and the others behind them."""
        head, tail = effect.run.split(count)
        self._deliver(queue, effect._replace(run=head), now_ms)
        behind = effects.Deliver(effect.consumer, effect.first_number + count, tail)
        self._deliver(queue, behind, now_ms)

    def removed(self, queue: Queue, effect: effects.Removed) -> None:
        """Messages left a queue for good."""
        batch, first, last, size, reason = effect
        place = batch.place
        if reason is Reason.LOST:
            self._lost(queue, effect)
            return
        if place is not None:
            self._store.release(place.segment, size)
        if not (batch.durable or queue.captured):
            return
        ranges = queue.removed.get(reason)
        if ranges is None:
            queue.removed[reason] = [(first, last)]
        elif ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
        self.touched[queue] = None

    def _lost(self, queue: Queue, effect: effects.Removed) -> None:
        """Damaged on the disk: said, counted and kept there, not settled and safe from the cleaner."""
        place = effect.batch.place
        self._counts.store_failures += 1
        if place is not None:
            self.damaged.add(place.segment)
        log.critical(
            "messages %d to %d of queue %s can't be read back from %s and are passed over; what is left of "
            "them stays on disk: stop the shard and run `lightrail-admin journal repair`",
            effect.first_sequence,
            effect.last_sequence - 1,
            queue.name,
            f"segment {place.segment}" if place is not None else "the store",
        )

    def journal_removed(self, queue: Queue, now_ms: int) -> None:
        """One Settle record for all that left the queue in this step by the same reason."""
        for reason, ranges in queue.removed.items():
            try:
                self._store.append(Settle(queue.id, ranges, JOURNAL_OUTCOME[reason], str(reason)), now_ms)
            except StoreError as error:
                # It stays on disk and comes back after a restart: delivered twice at worst, never lost.
                self._counts.store_failures += 1
                log.error("settlements of queue %s could not be written: %s", queue.name, error)
        queue.removed.clear()

    @property
    def capture_lags(self) -> bool:
        """Whether transient senders of captured queues wait for the next commit: the disk is slower."""
        return self.captured_bytes > limits.CAPTURE_GATHERED_BYTES_MAX

    def journal_delivered(self, queue: Queue, now_ms: int) -> None:
        """One Delivered record for all that a consumer of a captured queue got in this step.

        It comes before the records of their outcomes: the queue hears of those in a later step, or they are
        written by `journal_removed` after this.
        """
        for consumer, ranges in queue.delivered.items():
            key = consumer.peer.boot << 32 | consumer.link
            self._tell(queue, Delivered(queue.id, key, ranges), now_ms)
        queue.delivered.clear()

    def _tell(self, queue: Queue, told: Delivered | Settle, now_ms: int) -> None:
        """Writes what only readers of the journal want to know; that it is missing is said once at a time."""
        try:
            self._store.append(told, now_ms)
        except StoreError as error:
            self._counts.store_failures += 1
            if not self._untold:
                log.error(
                    "what is delivered and released of captured queues, such as %s, is not written down: %s",
                    queue.name,
                    error,
                )
            self._untold = True
        else:
            self._untold = False

    def _returned(self, queue: Queue, runs: list[Run], now_ms: int) -> None:
        for run in runs:
            if run.batch.durable or queue.captured:
                try:
                    self._store.append(_back(queue, run, record.Outcome.MODIFIED), now_ms)
                except StoreError as error:
                    self._counts.store_failures += 1
                    log.error("delivery counts of queue %s could not be written: %s", queue.name, error)

    def _replaced(self, queue: Queue, effect: effects.Replaced, now_ms: int) -> None:
        run = effect.run
        batch = run.batch
        if queue.exporting is not None:
            queue.exporting.note(run)
        if not (batch.durable or queue.captured):
            return
        flags = REWRITTEN if batch.durable else REWRITTEN | SPILLED
        try:
            batch.place = self._store.append(
                Append([(queue.id, run.sequence)], 0, 0, batch, run.first, run.last, run.attempts, flags),
                now_ms,
            )
        except StoreError as error:
            # What is on disk under the old place is the same message without the annotations.
            self._counts.store_failures += 1
            log.error("annotations of queue %s could not be written: %s", queue.name, error)
            batch.place = effect.old.batch.place
            return
        old = effect.old.batch.place
        if old is not None:
            self._store.release(old.segment, effect.old.size)

    def _dead_letter(self, queue: Queue, effect: effects.DeadLetter, now_ms: int) -> None:
        """The messages go on `NAME/$dlq`, saying why, and leave this queue: one group in the journal."""
        run = effect.run
        count = run.last - run.first
        target = self._queues.get(dead_letter_name(queue.name), now_ms)
        if target is None:
            self._postpone(queue, effect, "its dead-letter queue could not be made")
            return
        batch = dead_letter_batch(run, queue.name, effect, now_ms)
        durable = batch.durable
        if durable or queue.captured or target.captured:
            copied = Append(
                [(target.id, target.machine.next_sequence)],
                *(0, 0, batch, 0, count, run.attempts),
                flags=CONTINUED if durable else CONTINUED | SPILLED,
            )
            settled = Settle(
                queue.id, [(run.sequence, run.end)], record.Outcome.DEAD_LETTERED, str(effect.reason)
            )
            try:
                batch.place = self._store.append(copied, now_ms)
            except StoreError as error:
                self._postpone(queue, effect, str(error))
                return
            try:
                self._store.append(settled, now_ms)
            except StoreError as error:
                # It is in both queues after a restart: delivered twice at worst, never lost.
                self._counts.store_failures += 1
                log.error("dead letters of queue %s could not be settled: %s", queue.name, error)
            if durable:
                self.messages_unsynced += count
        place = run.batch.place
        if place is not None:
            self._store.release(place.segment, run.size)
        reasons = self._counts.dead_lettered
        reasons[effect.reason] = reasons.get(effect.reason, 0) + count
        self.perform(target, target.machine.apply(commands.Enqueue(batch), now_ms), now_ms)
        self.touched[target] = None

    def _postpone(self, queue: Queue, effect: effects.DeadLetter, why: str) -> None:
        """Messages that left their queue and can't be written to the next wait here: nothing is lost."""
        if not self.unwritten:
            log.error("dead letters of queue %s wait: %s", queue.name, why)
        self._counts.store_failures += 1
        self.unwritten.append((queue, effect))

    def write_again(self, now_ms: int) -> None:
        """Tries the dead letters again that the store had no room for."""
        unwritten, self.unwritten = self.unwritten, []
        for queue, effect in unwritten:
            self._dead_letter(queue, effect, now_ms)

    def forget(self, queue: Queue) -> None:
        """The queue was deleted: nothing more is done for it, and what waits here to be written is freed."""
        self.touched.pop(queue, None)
        queue.removed.clear()
        queue.delivered.clear()
        for source, effect in self.unwritten:
            place = effect.run.batch.place
            if source is queue and place is not None:
                self._store.release(place.segment, effect.run.size)
        self.unwritten = [each for each in self.unwritten if each[0] is not queue]

    def _fetch(self, queue: Queue, run: Run) -> None:
        self.read(queue, run)

    def read(self, queue: Queue, run: Run, then: Callable[[Read], None] | None = None) -> None:
        """Has messages read from their place, for the queue itself or for somebody else (`then`)."""
        place = run.batch.place
        assert place is not None
        self.reading[place.segment] = self.reading.get(place.segment, 0) + 1
        self.reads.append(Read(queue.name, queue.id, run, place, then))

    def _refused(self, effect: effects.Refused) -> None:
        consumer = self.consumers.pop(effect.consumer or 0, None)
        if consumer is None:
            return
        consumer.peer.consumers.pop(consumer.link, None)
        refusal = Refusal(effect.condition, effect.description)
        consumer.peer.out.append(frame(Kind.GONE, link=consumer.link, body=refusal.encode()))


def follows(row: list[effects.Deliver], effect: effects.Deliver) -> bool:
    """Whether a slice continues a row: numbers, sequences, and what one frame says of all its messages."""
    last = row[-1]
    before, run = last.run, effect.run
    old, new = before.batch, run.batch
    return (
        effect.consumer == last.consumer
        and run.sequence == before.sequence + before.last - before.first
        and effect.first_number == last.first_number + before.last - before.first
        and run.attempts == before.attempts
        and new.enqueued_at_ms == old.enqueued_at_ms
        and new.expires_at_ms == old.expires_at_ms
        and new.message_format == old.message_format
        and len(row) < limits.JOINED_SLICES
    )


def _back(queue: Queue, run: Run, outcome: record.Outcome) -> Settle:
    """A run went back to its queue, with the attempts that it has now."""
    return Settle(queue.id, [(run.sequence, run.end)], outcome, attempts=run.attempts)


def _note_delivered(queue: Queue, consumer: Consumer, run: Run) -> None:
    """What a consumer of a captured queue gets is written down with the step; a browser's copies are not."""
    if consumer.opened is not None and consumer.opened.browse:
        return
    ranges = queue.delivered.get(consumer)
    if ranges is None:
        queue.delivered[consumer] = [(run.sequence, run.end)]
    elif ranges[-1][1] == run.sequence:
        ranges[-1] = (ranges[-1][0], run.end)
    else:
        ranges.append((run.sequence, run.end))
