"""Small records, that is all except Append, and their changes to the tables and the current segment."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from lightrail.journal.record import (
    RECEIVER_FIXED,
    REWRITTEN,
    TERMINUS_FIXED,
    Epoch,
    Ids,
    Numbers,
    Queue,
    QueueEvent,
    ReceiverChange,
    ReceiverEvent,
    Seal,
    Taken,
    Terminus,
    TerminusEvent,
    TransactionState,
    TransactionStep,
)
from lightrail.model import limits
from lightrail.shard.journal.record import SmallRecord
from lightrail.shard.journal.segment import Segment
from lightrail.shard.journal.space import Space
from lightrail.shard.journal.store import StoreFullError, needs_sync, only_tells
from lightrail.shard.journal.tables import IdGroup, Tables
from lightrail.shard.journal.tail import Tail

TERMINI_MOVED_TAGS: Final[int] = 20_000
"""Tags, and runs of deliveries, of durable links that the cleaner writes again in one turn: 10 ms."""


@dataclass(slots=True, eq=False, repr=False)
class SmallRecords:
    """Appends small records at the tail of a journal."""

    _tail: Tail
    _tables: Tables
    _space: Space
    _segments: dict[int, Segment]

    def append(self, record: SmallRecord, now_ms: int) -> None:
        """Appends a record. Raises StoreError, OSError and ValueError."""
        if isinstance(record, Queue):
            if record.event != QueueEvent.DECLARED:
                self._tables.check_declared(record.queue)
            offset = self._tail.small(record, now_ms)
            segment = self._tail.segment
            segment.index.queues.append(offset)
            if record.event == QueueEvent.DELETED and record.queue in self._tables.ids:
                self._release(self._tables.ids[record.queue].groups)
            if record.event == QueueEvent.DELETED:
                self._live(self._tables.termini.forget(record.queue))
                self._live(self._tables.receivers.forget(record.queue))
            if record.queue in self._tables.captured:
                segment.touched = True
            self._tables.queue(record)
            if record.queue in self._tables.captured:
                segment.captured = True
                entry = self._tables.queues[record.queue]
                segment.captured_from.setdefault(record.queue, entry.next_sequence)
        elif isinstance(record, Epoch | Seal):
            self._tail.small(record, now_ms)
            self._tables.epoch = record.epoch
        elif isinstance(record, Ids):
            self._tail.small(record, now_ms)
            self._tail.segment.holds_ids(record)
            self._tail.segment.live += len(record.digests)
            self._release(self._tables.remember(record, self._tail.segment.number, now_ms))
        elif isinstance(record, TransactionStep):
            self._transaction(record, now_ms)
        elif isinstance(record, Terminus | ReceiverChange):
            self._link(record, now_ms)
        elif isinstance(record, Taken):
            self._tail.small(record, now_ms)
            self._tables.take(record)
        elif isinstance(record, Numbers):
            self._tables.check_declared(record.queue)
            self._tail.small(record, now_ms)
            self._tables.learn(record)
        else:
            if self._space.full and only_tells(record):
                self._space.ensure(now_ms)
            self._tail.small(record, now_ms)
            captured = self._tables.captured
            if captured and record.queue in captured:
                self._tail.segment.touched = True

    def _transaction(self, record: TransactionStep, now_ms: int) -> None:
        self._tail.small(record, now_ms)
        segment = self._tail.segment
        segment.holds(record.size)
        if record.state != TransactionState.ENDED:
            segment.live += record.size
        before, size = self._tables.transact(record, segment.number)
        if (known := self._segments.get(before)) is not None:
            known.live -= size

    def _link(self, record: Terminus | ReceiverChange, now_ms: int) -> None:
        """Appends a change of a client's link."""
        self._tables.check_declared(record.queue)
        tail = self._tail
        begins = record.event in (TerminusEvent.BEGUN, ReceiverEvent.BEGUN)
        if self._space.full and begins and not record.flags & REWRITTEN:
            # The rest of the space is for settlements.
            self._space.ensure(now_ms)
        segment, wanted = tail.segment, tail.sync_wanted
        tail.small(record, now_ms)
        if tail.segment is segment and not needs_sync(record):
            tail.sync_wanted = wanted
        number = tail.segment.number
        if isinstance(record, ReceiverChange):
            tail.segment.holds(RECEIVER_FIXED.size + record.size)
            self._live(self._tables.receivers.apply(record, number))
        else:
            tail.segment.holds(TERMINUS_FIXED.size + record.size)
            self._live(self._tables.termini.apply(record, number).live)

    def _live(self, changes: Iterable[tuple[int, int]]) -> None:
        """Changes the live bytes of segments."""
        for number, size in changes:
            if (segment := self._segments.get(number)) is not None:
                segment.live += size

    def move(self, segment: int, now_ms: int) -> bool:
        """Appends again the state that only records of this segment have.

        Returns:
            False if a part is left for a later call, as it would take too long now, or there is no room.
        """
        left = TERMINI_MOVED_TAGS
        try:
            self._move_ids(segment, now_ms)
            if not self._move_transactions(segment, now_ms):
                return False
            for record in self._tables.termini.in_segment(segment):
                if left <= 0:
                    return False
                left -= 1 + len(record.tags)
                self._link(record, now_ms)
            for receiver in self._tables.receivers.in_segment(segment):
                if left <= 0:
                    return False
                left -= 1 + len(receiver.runs)
                self._link(receiver, now_ms)
        except StoreFullError:
            return False
        return True

    def _move_transactions(self, segment: int, now_ms: int) -> bool:
        """Appends open transactions of a segment again; returns whether none is left for a later call."""
        found = [record for record, where in self._tables.transactions.values() if where == segment]
        left = limits.CLEAN_BYTES
        for record in found[: limits.TRANSACTIONS_AT_ONCE]:
            if left <= 0:
                return False
            self._transaction(replace(record, flags=REWRITTEN), now_ms)
            left -= record.size
        return len(found) <= limits.TRANSACTIONS_AT_ONCE

    def _move_ids(self, segment: int, now_ms: int) -> None:
        """Appends the message-ids of a segment again that are still within their window."""
        for queue, known in self._tables.ids.items():
            self._release(known.forget(now_ms))
            for group in known.groups:
                if group.segment == segment:
                    record = Ids(queue, group.until_ms, group.digests, REWRITTEN)
                    self._tail.small(record, now_ms)
                    self._tail.segment.holds_ids(record)
                    self._tail.segment.live += group.size
                    self._segments[segment].live -= group.size
                    group.segment = self._tail.segment.number

    def _release(self, groups: Iterable[IdGroup]) -> None:
        """Counts dropped message-ids as no longer live in their segments."""
        for group in groups:
            if (segment := self._segments.get(group.segment)) is not None:
                segment.live -= group.size
