"""Recovery: reads the segment files, and cuts records that a crash left incomplete.

The rules, in the order in which they are applied:

1. Segments have consecutive numbers and consecutive records. Files after the last one with a header on disk
   (segment.py) were prepared and never begun; they are removed.
2. The last segment ends before its first incomplete record. If a whole record further on shows that the
   missing ones had been synced, the bytes were damaged later: JournalDamagedError. A crash can't cause that,
   because each record has the number of records before it that were not known to be on disk.
3. In every other segment, anything but the exact sequence of records up to the next segment's first is
   damage: a segment is synced before the next one is written.
4. A group (flag CONTINUED) whose last record is missing is cut whole.
5. The cut is made on disk too, and synced, before anything is written: stale records beyond the end must
   never follow new records.
6. Before anything is cut, the end is compared with the extent file (identity.py): a journal that is
   shorter than it once was on disk is refused.
7. Each owner of a shard with replicas has an epoch of its own, later than those of all segments: so records
   of two owners with the same numbers can be told apart. A shard without replicas always has the epoch 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

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
from lightrail.journal.scan import Found, Scan, next_whole
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, SegmentHeader
from lightrail.model.attempts import waiting
from lightrail.shard.journal.files import DiskFile, Files, own_copy
from lightrail.shard.journal.identity import NOTHING, Extent
from lightrail.shard.journal.live import LiveSpans
from lightrail.shard.journal.segment import Segment, begun, name_of, numbers
from lightrail.shard.journal.store import JournalDamagedError, StoreRefusedError
from lightrail.shard.journal.tables import Tables

Check = Callable[[Extent, int], None]
"""Raises StoreError if a journal that reaches to this offset of its last segment is too short."""


@dataclass(slots=True)
class Replay:
    """The result of reading the segments, before any message is in memory."""

    tables: Tables
    segments: list[Segment] = field(default_factory=list)
    """Segments in order; their files are open."""
    live: dict[int, LiveSpans] = field(default_factory=dict)
    """Live messages by queue number."""
    lsn: int = 0
    cut_bytes: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Cut:
    """The first record of a group that may turn out to be incomplete."""

    index: int
    """Index of its segment in the list."""
    offset: int
    lsn: int
    last_ms: int
    """Time of the record before it."""


class _Replayer:
    """Reads the segments once."""

    __slots__ = ("_check", "_cut", "_epoch", "_files", "_group", "_replay", "_salt")

    def __init__(self, files: Files, salt: int, producers_max: int, check: Check, epoch: int) -> None:
        self._files = files
        self._salt = salt
        self._check = check
        self._epoch = epoch
        self._replay = Replay(Tables(producers_max))
        self._group: list[tuple[Segment, Found]] = []
        self._cut: _Cut | None = None

    def run(self) -> Replay:
        files, replay = self._files, self._replay
        opened = {number: files.open(name_of(number)) for number in numbers(files)}
        try:
            segments = begun(opened, self._salt)
            if segments:
                self._check_epoch(*segments[-1])
            for index, (number, header) in enumerate(segments):
                file = opened[number]
                last = index == len(segments) - 1
                size = file.size()
                segment = Segment(number, file, size, header.epoch)
                segment.index.first_lsn = header.first_lsn
                replay.segments.append(segment)
                if index == 0:
                    replay.lsn = header.first_lsn - 1
                if header.first_lsn != replay.lsn + 1:
                    raise JournalDamagedError(
                        name_of(number),
                        0,
                        f"it begins with record {header.first_lsn} where {replay.lsn + 1} should be",
                    )
                self._segment(index, segment, None if last else segments[index + 1][1].first_lsn)
            self._end(opened)
        except BaseException:
            for file in opened.values():
                file.close()
            raise
        return replay

    def _check_epoch(self, number: int, newest: SegmentHeader) -> None:
        if self._epoch <= newest.epoch and (self._epoch or newest.epoch):
            raise StoreRefusedError(
                f"expected an epoch of this owner after {newest.epoch}, which {name_of(number)} has, found "
                f"{self._epoch}: start the shard with the etcd of its cluster, which has its replicas"
            )

    def _segment(self, index: int, segment: Segment, next_lsn: int | None) -> None:
        """Replays one segment up to the next segment's first record, or to its end."""
        replay = self._replay
        scan = Scan(segment.file, self._salt, SEGMENT_HEADER_SIZE, segment.capacity, replay.lsn + 1, next_lsn)
        group = self._group
        last_ms = 0
        segment.captured = bool(replay.tables.captured)
        for found in scan:
            code, flags = found.code, found.flags
            if found.offset >= segment.mark:
                segment.note(found.lsn, found.offset, self._messages(segment), found.timestamp)
            try:
                if group or flags & CONTINUED:
                    if code == layout.SNAPSHOT:
                        continue  # A segment began within the group; its tables have the group's beginning.
                    if not group:
                        self._cut = _Cut(index, found.offset, found.lsn, last_ms)
                    group.append((segment, found))
                    if not flags & CONTINUED:
                        for where, member in group:
                            self._apply(where, member, scan)
                        group.clear()
                    elif code == layout.GAP:
                        group.clear()
                elif code == layout.APPEND:
                    self._append(segment, found)
                else:
                    self._apply(segment, found, scan)
            except layout.LayoutError as error:
                raise JournalDamagedError(name_of(segment.number), found.offset, str(error)) from error
            replay.lsn = found.lsn
            last_ms = max(last_ms, found.timestamp)
        segment.end = segment.written = scan.offset
        reached = scan.lsn
        assert reached is not None
        replay.lsn = reached - 1
        segment.seal(scan.offset, reached, segment.index.messages, last_ms)
        if next_lsn is not None:
            if reached != next_lsn:
                raise JournalDamagedError(
                    name_of(segment.number),
                    scan.offset,
                    f"{scan.found}, and the next segment begins with record {next_lsn}",
                )
            return
        file = segment.file
        for later in next_whole(
            file, self._salt, scan.offset, segment.capacity, reached, file.written(scan.offset)
        ):
            if later.lsn - later.unsynced > reached:
                raise JournalDamagedError(
                    name_of(segment.number),
                    scan.offset,
                    f"{scan.found}, though record {later.lsn} at offset {later.offset} says that it had been "
                    "synced",
                )

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
        tables = self._replay.tables
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
                self._replay.live[queue].add(
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

    def _unknown(self, queue: int) -> QueueEntry:
        """Makes an entry for a queue without a Queue record, which is possible only if records were lost."""
        if not self._replay.lost:
            raise layout.LayoutError(f"an Append names queue {queue}, which was not declared")
        entry = QueueEntry(queue, f"lost-and-found/{queue}", "{}")
        self._replay.tables.queues[queue] = entry
        self._replay.live[queue] = LiveSpans()
        return entry

    def _apply(self, segment: Segment, found: Found, scan: Scan) -> None:
        """Applies one record."""
        if found.code == layout.APPEND:
            self._append(segment, found)
            return
        if found.code in (layout.CLOSE, layout.DELIVERED):
            # Deliveries do not change where messages are.
            return
        replay = self._replay
        record = layout.decode_small(found.view, found.start, found.length)
        if isinstance(record, Settle):
            live = replay.live.get(record.queue)
            if live is not None:
                if record.outcome in RETURNING:
                    for first, last in record.ranges:
                        live.set_attempts(first, last, record.attempts)
                else:
                    for first, last in record.ranges:
                        live.remove(first, last)
        elif isinstance(record, Queue):
            segment.index.queues.append(found.offset)
            try:
                replay.tables.queue(record)
            except KeyError:
                if not replay.lost:
                    raise layout.LayoutError(
                        f"queue {record.queue} is changed and was not declared"
                    ) from None
            if replay.tables.captured:
                segment.captured = True
            if record.event == QueueEvent.DECLARED:
                replay.live[record.queue] = LiveSpans()
            elif record.event == QueueEvent.DELETED:
                replay.live.pop(record.queue, None)
        elif isinstance(record, Ids | Terminus | ReceiverChange):
            if record.queue in replay.tables.queues:
                self._keep(segment, record)
        elif isinstance(record, TransactionStep):
            segment.holds(record.size)
            replay.tables.transact(record, segment.number)
        elif isinstance(record, Taken):
            replay.tables.take(record)
        elif isinstance(record, Numbers):
            if record.queue in replay.tables.queues:
                replay.tables.learn(record)
        elif isinstance(record, Snapshot):
            replay.tables.restore(record)
            if replay.tables.captured:
                segment.captured = True
            live_queues = replay.live
            replay.live = {queue: live_queues.get(queue) or LiveSpans() for queue in replay.tables.queues}
        elif isinstance(record, Epoch):
            replay.tables.epoch = record.epoch
            replay.tables.sealed = False
        elif isinstance(record, Seal):
            replay.tables.epoch = record.epoch
            replay.tables.sealed = True
        elif isinstance(record, Gap):
            replay.lost.append((found.lsn, record.next_lsn))
            scan.skip_to(record.next_lsn)

    def _keep(self, segment: Segment, record: Ids | Terminus | ReceiverChange) -> None:
        """Applies a record that the cleaner writes again, as it is in no snapshot."""
        tables = self._replay.tables
        if isinstance(record, Ids):
            segment.holds_ids(record)
            tables.remember(record, segment.number, 0)
        elif isinstance(record, Terminus):
            segment.holds(TERMINUS_FIXED.size + record.size)
            tables.termini.apply(record, segment.number)
        else:
            segment.holds(RECEIVER_FIXED.size + record.size)
            tables.receivers.apply(record, segment.number)

    def _extent(self) -> Extent:
        """End of the whole records, in whole groups."""
        replay = self._replay
        if not replay.segments:
            return NOTHING
        last = replay.segments[-1]
        next_lsn = self._cut.lsn if self._group and self._cut is not None else replay.lsn + 1
        return Extent(last.number, last.index.first_lsn, next_lsn)

    def _end(self, opened: dict[int, DiskFile]) -> None:
        """Cuts incomplete records, in memory and on disk."""
        replay, files = self._replay, self._files
        segments = replay.segments
        for number, file in opened.items():
            if segments and number <= segments[-1].number:
                continue
            for found in next_whole(file, self._salt, 0, file.size(), replay.lsn + 1, file.written(0)):
                if found.lsn - found.unsynced > replay.lsn + 1:
                    raise JournalDamagedError(
                        name_of(number), 0, f"no header of this segment, but record {found.lsn}"
                    )
        keep = segments[-1].number if segments else 0
        self._check(self._extent(), segments[-1].end if segments else 0)
        if self._group:
            assert self._cut is not None
            cut = self._cut
            replay.lsn = cut.lsn - 1
            last = segments[cut.index]
            last.end = cut.offset
            last.cut(cut.lsn, cut.last_ms)
            for segment in segments[cut.index + 1 :]:
                replay.cut_bytes += segment.end
            del segments[cut.index + 1 :]
            keep = segments[-1].number
        gone = [number for number in opened if number > keep]
        # Backwards, so that the remaining records are always a prefix of the journal.
        for number in reversed(gone):
            opened.pop(number).close()
            files.remove(name_of(number))
        files.sync()
        if segments:
            last = segments[-1]
            size = last.file.size()
            if size > last.end:
                replay.cut_bytes += last.written_after(size)
                if last.file.links() > 1:
                    # Segments in the archive never need a cut after a crash, and must stay unchanged.
                    last.file = opened[last.number] = own_copy(files, name_of(last.number), last.file)
                last.file.truncate(last.end)
                last.file.sync()
            last.capacity = last.written = last.end


def replay(
    files: Files, salt: int, producers_max: int, check: Check = lambda *_: None, epoch: int = 0
) -> Replay:
    """Reads all segments of a journal; `check` is called before anything is changed.

    Raises:
        StoreRefusedError: the epoch is not later than that of the newest segment.
        JournalDamagedError: the journal has damage that no crash explains.
        NewerFormatError: the journal has a newer format.
        StoreError: raised by `check`.
        OSError: a call of the disk failed.
    """
    return _Replayer(files, salt, producers_max, check, epoch).run()
