"""A replay: applies the records of segments, in their order, to the tables and spans that they restore.

A group (flag CONTINUED) is applied when its last record is there. Recovery replays a whole journal at once
(recovery.py); a standby goes on as records arrive (standby.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lightrail.journal import layout
from lightrail.journal.record import (
    CONTINUED,
    RECEIVER_FIXED,
    RETURNING,
    SPILLED,
    TERMINUS_FIXED,
    Epoch,
    Gap,
    Ids,
    Numbers,
    Queue,
    QueueEntry,
    QueueEvent,
    ReceiverChange,
    Seal,
    Settle,
    Snapshot,
    Taken,
    Terminus,
    TransactionStep,
)
from lightrail.journal.scan import Found, Scan
from lightrail.journal.segment_header import SegmentHeader
from lightrail.model.attempts import waiting
from lightrail.shard.journal.files import DiskFile
from lightrail.shard.journal.live import LiveSpans
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.store import JournalDamagedError
from lightrail.shard.journal.tables import Tables


@dataclass(slots=True)
class GroupStart:
    """The first record of a group whose last one has not been read."""

    segment: Segment
    offset: int
    lsn: int
    last_ms: int
    """Time of the record before it."""


@dataclass(slots=True, eq=False, repr=False)
class Replay:
    """What the records read so far restore, before any message is in memory."""

    tables: Tables
    segments: list[Segment] = field(default_factory=list)
    """Segments in order; the last one is being read."""
    live: dict[int, LiveSpans] = field(default_factory=dict)
    """Live messages by queue number."""
    lsn: int = 0
    """Number of the last record."""
    cut_bytes: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """(number of a Gap, number of the record behind it)."""
    group_start: GroupStart | None = None
    """Of the open group; None outside of groups."""
    _group: list[tuple[Segment, Found]] = field(default_factory=list)
    """The records of the open group."""
    _sealed_in: int = 0
    """The segment with the newest Seal."""
    _last_ms: int = 0
    """The latest time of a record of the segment that is being read."""

    # --- reading ---------------------------------------------------------------------------------------

    def begin(self, number: int, file: DiskFile, header: SegmentHeader) -> Segment:
        """Begins with the next segment. Raises JournalDamagedError if it does not follow."""
        segment = Segment(number, file, file.size(), header.epoch)
        segment.index.first_lsn = header.first_lsn
        if not self.segments:
            self.lsn = header.first_lsn - 1
        if header.first_lsn != self.lsn + 1:
            raise JournalDamagedError(
                name_of(number), 0, f"it begins with record {header.first_lsn} where {self.lsn + 1} should be"
            )
        self.segments.append(segment)
        self._last_ms = 0
        segment.captured = bool(self.tables.captured)
        return segment

    def read(self, scan: Scan, records: Iterable[Found]) -> None:
        """Applies these records of a scan, which begins where the last segment has been read up to.

        Raises JournalDamagedError.
        """
        segment = self.segments[-1]
        group = self._group
        last_ms = self._last_ms
        for found in records:
            code, flags = found.code, found.flags
            if found.offset >= segment.mark:
                segment.note(found.lsn, found.offset, self._messages(segment), found.timestamp)
            try:
                if group or flags & CONTINUED:
                    if code == layout.SNAPSHOT:
                        continue  # A segment began within the group; its tables have the group's beginning.
                    if not group:
                        self.group_start = GroupStart(segment, found.offset, found.lsn, last_ms)
                    group.append((segment, found))
                    if not flags & CONTINUED:
                        for where, member in group:
                            self._apply(where, member, scan)
                        group.clear()
                    elif code == layout.GAP:
                        group.clear()
                    if not group:
                        self.group_start = None
                elif code == layout.APPEND:
                    self._append(segment, found)
                elif code == layout.SETTLE:
                    self._settle(found)
                else:
                    self._apply(segment, found, scan)
            except layout.LayoutError as error:
                raise JournalDamagedError(name_of(segment.number), found.offset, str(error)) from error
            last_ms = max(last_ms, found.timestamp)
        self._last_ms = last_ms
        segment.end = segment.written = scan.offset
        assert scan.lsn is not None
        self.lsn = scan.lsn - 1

    def end(self) -> None:
        """Ends the segment that was read."""
        segment = self.segments[-1]
        segment.seal(segment.end, self.lsn + 1, segment.index.messages, self._last_ms)

    def resume(self, opened: Mapping[int, DiskFile], headers: Sequence[tuple[int, SegmentHeader]]) -> str:
        """Goes on in the files of a directory, whose segments have these headers.

        A header has the epoch of its owner, so two segments with equal headers have equal bytes, as far as
        both reach.

        Returns:
            Why the directory is not the one that was read so far; empty if it is.
        """
        if not headers:
            return "the directory has no segments"
        self.forget_before(headers[0][0])
        if len(headers) < len(self.segments) or not self.segments:
            return f"{len(self.segments)} segments were read, {len(headers)} are there"
        for segment, (number, header) in zip(self.segments, headers, strict=False):
            known = (segment.number, segment.index.first_lsn, segment.epoch)
            if known != (number, header.first_lsn, header.epoch):
                return (
                    f"expected segment {known[0]} from record {known[1]} on in epoch {known[2]}, found "
                    f"segment {number} from record {header.first_lsn} on in epoch {header.epoch}"
                )
            if (size := opened[number].size()) < segment.end:
                return f"expected {segment.end} bytes in {name_of(number)}, found {size}"
        for segment in self.segments:
            segment.file = opened[segment.number]
            segment.capacity = segment.file.size()
        return ""

    def forget_before(self, number: int) -> None:
        """Forgets what only the segments before this one have: they were dropped."""
        segments = self.segments
        if not segments or segments[0].number >= number:
            return
        while segments and segments[0].number < number:
            del segments[0]
        self.tables.forget_before(number)
        self.tables.sealed = self.tables.sealed and self._sealed_in >= number
        for live in self.live.values():
            live.forget_before(number)
        first_lsn = segments[0].index.first_lsn if segments else self.lsn + 1
        self.lost = [each for each in self.lost if each[0] >= first_lsn]

    def _messages(self, segment: Segment) -> int:
        """Number of messages of a segment so far, including a group that may still be cut."""
        return segment.index.messages + sum(
            layout.decode_append_head(found.view, found.start, found.length)[0].messages
            for where, found in self._group
            if where is segment and found.code == layout.APPEND
        )

    def _append(self, segment: Segment, found: Found) -> None:
        """Applies an Append record, without any work per message."""
        view, start, length = found.view, found.start, found.length
        if length < layout.APPEND_BODY:
            raise layout.LayoutError(f"an Append has {length} bytes, fewer than its fixed part")
        (
            producer,
            number,
            enqueued_at_ms,
            expires_at_ms,
            message_format,
            count,
            size,
            attempts,
            target_count,
            priority,
            attributes,
        ) = layout.APPEND_FIXED.unpack_from(view, start + layout.HEADER_SIZE)
        if layout.APPEND_BODY + 16 * target_count + 4 * count + size != length:
            raise layout.LayoutError(f"an Append of {count} messages of {size} bytes has {length} bytes")
        if attributes & layout.WAITING:
            attempts = waiting(attempts, number)
            attributes -= layout.WAITING
        segment.append_bytes += length
        segment.appended += size * target_count
        segment.index.messages += count
        tables = self.tables
        if producer and not found.flags & SPILLED:
            tables.produced(producer, number)
        position = start + layout.APPEND_BODY
        for _ in range(target_count):
            queue, sequence = layout.TARGET.unpack_from(view, position)
            position += 16
            entry = tables.queues.get(queue) or self._unknown(queue)
            last = sequence + count
            if last > entry.next_sequence:
                entry.next_sequence = last
            if not found.flags & SPILLED:
                self.live[queue].add(
                    sequence,
                    last,
                    segment.number,
                    found.offset,
                    found.offset + length,
                    size,
                    attempts,
                    (attributes, priority, expires_at_ms, message_format),
                    enqueued_at_ms,
                )

    def _settle(self, found: Found) -> None:
        """Applies a Settle record; one with a single range, as nearly all have, without making an object."""
        view, body = found.view, found.start + layout.HEADER_SIZE
        ranges = body + layout.SETTLE_FIXED.size
        if found.start + found.length == ranges + layout.TARGET.size:
            queue, count, attempts, reason_size, outcome, waits = layout.SETTLE_FIXED.unpack_from(view, body)
            if count == 1 and not reason_size and not waits:
                if (live := self.live.get(queue)) is not None:
                    first, last = layout.TARGET.unpack_from(view, ranges)
                    if outcome in RETURNING:
                        live.set_attempts(first, last, attempts)
                    else:
                        live.remove(first, last)
                return
        record = layout.decode_small(view, found.start, found.length)
        assert isinstance(record, Settle)
        if (live := self.live.get(record.queue)) is not None:
            returns = record.outcome in RETURNING
            change = partial(live.set_attempts, attempts=record.attempts) if returns else live.remove
            for first, last in record.ranges:
                change(first, last)

    def _unknown(self, queue: int) -> QueueEntry:
        """Makes an entry for a queue without a Queue record, which is possible only if records were lost."""
        if not self.lost:
            raise layout.LayoutError(f"an Append names queue {queue}, which was not declared")
        entry = QueueEntry(queue, f"lost-and-found/{queue}", "{}")
        self.tables.queues[queue] = entry
        self.live[queue] = LiveSpans()
        return entry

    def _apply(self, segment: Segment, found: Found, scan: Scan) -> None:
        """Applies one record."""
        if found.code == layout.APPEND:
            self._append(segment, found)
            return
        if found.code == layout.SETTLE:
            self._settle(found)
            return
        if found.code in (layout.CLOSE, layout.DELIVERED):
            # Deliveries do not change where messages are.
            return
        record = layout.decode_small(found.view, found.start, found.length)
        if isinstance(record, Queue):
            segment.index.queues.append(found.offset)
            try:
                self.tables.queue(record)
            except KeyError:
                if not self.lost:
                    raise layout.LayoutError(
                        f"queue {record.queue} is changed and was not declared"
                    ) from None
            if self.tables.captured:
                segment.captured = True
            if record.event == QueueEvent.DECLARED:
                self.live[record.queue] = LiveSpans()
            elif record.event == QueueEvent.DELETED:
                self.live.pop(record.queue, None)
        elif isinstance(record, Ids | Terminus | ReceiverChange):
            if record.queue in self.tables.queues:
                self._keep(segment, record)
        elif isinstance(record, TransactionStep):
            segment.holds(record.size)
            self.tables.transact(record, segment.number)
        elif isinstance(record, Taken):
            self.tables.take(record)
        elif isinstance(record, Numbers):
            if record.queue in self.tables.queues:
                self.tables.learn(record)
        elif isinstance(record, Snapshot):
            self.tables.restore(record)
            if self.tables.captured:
                segment.captured = True
            live_queues = self.live
            self.live = {queue: live_queues.get(queue) or LiveSpans() for queue in self.tables.queues}
        elif isinstance(record, Epoch):
            self.tables.epoch = record.epoch
            self.tables.sealed = False
        elif isinstance(record, Seal):
            self.tables.epoch = record.epoch
            self.tables.sealed = True
            self._sealed_in = segment.number
        elif isinstance(record, Gap):
            self.lost.append((found.lsn, record.next_lsn))
            scan.skip_to(record.next_lsn)

    def _keep(self, segment: Segment, record: Ids | Terminus | ReceiverChange) -> None:
        """Applies a record that the cleaner writes again, as it is in no snapshot."""
        tables = self.tables
        if isinstance(record, Ids):
            segment.holds_ids(record)
            tables.remember(record, segment.number, 0)
        elif isinstance(record, Terminus):
            segment.holds(TERMINUS_FIXED.size + record.size)
            tables.termini.apply(record, segment.number)
        else:
            segment.holds(RECEIVER_FIXED.size + record.size)
            tables.receivers.apply(record, segment.number)
