"""The tail of a journal, where records get their number and location and wait for a commit.

Only references to their bytes are kept; the commit computes checksums, writes and syncs (commit.py). Only the
loop's thread may call methods of the tail, except `waiting`.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, cast

from lightrail.journal.layout import (
    APPEND,
    APPEND_BODY,
    APPEND_ONE,
    FRONT_SIZE,
    MARK,
    RECORD_SIZE_MAX,
    UNSYNCED_MAX,
    encode_small,
)
from lightrail.journal.record import (
    CONTINUED,
    RANGE_RECORDS,
    REWRITTEN,
    SPILLED,
    Close,
    Delivered,
    Gap,
    range_of,
)
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, encode_segment_header
from lightrail.model.attempts import WAITS
from lightrail.shard.journal.batches import columns
from lightrail.shard.journal.commit import NOWHERE, CommitPart, Entry, JournalCommit, Reached, last_of
from lightrail.shard.journal.files import DiskFile
from lightrail.shard.journal.record import Append, SmallRecord, encode_append_head
from lightrail.shard.journal.segment import Segment
from lightrail.shard.journal.space import Space
from lightrail.shard.journal.store import Commit, StoreBusyError
from lightrail.shard.journal.tables import Tables
from lightrail.shard.queue.values.runs import Location

_COPY_BYTES: Final = 1_024
"""Messages up to this size are copied into their record: cheaper than two more pieces of a gathered write."""


@dataclass(slots=True, eq=False, repr=False)
class Tail:
    """The end of a journal: the current segment, and the records that no commit has ended."""

    _segments: dict[int, Segment]
    """The segments of the journal in order; the tail adds new ones."""
    _tables: Tables
    _space: Space
    lsn: int
    """Number of the last record."""
    _salt: int
    _segment_bytes: int
    _epoch: int = 0
    """The epoch of this owner, which the headers of its segments have."""
    accepted: Reached = NOWHERE
    """See `Position.accepted`."""
    ended: Reached = NOWHERE
    """The end of the last commit, which is written, synced or not."""
    is_shared: bool = False
    """See `Position.is_shared`."""
    synced_lsn: int = field(init=False)
    """See `Position.synced_lsn`."""
    sync_wanted: bool = False
    _dropped: deque[tuple[int, Segment]] = field(default_factory=deque)
    """Dropped segments, whose files are removed by the first commit that begins when the records up to this
    number are accepted: until then they may have the only copy of what the cleaner wrote again."""
    segment: Segment = field(init=False)
    """The current segment."""
    _reserved_in: Segment = field(init=False)
    _reserved_to: int = 0
    """Offset in the current segment up to which room is reserved."""
    _part: CommitPart = field(init=False)
    _parts: list[CommitPart] = field(default_factory=list)
    _in_flight: JournalCommit | None = None
    _turned_away: bool = False
    """Whether a record found no room, and there will be some when the commit under way has ended."""
    _lsn_begun: int = field(init=False)
    """Number of the last record that is part of a commit."""
    _messages: int = 0
    """Number of messages appended since the process began."""
    _messages_begun: int = 0
    """Number of these messages that are part of a commit."""
    _last_ms: int = 0
    _whole: bool = True

    def __post_init__(self) -> None:
        # An empty placeholder with the number of the last segment, until the first roll begins a real one. It
        # has no room, so nobody touches its file.
        self.segment = self._reserved_in = Segment(max(self._segments, default=0), cast("DiskFile", None), 0)
        self.segment.end = 0
        self._part = CommitPart(self.segment, 0)
        self.synced_lsn = self._lsn_begun = self.lsn
        """Whether no group of records was open when the last commit began."""

    # --- appending -------------------------------------------------------------------------------------

    def append(self, record: Append, now_ms: int) -> Location:
        """Appends messages of queues that are in the tables.

        Raises:
            StoreFullError: there is no room for them; nothing has changed.
            ValueError: the record is too large, or names a queue that was not declared.
        """
        # Called once per batch. One long function, because a part of it would need most of these variables.
        batch = record.batch
        first, last = record.first, record.last
        size, ends, blob = columns(batch, first, last)
        count = last - first
        targets = record.targets
        length = APPEND_BODY + 16 * len(targets) + 4 * count + size
        if length > RECORD_SIZE_MAX:
            raise ValueError(f"a record has at most {RECORD_SIZE_MAX} bytes, this one would have {length}")
        queues = self._tables.queues
        for queue, _ in targets:
            if queue not in queues:
                raise ValueError(f"queue {queue} was not declared: append its Queue record first")

        space = self._space
        segment = self.segment
        offset = segment.end
        if (
            space.full
            and (not record.flags & REWRITTEN or record.spills)
            and (segment is not self._reserved_in or offset + length > self._reserved_to)
        ):
            space.ensure(now_ms)
            segment = self.segment
            offset = segment.end
        if offset + length > segment.capacity:
            self.roll(length, now_ms)
            segment = self.segment
            offset = segment.end
        elif space.spare is None and (offset + length) * 4 > segment.capacity * 3 and not space.full:
            space.ensure(now_ms)  # The rest is reserved for settlements until there is a next segment.

        lsn = self.lsn + 1
        if offset >= segment.mark:
            segment.note(lsn, offset, self._messages, now_ms)
        unsynced = self._unsynced(lsn)
        if len(targets) == 1 and record.attempts < WAITS:
            queue, sequence = targets[0]
            rest = APPEND_ONE.pack(
                *(APPEND, record.flags, MARK, unsynced, lsn, now_ms, record.producer, record.number),
                *(batch.enqueued_at_ms, batch.expires_at_ms or 0, batch.message_format, count, size),
                *(record.attempts, 1, batch.priority, batch.durable, queue, sequence),
            )
        else:
            rest = encode_append_head(record, lsn, unsynced, now_ms, size)
        entry: Entry
        if size <= _COPY_BYTES:
            entry = (length, b"".join((rest, ends, blob)), None, None)
        else:
            entry = (length, rest, ends, blob)
        self._part.entries.append(entry)
        self.lsn = lsn
        segment.end = offset + length
        self._messages += count
        if not record.flags & SPILLED:
            self.sync_wanted = True
        for queue, sequence in targets:
            table = queues[queue]
            if sequence + count > table.next_sequence:
                table.next_sequence = sequence + count
            elif not record.flags & REWRITTEN and queue in self._tables.captured:
                # It was enqueued under a number that was taken before.
                segment.touched = True
        if record.producer and not record.flags & SPILLED:
            # Only numbers of batches whose messages a restart recovers are kept.
            self._tables.produced(record.producer, record.number)
        segment.append_bytes += length
        share = size * len(targets)
        segment.appended += share
        segment.live += share
        return Location(segment.number, offset, length)

    def small(self, record: SmallRecord | Close | Gap, now_ms: int) -> int:
        """Appends any record except Append; it may use the last of the space. Returns its offset."""
        lsn = self.lsn + 1
        rest = encode_small(record, lsn, self._unsynced(lsn), now_ms)
        length = FRONT_SIZE + len(rest)
        segment = self.segment
        if segment.end + length > segment.capacity:
            self.roll(length, now_ms)
            segment = self.segment
            lsn = self.lsn + 1
            rest = encode_small(record, lsn, self._unsynced(lsn), now_ms)
        self._part.entries.append((length, rest, None, None))
        self.lsn = lsn
        offset = segment.end
        if offset >= segment.mark:
            segment.note(lsn, offset, self._messages, now_ms)
        segment.end = offset + length
        if type(record) is not Delivered:
            self.sync_wanted = True
        return offset

    def begin_range(self, number: int, now_ms: int) -> list[tuple[int, int]]:
        """Goes on with the first record of a range (journal/record.py), unless the journal is as far.

        A process may end between this segment's header and the Gap: then the next one appends it.

        Returns:
            The number of the Gap, and that of the record behind it; nothing if there is no new one.
        """
        if range_of(self.lsn + 1) >= number:
            return []
        next_lsn = number * RANGE_RECORDS
        self.small(Gap(next_lsn), now_ms)
        gap = self.lsn
        # The numbers between are no records of a commit.
        self._lsn_begun += next_lsn - 1 - gap
        self.lsn = next_lsn - 1
        return [(gap, next_lsn)]

    def reserve(self, size: int, now_ms: int) -> None:
        """Makes room for records of `size` bytes in total in the current segment.

        Raises:
            StoreFullError: there is no room; nothing has changed.
        """
        if self._space.full:
            self._space.ensure(now_ms)
        if self.segment.end + size > self.segment.capacity:
            self.roll(size, now_ms)
        self._reserved_in, self._reserved_to = self.segment, self.segment.end + size

    def roll(self, length: int, now_ms: int) -> None:
        """Ends this segment and begins the next one, with room for a record of `length` bytes.

        Raises:
            StoreFullError: there is no space; nothing has changed.
            StoreBusyError: there will be space when the commit under way has ended.
        """
        lsn = self.lsn + 1
        snapshot = encode_small(self._tables.snapshot(), lsn, self._unsynced(lsn), now_ms)
        head = SEGMENT_HEADER_SIZE + FRONT_SIZE + len(snapshot)
        needed = head + length
        if needed * 4 > self._segment_bytes:
            needed += self._segment_bytes // 4  # Settlements need room beside a very large record.
        try:
            segment = self._space.take(needed)
        except StoreBusyError:
            self._turned_away = True
            raise
        self._turned_away = False
        old = self._part
        if old.segment.capacity:
            old.end = old.segment.capacity = old.segment.end
            old.sealed = True
            if old.entries:
                self._last_ms = max(self._last_ms, last_of(old.entries)[1])
            old.segment.seal(old.end, lsn, self._messages, self._last_ms)
            self._parts.append(old)
        self.segment = self._segments[segment.number] = segment
        segment.index.first_lsn = lsn
        segment.epoch = self._epoch
        segment.messages_before = self._messages
        segment.begun_ms = now_ms
        tables = self._tables
        if tables.captured:
            segment.captured = True
            segment.captured_from = {queue: tables.queues[queue].next_sequence for queue in tables.captured}
        header = encode_segment_header(segment.number, lsn, self._salt, self._epoch)
        self._part = CommitPart(
            segment, 0, [(0, header, None, None), (FRONT_SIZE + len(snapshot), snapshot, None, None)]
        )
        segment.note(lsn, SEGMENT_HEADER_SIZE, self._messages, now_ms)
        segment.end = head
        self.lsn = lsn
        self.sync_wanted = True

    def drop(self, segment: Segment) -> None:
        """Removes the file of the oldest segment when all records so far are accepted."""
        self._dropped.append((self.lsn, segment))
        if self.synced_lsn < self.lsn:
            self.sync_wanted = True

    @property
    def is_crowded(self) -> bool:
        """Whether the commit thread has to make the next segment, and the current one has little room."""
        space, segment = self._space, self.segment
        if space.spare is not None or not space.is_committing:
            return False
        return self._turned_away or segment.end * 4 > segment.capacity * 3

    def _unsynced(self, lsn: int) -> int:
        """Number of records before this one that are not known to be on the disks of all required members."""
        return min(lsn - self.accepted.next_lsn, UNSYNCED_MAX)

    # --- committing ------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """See `Store.pending`."""
        return bool(
            self._part.entries
            or self._parts
            or self.sync_wanted
            or (self._dropped and self._dropped[0][0] < self.accepted.next_lsn)
        )

    def begin_commit(self) -> JournalCommit:
        """See `Store.begin_commit`."""
        assert self._in_flight is None, "one commit at a time"
        part = self._part
        part.end = part.segment.end
        if part.entries:
            flags, last_ms = last_of(part.entries)
            self._last_ms = max(self._last_ms, last_ms)
            self._whole = not flags & CONTINUED
        parts = [*self._parts, part] if part.segment.capacity else self._parts
        drops: list[Segment] = []
        while self._dropped and self._dropped[0][0] < self.accepted.next_lsn:
            drops.append(self._dropped.popleft()[1])
        commit = JournalCommit(
            parts,
            self._salt,
            self._space,
            synced=self.sync_wanted,
            last_lsn=self.lsn,
            records=self.lsn - self._lsn_begun,
            messages=self._messages - self._messages_begun,
            reached=Reached(
                part.segment.number,
                part.end,
                self.lsn + 1,
                self._messages - part.segment.messages_before,
                self._last_ms,
                self._whole,
            ),
            is_shared=self.is_shared,
            drops=drops,
        )
        self._in_flight = commit
        self._space.is_committing = True
        self._parts = []
        self._part = CommitPart(part.segment, part.end)
        self._lsn_begun = self.lsn
        self._messages_begun = self._messages
        self.sync_wanted = False
        return commit

    def end_commit(self, commit: JournalCommit) -> None:
        """See `Store.end_commit`."""
        assert commit is self._in_flight, "the commit that was begun"
        for part in commit.parts:
            part.segment.written = part.end
        self._in_flight = None
        self._space.is_committing = False
        self.ended = commit.reached
        if commit.synced:
            self.synced_lsn = commit.last_lsn

    @property
    def leaving(self) -> list[Segment]:
        """Dropped segments whose files stay until later records are accepted, the oldest first."""
        return [segment for _, segment in self._dropped]

    def fail_commit(self, commit: Commit) -> None:
        """See `Store.fail_commit`."""
        assert commit is self._in_flight, "the commit that was begun"
        self._in_flight = None
        self._space.is_committing = False

    def waiting(self, segment: Segment) -> list[CommitPart]:
        """Records that are not on disk yet, the newest first, so that a reader misses none that a commit
        takes meanwhile.

        Any thread may call it.
        """
        newest = [self._part, *reversed(self._parts)]
        commit = self._in_flight
        if commit is not None:
            newest += reversed(commit.parts)
        return [part for part in newest if part.segment is segment and part.entries]
