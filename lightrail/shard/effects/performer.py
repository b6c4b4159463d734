"""Executes queue-machine effects as wire frames and journal records."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lightrail.journal import record
from lightrail.journal.record import CONTINUED, DEFERRED_REASON, REWRITTEN, SPILLED, Delivered, Settle
from lightrail.model.links import Ending, LockEnding
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.delivering import Delivering, follows
from lightrail.shard.effects.held_turns import HeldTurns
from lightrail.shard.effects.leaving import DeadLettering, Leaving
from lightrail.shard.effects.peers import Consumer
from lightrail.shard.effects.receiving_link import ReceivingLink
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values import commands, effects
from lightrail.shard.queue.values.commands import Command
from lightrail.shard.queue.values.effects import Effect, Reason
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import Kind, frame

CAPTURE_GATHERED_BYTES_MAX: Final[int] = 16 * 1024 * 1024
"""Bytes of transient messages of captured queues that are collected for a commit; beyond, senders wait for
it."""
JOINED_SLICE_MESSAGES: Final[int] = 8
"""Slices of so few messages, of batches up to JOINED_SLICE_BYTES, are joined with those that follow."""
JOINED_SLICE_BYTES: Final[int] = 8 * 1024

log = logging.getLogger("lightrail.shard.effects.performer")

JOURNAL_OUTCOME: Final = {
    Reason.ACCEPTED: record.Outcome.ACCEPTED,
    Reason.REJECTED: record.Outcome.REJECTED,
    Reason.EXPIRED: record.Outcome.EXPIRED,
    Reason.MAX_DELIVERY_COUNT: record.Outcome.DEAD_LETTERED,
    Reason.PURGED: record.Outcome.PURGED,
    Reason.REPLACED: record.Outcome.PURGED,
    Reason.CANCELLED: record.Outcome.PURGED,
    Reason.DUE: record.Outcome.PURGED,
    Reason.QUEUE_FULL: record.Outcome.DEAD_LETTERED,
    Reason.DISCARDED: record.Outcome.DISCARDED,
}


@dataclass(slots=True, eq=False, repr=False)
class Performer:
    """Performs effects in their order; the engine reads the gathered results once per step."""

    _queues: Queues
    _store: Store
    _counts: ShardCounts
    on_lost_session: Callable[[Queue, int, int], None] = lambda _1, _2, _3: None
    """Ends the link of a consumer, which its machine has detached; set by the links."""
    on_refused: Callable[[int, Refusal], None] = lambda _1, _2: None
    """Ends the link of a consumer, which its machine has refused; set by the links."""
    links: dict[int, ReceivingLink] = field(default_factory=dict)
    """Receiving links by the number of their consumer in the machines."""
    exports: dict[Queue, Callable[[Run], None]] = field(default_factory=dict)
    """Exports of queues that other shards copy (moving/exporting.py)."""
    damaged: set[int] = field(default_factory=set)
    """Segments with unreadable bytes, which the cleaner skips."""
    _captured_failed: bool = False
    """Whether the last record for readers of the journal could not be appended."""
    touched: dict[Queue, None] = field(default_factory=dict)
    """Queues to dispatch in this step."""
    messages_unsynced: int = 0
    """Number of messages in records that wait for the next commit."""
    captured_bytes: int = 0
    """Bytes of transient messages of captured queues in records that wait for the next commit."""
    reads: list[Read] = field(default_factory=list)
    """Reads for the reader thread."""
    reading: dict[int, int] = field(default_factory=dict)
    """Number of reads under way by segment; the cleaner skips these segments."""
    _withheld: dict[Queue, None] = field(default_factory=dict)
    """Queues that wait for leases."""
    held_turns: HeldTurns = field(init=False)
    _delivering: Delivering = field(init=False)
    dead_letters: DeadLettering = field(init=False)
    leaving: Leaving = field(init=False)
    """Messages of purges and deletions that have yet to be settled."""

    def __post_init__(self) -> None:
        self.held_turns = HeldTurns(self._store.position)
        self._delivering = Delivering(self.links, self._counts, self.held_turns)
        self.dead_letters = DeadLettering(self._queues, self._store, self._counts, self.enqueue)
        self.leaving = Leaving(self.removed, self._store, self._queues.work)

    def apply(self, queue: Queue, command: Command, now_ms: int) -> list[Effect]:
        """Applies a command, performs its effects, and marks the queue for its dispatch in this step.

        Returns:
            The effects, among them the answers to commands that have one.
        """
        found = queue.machine.apply(command, now_ms)
        if found:
            self._perform(queue, found, now_ms)
        self.touched[queue] = None
        return found

    def perform(self, queue: Queue, found: list[Effect], now_ms: int) -> None:
        """Performs effects of a command that the caller has applied, and marks the queue for its dispatch."""
        self._perform(queue, found, now_ms)
        self.touch(queue)

    def touch(self, queue: Queue) -> None:
        """Marks a queue for its dispatch in this step, after a change outside of its machine: of its
        ownership, or of the batches that wait for room."""
        self.touched[queue] = None

    def cancel_dispatch(self, queue: Queue) -> None:
        """Removes the mark of a queue that is no longer served: its messages must not be delivered."""
        self.touched.pop(queue, None)

    def dispatch(self, queue: Queue, now_ms: int) -> None:
        """Delivers what a queue can deliver."""
        found = queue.machine.dispatch(now_ms)
        if found:
            self._perform(queue, found, now_ms)

    def dispatch_leased(self, queue: Queue, now_ms: int) -> None:
        """As `dispatch`, for an owner with other members: without leases the queue waits."""
        if not self.held_turns.may_deliver():
            self._withheld[queue] = None
            return
        self.dispatch(queue, now_ms)

    def touch_withheld(self) -> None:
        """Touches the queues that wait for leases: there may be some now."""
        self.touched.update(self._withheld)
        self._withheld.clear()

    def _perform(self, queue: Queue, found: list[Effect], now_ms: int) -> None:
        """Turns the effects of a machine into frames and records, in their order."""
        row: list[effects.Deliver] = []
        delivering = self._delivering
        for effect in found:
            if isinstance(effect, effects.Deliver):
                run = effect.run
                is_small = (
                    run.last - run.first <= JOINED_SLICE_MESSAGES and run.batch.size <= JOINED_SLICE_BYTES
                )
                if row and not (is_small and follows(row, effect)):
                    delivering.deliver_row(queue, row, now_ms)
                    row = []
                if is_small and run.sequence >= queue.redelivered_before:
                    row.append(effect)
                else:
                    delivering.deliver(queue, effect, now_ms)
                continue
            if isinstance(effect, effects.Removed):
                self.removed(queue, effect)
                continue
            if row:
                delivering.deliver_row(queue, row, now_ms)
                row = []
            if isinstance(effect, effects.Stored):
                # One per batch; the record of the batch is appended already.
                continue
            self._perform_other(queue, effect, now_ms)
        if row:
            delivering.deliver_row(queue, row, now_ms)

    def _perform_other(self, queue: Queue, effect: Effect, now_ms: int) -> None:
        if isinstance(effect, effects.Purged):
            self.leaving.purged(queue, effect.runs)
        elif isinstance(effect, effects.Drained):
            consumer = self._consumer(effect.consumer)
            if consumer is not None:
                consumer.peer.out.append(frame(Kind.DRAINED, link=consumer.link, number=effect.number))
        elif isinstance(effect, effects.Larger):
            consumer = self._consumer(effect.consumer)
            if consumer is not None:
                kib = -(-effect.size >> 10)
                larger = frame(Kind.LARGER, link=consumer.link, count=kib, number=effect.number)
                consumer.peer.out.append(larger)
        elif isinstance(effect, effects.Returned):
            self._returned(queue, effect.runs, now_ms)
        elif isinstance(effect, effects.Released):
            if queue.captured:
                for run in effect.runs:
                    self._append_captured(queue, _back(queue, run, record.Outcome.RELEASED), now_ms)
        elif isinstance(effect, effects.Replaced):
            self._replaced(queue, effect, now_ms)
        elif isinstance(effect, effects.DeadLetter | effects.Due):
            self.dead_letters.move(queue, effect, now_ms)
        elif isinstance(effect, effects.Fetch):
            self.read(queue, effect.run)
        elif isinstance(effect, effects.Refused):
            if effect.consumer is not None:
                self.on_refused(effect.consumer, Refusal(effect.condition, effect.description))
        elif isinstance(effect, effects.SessionAccepted):
            consumer = self._consumer(effect.consumer)
            if consumer is not None:
                consumer.accept_session(effect.session, effect.locked_ms)
        elif isinstance(effect, effects.SessionLost):
            self.on_lost_session(queue, effect.consumer, now_ms)

    def _consumer(self, id: int) -> Consumer | None:
        """The frontend's link of a consumer, if one is open."""
        found = self.links.get(id)
        return None if found is None else found.consumer

    def enqueue(self, queue: Queue, batch: Batch, now_ms: int) -> None:
        """Adds a batch to a queue; the record of a durable one is appended already."""
        if batch.durable:
            self.messages_unsynced += batch.count
        self.apply(queue, commands.Enqueue(batch), now_ms)

    def detach(self, queue: Queue, consumer: int, ending: Ending, now_ms: int) -> None:
        """Detaches a consumer."""
        self.mark(queue, consumer, ending)
        self.apply(queue, commands.Detach(consumer, ending), now_ms)

    def mark(self, queue: Queue, consumer: int, ending: Ending) -> None:
        """Marks the deliveries of a consumer that ends, unless its client ends it in order (ADR 28).

        Its client may have received them, and settled them by frames that were lost.
        """
        attached = queue.view.consumer(consumer)
        if ending is Ending.BY_CLIENT or attached is None:
            return
        if attached.options.lock_key and attached.options.lock_ends is LockEnding.ALWAYS_BY_TIME:
            return
        # A client that failed may have left settlements in a transaction, which are in flight no more.
        if len(attached.in_flight) or (ending is Ending.FAILED and attached.next):
            queue.holder_lost()

    def removed(self, queue: Queue, effect: effects.Removed) -> None:
        """Releases and settles messages that left a queue for good."""
        batch, first, last, size, reason = effect
        location = batch.location
        if reason is Reason.LOST:
            self._lost(queue, effect)
            return
        if location is not None:
            self._store.release(location.segment, size)
        if not (batch.durable or queue.captured):
            return
        ranges = queue.removed.get(reason)
        if ranges is None:
            queue.removed[reason] = [(first, last)]
        elif ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
        self.touch(queue)

    def _lost(self, queue: Queue, effect: effects.Removed) -> None:
        """Logs and counts messages that are damaged on disk; they are not settled and stay on disk."""
        location = effect.batch.location
        self._counts.store_failures += 1
        if location is not None:
            self.damaged.add(location.segment)
        log.critical(
            "messages %d to %d of queue %s can't be read back from %s and are skipped; their bytes stay "
            "on disk: stop the shard and run `lightrail-admin journal repair`",
            effect.first_sequence,
            effect.last_sequence - 1,
            queue.name,
            f"segment {location.segment}" if location is not None else "the store",
        )

    def journal_removed(self, queue: Queue, now_ms: int) -> None:
        """Appends a Settle record per reason for messages that left the queue in this step."""
        for reason, ranges in queue.removed.items():
            try:
                self._store.append(Settle(queue.id, ranges, JOURNAL_OUTCOME[reason], str(reason)), now_ms)
            except StoreError as error:
                # The messages are in the queue again after a restart: delivered twice at worst, never lost.
                self._counts.store_failures += 1
                log.error("settlements of queue %s could not be written: %s", queue.name, error)
        queue.removed.clear()

    @property
    def capture_lags(self) -> bool:
        """Whether senders of transient messages to captured queues wait for the next commit, because the disk
        is slow."""
        return self.captured_bytes > CAPTURE_GATHERED_BYTES_MAX

    def journal_delivered(self, queue: Queue, now_ms: int) -> None:
        """Appends a Delivered record per consumer of a captured queue for its deliveries in this step.

        It precedes the records of their outcomes, which are applied in a later step, or appended by
        `journal_removed` after this call.
        """
        for key, ranges in queue.delivered.items():
            self._append_captured(queue, Delivered(queue.id, key, ranges), now_ms)
        queue.delivered.clear()

    def _append_captured(self, queue: Queue, captured: Delivered | Settle, now_ms: int) -> None:
        """Appends a record that only readers of the journal need; logs the first of several failures."""
        try:
            self._store.append(captured, now_ms)
        except StoreError as error:
            self._counts.store_failures += 1
            if not self._captured_failed:
                log.error(
                    "deliveries and releases of captured queues, such as %s, could not be written: %s",
                    queue.name,
                    error,
                )
            self._captured_failed = True
        else:
            self._captured_failed = False

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
        if (note := self.exports.get(queue)) is not None:
            note(run)
        if not (batch.durable or queue.captured):
            return
        flags = REWRITTEN if batch.durable else REWRITTEN | SPILLED
        try:
            batch.location = self._store.append(
                Append([(queue.id, run.sequence)], 0, 0, batch, run.first, run.last, run.attempts, flags),
                now_ms,
            )
        except StoreError as error:
            # The old location has the same message without the annotations.
            self._counts.store_failures += 1
            log.error("annotations of queue %s could not be written: %s", queue.name, error)
            batch.location = effect.old.batch.location
            return
        old = effect.old.batch.location
        if old is not None:
            self._store.release(old.segment, effect.old.size)

    def forget(self, queue: Queue) -> None:
        """Removes a deleted queue."""
        self.cancel_dispatch(queue)
        queue.removed.clear()
        queue.delivered.clear()
        self.dead_letters.forget(queue)

    def append_group(self, records: Sequence[Record], now_ms: int) -> None:
        """Appends records as the last ones of a group; their room must be reserved."""
        for each in records[:-1]:
            each.flags |= CONTINUED
        for each in records:
            location = self._store.append(each, now_ms)
            if isinstance(each, Append):
                each.batch.location = location
                if each.flags & SPILLED:
                    self.captured_bytes += each.batch.size
                else:
                    self.messages_unsynced += each.batch.count

    def read(self, queue: Queue, run: Run, then: Callable[[Read], None] | None = None) -> None:
        """Requests a read of messages from their location, for the queue itself or for `then`."""
        location = run.batch.location
        assert location is not None
        self.reading[location.segment] = self.reading.get(location.segment, 0) + 1
        self.reads.append(Read(queue.name, queue.id, run, location, then))

    def read_all(self, queue: Queue, runs: Sequence[Run], then: Callable[[list[list[Run]]], None]) -> None:
        """Calls `then` once with the messages of each run in memory: at once, or when those on disk were
        read. Messages that can't be read are missing; what is sent waits until all are accepted."""
        if self.held_turns.position.is_shared:
            for run in runs:
                self.held_turns.shown(run.batch)
        pieces = [[] if run.batch.evicted else [run] for run in runs]
        missing = sum(run.batch.evicted for run in runs)
        if not missing:
            then(pieces)

        def came(found: list[Run], read: Read) -> None:
            nonlocal missing
            found.extend(read.runs)
            missing -= 1
            if not missing:
                then(pieces)

        for run, found in zip(runs, pieces, strict=True):
            if run.batch.evicted:
                self.read(queue, run, partial(came, found))


def _back(queue: Queue, run: Run, outcome: record.Outcome) -> Settle:
    """The record of a run that is ready or deferred again, with its current attempts."""
    reason = DEFERRED_REASON if run.is_deferred else ""
    return Settle(queue.id, [(run.sequence, run.end)], outcome, reason, run.attempts)
