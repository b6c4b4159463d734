"""The journal: an append-only log in segments behind the store port, one commit thread behind the loop's.

`append` gives a record its number and its place at once and keeps only references to its bytes; checksums,
writes and syncs happen in `perform`. See docs/formats/journal.md for the bytes and recovery.py for the rules
that the order of writes and syncs here has to uphold:

- a segment's file is made, allocated and its name synced before it is begun;
- a segment is synced before anything is written to the next one;
- a segment is removed only after everything appended before `drop` is synced, one at a time, oldest first.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from lightrail.journal.archive import Incarnation
from lightrail.journal.layout import (
    APPEND,
    APPEND_BODY,
    APPEND_ONE,
    FRONT_SIZE,
    MARK,
    RECORD_SIZE_MAX,
    SEGMENT_HEADER_SIZE,
    UNSYNCED_MAX,
    encode_segment_header,
    encode_small,
)
from lightrail.journal.record import (
    CONTINUED,
    REWRITTEN,
    SPILLED,
    Close,
    Delivered,
    Epoch,
    Ids,
    Numbers,
    Queue,
    QueueEvent,
    Seal,
    Settle,
    Taken,
)
from lightrail.model import limits
from lightrail.shard.journal import identity, recovery
from lightrail.shard.journal.batches import columns
from lightrail.shard.journal.cleaner import oldest_to_clean
from lightrail.shard.journal.commit import Entry, JournalCommit, Part, Reached, last_of
from lightrail.shard.journal.files import Files
from lightrail.shard.journal.loading import load_queues
from lightrail.shard.journal.reading import read_place
from lightrail.shard.journal.record import Append, Record, encode_append_head
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.space import Space
from lightrail.shard.journal.store import (
    Commit,
    Recovered,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreRefused,
    Usage,
    only_tells,
)
from lightrail.shard.journal.tables import Group, Tables
from lightrail.shard.queue.runs import Place, Run

_COPY_BYTES: Final = 1_024
"""Messages up to this size are copied into their record: cheaper than two more pieces of a gathered write."""


class Journal:
    """See `Store` in store.py."""

    captures: Final = True

    def __init__(
        self,
        files: Files,
        cluster: str = "",
        shard: int = 0,
        *,
        segment_bytes: int = limits.SEGMENT_BYTES,
        producers_max: int = limits.PRODUCERS_MAX,
    ) -> None:
        self.files: Final = files
        self.incarnation = Incarnation(cluster, shard, "")
        self._files = files
        self._cluster = cluster
        self._shard = shard
        self._segment_bytes = segment_bytes
        self._tables = Tables(producers_max)
        self._salt = 0
        self._lsn = 0
        self._synced_lsn = 0
        self._segments: dict[int, Segment] = {}
        self._segment: Segment
        self._part: Part
        self._parts: list[Part] = []
        self._in_flight: JournalCommit | None = None
        self._records = 0
        self._messages = 0
        """Since the process began."""
        self._messages_begun = 0
        """Of those, in commits."""
        self._last_ms = 0
        self._whole = True
        """No group of records was open when the last commit began."""
        self.committed = Reached(0, 0, 1, 0, 0, True)
        """How far it is on disk, groups whole: what may be shown to others. Any thread may look."""
        self.holds: Callable[[Segment], bool] | None = None
        """Whether a segment must not go yet, as it is wanted in the archive and not there."""
        self._sync_wanted = False
        self._drops: list[Segment] = []
        self._space = Space(files, segment_bytes, 1)
        self._relief: Callable[[int], bool] | None = None
        self._refusal = "it has not been recovered yet: call recover() first"
        self._usage = Usage()

    # --- opening and closing ---------------------------------------------------------------------------

    def recover(self, memory_bytes: int, now_ms: int = 0) -> Recovered:
        """See `Store.recover`. A new segment is begun; what was cut is cut on disk when this returns."""
        files = self._files
        if not files.lock():
            raise StoreRefused(
                "expected to be the only one with this journal, found that another process holds it: "
                "stop that process, or give this one its own directory"
            )
        try:
            return self._recover(memory_bytes, now_ms)
        except BaseException:
            files.unlock()
            raise

    def _recover(self, memory_bytes: int, now_ms: int) -> Recovered:
        files = self._files
        salt = None
        if identity.load(files) is None:
            salt = recovery.salt_of(files)
        found = identity.settle(files, self._cluster, self._shard, salt)
        self._salt = found.salt
        self.incarnation = Incarnation(found.cluster, found.shard, found.disk)
        replay = recovery.replay(files, self._salt, self._tables.producers_max)
        self._segments = {segment.number: segment for segment in replay.segments}
        try:
            queues = load_queues(replay, self._salt, memory_bytes)
        except BaseException:
            for segment in replay.segments:
                segment.close()
            raise
        self._tables = replay.tables
        self._lsn = self._synced_lsn = replay.lsn
        if replay.segments:
            index = replay.segments[-1].index
            self.committed = Reached(
                index.segment, index.end, index.next_lsn, index.messages, index.last_ms, True
            )
        recovered = Recovered(
            queues,
            dict(replay.tables.producers),
            replay.tables.epoch,
            replay.lsn,
            replay.tables.sealed,
            replay.cut_bytes,
            replay.lost,
            dict(replay.tables.parts),
        )
        self._refusal = ""
        # A segment of no size at the end of what is there: the first roll leaves it for a real one.
        last = replay.segments[-1].number if replay.segments else 0
        self._space = Space(files, self._segment_bytes, last + 1)
        self._space.free = self._relief
        self._segment = Segment(last, _NoFile(), 0)
        self._segment.end = 0
        self._part = Part(self._segment, 0)
        with contextlib.suppress(StoreFull):
            # On a full disk the shard still starts: it can deliver, and gets its segment when space is back.
            self._roll(0, now_ms)
            self.flush()
        return recovered

    def close(self, now_ms: int = 0) -> None:
        """See `Store.close`."""
        try:
            if not self._refusal:
                with contextlib.suppress(StoreFull):
                    self._small(Close(), now_ms)
                self.flush()
        finally:
            self._refusal = "it is closed"
            for segment in self._segments.values():
                segment.close()
            self._space.close()
            self._files.unlock()

    def flush(self) -> None:
        """Commits what has gathered here and now: for opening, closing, and tools.

        Raises:
            OSError: the disk refused.
        """
        if not self.pending:
            return
        commit = self.begin_commit()
        try:
            commit.perform()
        except BaseException as error:
            self.fail_commit(commit, error)
            raise
        self.end_commit(commit)

    # --- appending -------------------------------------------------------------------------------------

    def append(self, record: Record, now_ms: int = 0) -> Place | None:
        """See `Store.append`."""
        if self._refusal:
            raise StoreBroken(f"the journal takes no records: {self._refusal}")
        try:
            if isinstance(record, Append):
                return self._append(record, now_ms)
            self._append_other(record, now_ms)
        except OSError as error:
            # Of the files of the next segment; what this one holds is not in doubt, but the disk is.
            self._refuse(error)
            raise StoreBroken(f"the journal takes no records: {self._refusal}") from error
        return None

    def _append_other(
        self, record: Settle | Delivered | Queue | Ids | Taken | Numbers | Seal | Epoch, now_ms: int
    ) -> None:
        if isinstance(record, Queue):
            if record.event != QueueEvent.DECLARED and record.queue not in self._tables.queues:
                raise ValueError(f"queue {record.queue} was not declared: append its Queue record first")
            offset = self._small(record, now_ms)
            segment = self._segment
            segment.index.queues.append(offset)
            if record.event == QueueEvent.DELETED and record.queue in self._tables.ids:
                self._forgotten(self._tables.ids[record.queue].groups)
            if record.queue in self._tables.captured:
                segment.touched = True
            self._tables.queue(record)
            if record.queue in self._tables.captured:
                segment.captured = True
                entry = self._tables.queues[record.queue]
                segment.captured_from.setdefault(record.queue, entry.next_sequence)
        elif isinstance(record, Epoch | Seal):
            self._small(record, now_ms)
            self._tables.epoch = record.epoch
        elif isinstance(record, Ids):
            self._small(record, now_ms)
            self._segment.holds_ids(record)
            self._segment.live += len(record.digests)
            self._forgotten(self._tables.remember(record, self._segment.number, now_ms))
        elif isinstance(record, Taken):
            self._small(record, now_ms)
            self._tables.take(record)
        elif isinstance(record, Numbers):
            if record.queue not in self._tables.queues:
                raise ValueError(f"queue {record.queue} was not declared: append its Queue record first")
            self._small(record, now_ms)
            self._tables.learn(record)
        else:
            if self._space.full and only_tells(record):
                self._space.ensure(now_ms)
            self._small(record, now_ms)
            captured = self._tables.captured
            if captured and record.queue in captured:
                self._segment.touched = True

    def _append(self, record: Append, now_ms: int) -> Place:
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
        if space.full and (not record.flags & REWRITTEN or record.spills):
            space.ensure(now_ms)
        segment = self._segment
        offset = segment.end
        if offset + length > segment.capacity:
            self._roll(length, now_ms)
            segment = self._segment
            offset = segment.end
        elif space.spare is None and (offset + length) * 4 > segment.capacity * 3 and not space.full:
            space.ensure(now_ms)  # What is left is for settlements until the next segment is sure.

        lsn = self._lsn + 1
        if offset >= segment.mark:
            segment.note(lsn, offset, self._messages, now_ms)
        unsynced = self._unsynced(lsn)
        if len(targets) == 1:
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
        self._lsn = lsn
        segment.end = offset + length
        self._records += 1
        self._messages += count
        if not record.flags & SPILLED:
            self._sync_wanted = True
        for queue, sequence in targets:
            table = queues[queue]
            if sequence + count > table.next_sequence:
                table.next_sequence = sequence + count
        if record.producer and not record.flags & SPILLED:
            # A number that is remembered stands for messages that a restart brings back.
            self._tables.produced(record.producer, record.number)
        segment.append_bytes += length
        share = size * len(targets)
        segment.appended += share
        segment.live += share
        return Place(segment.number, offset, length)

    def _small(
        self, record: Settle | Delivered | Queue | Ids | Taken | Numbers | Seal | Epoch | Close, now_ms: int
    ) -> int:
        """Any record but Append; it may use the last of the space. Returns its offset."""
        lsn = self._lsn + 1
        rest = encode_small(record, lsn, self._unsynced(lsn), now_ms)
        length = FRONT_SIZE + len(rest)
        segment = self._segment
        if segment.end + length > segment.capacity:
            self._roll(length, now_ms)
            segment = self._segment
            lsn = self._lsn + 1
            rest = encode_small(record, lsn, self._unsynced(lsn), now_ms)
        self._part.entries.append((length, rest, None, None))
        self._lsn = lsn
        offset = segment.end
        if offset >= segment.mark:
            segment.note(lsn, offset, self._messages, now_ms)
        segment.end = offset + length
        self._records += 1
        if type(record) is not Delivered:
            self._sync_wanted = True
        return offset

    def _roll(self, length: int, now_ms: int) -> None:
        """Leaves this segment and begins the next, with room for a record of `length`.

        Raises:
            StoreFull: there is no space; nothing has changed.
        """
        lsn = self._lsn + 1
        snapshot = encode_small(self._tables.snapshot(), lsn, self._unsynced(lsn), now_ms)
        head = SEGMENT_HEADER_SIZE + FRONT_SIZE + len(snapshot)
        needed = head + length
        if needed * 4 > self._segment_bytes:
            needed += self._segment_bytes // 4  # Settlements need room beside a very large record.
        segment = self._space.take(needed)
        old = self._part
        if old.segment.capacity:
            old.end = old.segment.capacity = old.segment.end
            old.sealed = True
            if old.entries:
                self._last_ms = max(self._last_ms, last_of(old.entries)[1])
            old.segment.seal(old.end, lsn, self._messages, self._last_ms)
            self._parts.append(old)
        self._segment = self._segments[segment.number] = segment
        segment.index.first_lsn = lsn
        segment.messages_before = self._messages
        segment.begun_ms = now_ms
        tables = self._tables
        if tables.captured:
            segment.captured = True
            segment.captured_from = {queue: tables.queues[queue].next_sequence for queue in tables.captured}
        header = encode_segment_header(segment.number, lsn, self._salt)
        self._part = Part(
            segment, 0, [(0, header, None, None), (FRONT_SIZE + len(snapshot), snapshot, None, None)]
        )
        segment.note(lsn, SEGMENT_HEADER_SIZE, self._messages, now_ms)
        segment.end = head
        self._lsn = lsn
        self._records += 1
        self._sync_wanted = True

    def _forgotten(self, groups: Iterable[Group]) -> None:
        for group in groups:
            self.release(group.segment, group.size)

    def _unsynced(self, lsn: int) -> int:
        """How many records before this one are not known to be on disk."""
        return min(lsn - 1 - self._synced_lsn, UNSYNCED_MAX)

    # --- committing ------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """See `Store.pending`."""
        return bool(self._part.entries or self._parts or self._drops or self._sync_wanted)

    def begin_commit(self) -> JournalCommit:
        """See `Store.begin_commit`."""
        if self._refusal:
            raise StoreBroken(f"the journal commits nothing: {self._refusal}")
        assert self._in_flight is None, "one commit at a time"
        part = self._part
        part.end = part.segment.end
        if part.entries:
            flags, last_ms = last_of(part.entries)
            self._last_ms = max(self._last_ms, last_ms)
            self._whole = not flags & CONTINUED
        # A group without anything to sync may be followed by a drop: then what it wrote is synced first.
        parts = [*self._parts, part] if part.segment.capacity else self._parts
        commit = JournalCommit(
            parts,
            salt=self._salt,
            synced=self._sync_wanted or bool(self._drops),
            last_lsn=self._lsn,
            records=self._records,
            messages=self._messages - self._messages_begun,
            reached=Reached(
                part.segment.number,
                part.end,
                self._lsn + 1,
                self._messages - part.segment.messages_before,
                self._last_ms,
                self._whole,
            ),
            drops=self._drops,
            afterwards=self._space.tidy,
        )
        self._in_flight = commit
        self._parts = []
        self._part = Part(part.segment, part.end)
        self._records = 0
        self._messages_begun = self._messages
        self._sync_wanted = False
        self._drops = []
        return commit

    def end_commit(self, commit: Commit) -> None:
        """See `Store.end_commit`."""
        assert isinstance(commit, JournalCommit)
        assert commit is self._in_flight, "the commit that was begun"
        for part in commit.parts:
            part.segment.written = part.end
        self._in_flight = None
        if commit.synced:
            self._synced_lsn = commit.last_lsn
            if commit.reached.whole and commit.parts:
                self.committed = commit.reached
        usage = self._usage
        usage.records += commit.records
        usage.messages += commit.messages
        usage.written_bytes += commit.bytes
        usage.commits += 1
        usage.syncs += commit.syncs
        usage.sync_seconds += commit.sync_seconds
        usage.segments_dropped += len(commit.drops)

    def fail_commit(self, commit: Commit, error: BaseException) -> None:
        """See `Store.fail_commit`. What a failed sync leaves in memory counts as written although it is not
        on disk, so it is never synced again: only recovery, which reads the disk, knows what is there."""
        assert commit is self._in_flight, "the commit that was begun"
        self._in_flight = None
        self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        self._refusal = f"writing to the disk failed ({error}); restart the shard when the disk is well"

    @property
    def full(self) -> bool:
        """The disk had no room for the next segment when it was asked last."""
        return self._space.full

    def relieve_by(self, free: Callable[[int], bool]) -> None:
        """Where the disk is full, `free` is asked for room for so many bytes; any thread calls it.

        It says whether it has removed anything.
        """
        self._relief = free
        self._space.free = free

    # --- for readers of the journal and the archive ------------------------------------------------------

    def want_sync(self) -> None:
        """What was written without a sync is synced with the next commit, if there is anything."""
        if self._synced_lsn < self._lsn and not self._refusal and self._segment.capacity:
            self._sync_wanted = True

    def segments(self) -> list[Segment]:
        """All of them, the oldest first. Any thread may ask."""
        return list(self._segments.values())

    def segment(self, number: int) -> Segment | None:
        """One of them. Any thread may ask."""
        return self._segments.get(number)

    @property
    def is_capturing(self) -> bool:
        """Whether a queue of this journal is captured now."""
        return bool(self._tables.captured)

    def seal(self, now_ms: int) -> bool:
        """Begins the next segment although this one is not full. False where there is no room for one."""
        if self._refusal:
            return False
        try:
            self._roll(0, now_ms)
        except StoreFull:
            return False
        except OSError as error:
            self._refuse(error)
            return False
        return True

    @property
    def current(self) -> Segment:
        """The segment that is written now."""
        return self._segment

    @property
    def has_records(self) -> bool:
        """Whether the segment that is written now has any but its Snapshot."""
        return self._lsn > self._segment.index.first_lsn

    @property
    def has_captured(self) -> bool:
        """Whether the segment that is written now says anything of a captured queue."""
        segment = self._segment
        if segment.touched:
            return True
        queues = self._tables.queues
        return any(
            queue in queues and queues[queue].next_sequence != sequence
            for queue, sequence in segment.captured_from.items()
        )

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, place: Place, queue: int, first: int, last: int) -> list[Run]:
        """See `Store.read`."""
        segment = self._segments.get(place.segment)
        if segment is None or not segment.pin():
            raise StoreError(f"expected segment {name_of(place.segment)} in the journal, it is not there")
        try:
            return read_place(segment, self._waiting(segment), self._salt, place, queue, first, last)
        finally:
            segment.unpin()

    def _waiting(self, segment: Segment) -> list[Part]:
        """What is not on disk yet, from the newest to the oldest: a reader must not miss what moves on."""
        newest = [self._part, *reversed(self._parts)]
        commit = self._in_flight
        if commit is not None:
            newest += reversed(commit.parts)
        return [part for part in newest if part.segment is segment and part.entries]

    # --- space that comes back -------------------------------------------------------------------------

    def release(self, segment: int, size: int) -> None:
        """See `Store.release`."""
        known = self._segments.get(segment)
        if known is not None:
            known.live -= size

    def oldest_to_clean(self) -> int | None:
        """See `Store.oldest_to_clean`."""
        spare = self._space.spare
        room = self._segment.capacity - self._segment.end if self._space.full else None
        oldest = oldest_to_clean(
            list(self._segments.values()), self._segment_bytes, spare.capacity if spare else 0, room
        )
        if oldest is not None and self.holds is not None and self.holds(self._segments[oldest]):
            return None
        return oldest

    def drop(self, segment: int, now_ms: int = 0) -> None:
        """See `Store.drop`. Message-ids that are still within their window are written again at the tail."""
        oldest = next(iter(self._segments))
        if segment != oldest or segment == self._segment.number:
            raise ValueError(f"only the oldest segment, {oldest}, may be dropped, not {segment}")
        try:
            self._move_ids(segment, now_ms)
        except StoreFull:
            return  # It is asked for again with the next commit.
        self._drops.append(self._segments.pop(segment))

    def _move_ids(self, segment: int, now_ms: int) -> None:
        for queue, known in self._tables.ids.items():
            self._forgotten(known.forget(now_ms))
            for group in known.groups:
                if group.segment == segment:
                    record = Ids(queue, group.until_ms, group.digests, REWRITTEN)
                    self._small(record, now_ms)
                    self._segment.holds_ids(record)
                    self._segment.live += group.size
                    self.release(segment, group.size)
                    group.segment = self._segment.number

    def usage(self) -> Usage:
        """See `Store.usage`."""
        usage = self._usage
        segments = list(self._segments.values())
        spare = self._space.spare
        usage.segments_made = self._space.made
        usage.segments = len(segments)
        usage.total_bytes = sum(segment.capacity for segment in segments) + (spare.capacity if spare else 0)
        usage.live_bytes = sum(segment.live_bytes for segment in segments)
        usage.full = self._space.full
        usage.broken = self._refusal
        return usage


class _NoFile:
    """The file of the segment before the first: nothing is ever written there."""

    def size(self) -> int:
        return 0

    def read(self, offset: int, length: int) -> bytes:
        return b""

    def write(self, offset: int, pieces: object) -> int:
        raise AssertionError("written before a segment was begun")

    def sync(self) -> None:
        return

    def allocate(self, size: int) -> None:
        return

    def truncate(self, size: int) -> None:
        return

    def links(self) -> int:
        return 1

    def forget(self) -> None:
        return

    def close(self) -> None:
        return
