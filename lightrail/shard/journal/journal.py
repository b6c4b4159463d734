"""The journal: an append-only log in segments that implements the store port, with one commit thread.

A record gets its number and its location at once at the tail (tail.py), which keeps only references to its
bytes; checksums, writes and syncs happen in `perform` (commit.py). See docs/formats/journal.md for the bytes
and recovery.py for the rules that the order of writes and syncs has to uphold:

- a segment's file is made, allocated and its name synced before it is begun;
- a segment is synced before anything is written to the next one;
- a segment is removed only after everything appended before `drop` is accepted, one at a time, oldest first;
- the extent file has a new segment (identity.py) before any answer for a record in it is sent.

A shard may have members beside this journal's owner, each with the same bytes on its own disk. Then a record
is accepted when the required ones have synced it, too (replicas/marks.py), and all that others see or lose
follows the accepted end. The first commit after the acceptance of a new segment writes its extent.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from lightrail.journal.archive import Incarnation
from lightrail.journal.record import CONTINUED, Close
from lightrail.model import limits
from lightrail.shard.journal.batches import read_location
from lightrail.shard.journal.commit import NOWHERE, JournalCommit, Reached
from lightrail.shard.journal.files import Files
from lightrail.shard.journal.identity import NOTHING, Extent, ExtentFile, lock
from lightrail.shard.journal.loading import open_files
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.small_records import SmallRecords
from lightrail.shard.journal.space import Space, oldest_to_clean
from lightrail.shard.journal.standby import Standby
from lightrail.shard.journal.store import (
    Commit,
    Recovered,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    Usage,
)
from lightrail.shard.journal.tables import Tables
from lightrail.shard.journal.tail import Tail
from lightrail.shard.queue.values.runs import Location, Run
from lightrail.shard.replicas.marks import Marks


class Journal:
    """See `Store` in store.py."""

    captures: Final = True
    outlives: Final = True

    def __init__(
        self,
        files: Files,
        cluster: str = "",
        shard: int = 0,
        *,
        segment_bytes: int = limits.SEGMENT_BYTES,
        producers_max: int = limits.PRODUCERS_MAX,
        marks: Marks[Reached] | None = None,
    ) -> None:
        self.files: Final = files
        self.marks: Marks[Reached] = Marks() if marks is None else marks
        """What other members have synced; a change of it counts from the next `accept` on."""
        self.incarnation = Incarnation(cluster, shard, "")
        self._cluster = cluster
        self._shard = shard
        self._segment_bytes = segment_bytes
        self._tables = Tables(producers_max)
        self.salt = 0
        self._segments: dict[int, Segment] = {}
        """Segments by number, the oldest first; the tail adds new ones."""
        self._tail: Tail
        self._small: SmallRecords
        self.holds: Callable[[Segment], bool] | None = None
        """Whether a segment must be kept because it has to be archived and is not in the archive yet."""
        self.judge: Callable[[Extent], None] = lambda _: None
        """Recovery calls it before it changes a file; it raises StoreError if the journal is too short."""
        self.promoted_in = 0
        """See `ReplicaSet.promoted_in`: recovery begins this range of numbers, if it has not begun."""
        self._extent = ExtentFile(files, 0, NOTHING)
        self._extent_wanted = False
        self._space = Space(files, segment_bytes, 1)
        self._relief: Callable[[int], bool] | None = None
        self.failure = "the journal has not been recovered yet: call recover() first"
        self.is_group_open = False
        self._usage = Usage()

    # --- opening and closing ---------------------------------------------------------------------------

    def recover(
        self, memory_bytes: int, now_ms: int = 0, epoch: int = 0, standby: Standby | None = None
    ) -> Recovered:
        """See `Store.recover`. Begins a new segment; a torn tail is cut on disk when this returns.

        `epoch` is that of this owner, later than those of all segments; 0 for a shard without replicas. With
        a standby of this journal, the rest of it is read.
        """
        lock(self.files)
        try:
            return self._recover(memory_bytes, now_ms, epoch, standby)
        except BaseException:
            self.files.unlock()
            raise

    def _recover(self, memory_bytes: int, now_ms: int, epoch: int, standby: Standby | None) -> Recovered:
        own = self._cluster, self._shard, self._tables.producers_max
        former = None if standby is None else standby.take()
        opened = open_files(self.files, *own, memory_bytes, self.judge, epoch, former)
        replay = opened.replay
        self.salt, self.incarnation = opened.salt, opened.incarnation
        self._segments = {segment.number: segment for segment in replay.segments}
        self._tables = replay.tables
        recovered = opened.recovered()
        self.failure = ""
        self._extent = ExtentFile(self.files, self.salt, opened.extent)
        self._space = Space(self.files, self._segment_bytes, max(self._segments, default=0) + 1)
        self._space.free = self._relief
        self._tail = Tail(
            self._segments, self._tables, self._space, replay.lsn, self.salt, self._segment_bytes, epoch
        )
        self._small = SmallRecords(self._tail, self._tables, self._space, self._segments)
        self._tail.accepted = NOWHERE if self.marks.others else opened.reached()
        self.accept()
        try:
            self._tail.roll(0, now_ms)
            replay.lost += self._tail.begin_range(self.promoted_in, now_ms)
            self.flush()
        except StoreFullError:
            # The shard still starts, and makes its segment when space is free; one with replicas needs it.
            if epoch:
                raise
        return recovered

    def close(self, now_ms: int = 0) -> None:
        """See `Store.close`."""
        try:
            if not self.failure:
                with contextlib.suppress(StoreFullError):
                    self._tail.small(Close(), now_ms)
                self.flush()
                if self.extent.next_lsn > self._extent.written.next_lsn:
                    self._extent.write(self.extent, sync=True)
        finally:
            self.failure = "the journal is closed"
            self._extent.close()
            for segment in self._segments.values():
                segment.close()
            self._space.close()
            self.files.unlock()

    def flush(self) -> None:
        """Commits the gathered records in this thread: for opening, closing, and tools. Raises OSError."""
        while self.pending:
            commit = self.begin_commit()
            try:
                commit.perform()
            except BaseException as error:
                self.fail_commit(commit, error)
                raise
            self.end_commit(commit)

    # --- appending -------------------------------------------------------------------------------------

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        """See `Store.append`."""
        if self.failure:
            raise self._broken()
        if self.is_group_open:
            record.flags |= CONTINUED
        try:
            if isinstance(record, Append):
                return self._tail.append(record, now_ms)
            self._small.append(record, now_ms)
        except OSError as error:
            # Making the next segment failed; this segment is intact, but the disk can't be trusted.
            self._refuse(error)
            raise self._broken() from error
        return None

    def reserve(self, size: int, now_ms: int = 0) -> None:
        """See `Store.reserve`."""
        if self.failure:
            raise self._broken()
        try:
            self._tail.reserve(size, now_ms)
        except OSError as error:
            self._refuse(error)
            raise self._broken() from error

    # --- committing ------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """See `Store.pending`."""
        return self._tail.pending or self._extent_wanted

    def begin_commit(self) -> JournalCommit:
        """See `Store.begin_commit`."""
        if self.failure:
            raise StoreBrokenError(f"the journal commits nothing: {self.failure}")
        commit = self._tail.begin_commit()
        if self._extent_wanted or commit.reached.segment != self._extent.written.segment:
            reached = commit.reached if commit.ends_whole and not commit.is_shared else self.committed
            begun = reached.segment > self._extent.written.segment
            if begun or self._extent_wanted:
                commit.extent = partial(self._extent.write, self._extent_of(reached), sync=begun)
            self._extent_wanted = False
        return commit

    def end_commit(self, commit: Commit) -> None:
        """See `Store.end_commit`."""
        assert isinstance(commit, JournalCommit)
        self._tail.end_commit(commit)
        if commit.ends_whole:
            if commit.is_shared:
                self.marks.ended(commit.last_lsn, commit.reached)
                self.accept()
            else:
                self._tail.accepted = commit.reached
        commit.count_in(self._usage)

    def accept(self) -> None:
        """Accepts the commits that all required members have synced by now; `Engine.accepted` follows."""
        for reached in self.marks.take_accepted():
            self._tail.accepted = reached
        self._tail.is_shared = bool(self.marks.others)

    def fail_commit(self, commit: Commit, error: BaseException) -> None:
        """See `Store.fail_commit`. After a failed sync the page cache may have pages that count as written
        although they are not on disk, so no sync is tried again: recovery reads the disk instead."""
        self._tail.fail_commit(commit)
        self._refuse(error)

    def _broken(self) -> StoreBrokenError:
        return StoreBrokenError(f"the journal accepts no records: {self.failure}")

    def _refuse(self, error: BaseException) -> None:
        self.failure = f"writing to the disk failed ({error}); restart the shard when the disk works again"

    # --- its extent --------------------------------------------------------------------------------------

    @property
    def committed(self) -> Reached:
        """End of the accepted records, in whole groups: readers see records up to this position. Any thread
        may read it."""
        return self._tail.accepted

    @property
    def extent(self) -> Extent:
        """End of the accepted records, in whole groups."""
        return self._extent_of(self.committed)

    def write_extent(self) -> None:
        """Writes the extent with the next commit, or with an empty one if no records wait."""
        if not self.failure and self.extent.next_lsn > self._extent.written.next_lsn:
            self._extent_wanted = True

    def _extent_of(self, reached: Reached) -> Extent:
        segments = {each.number: each for each in (*self._tail.leaving, *self.segments())}
        found = segments.get(reached.segment)
        first_lsn = found.index.first_lsn if found is not None else reached.next_lsn
        return Extent(reached.segment, first_lsn, reached.next_lsn)

    @property
    def full(self) -> bool:
        """Whether the last attempt to allocate the next segment found the disk full."""
        return self._space.full

    @property
    def no_room(self) -> str:
        """See `Store.no_room`."""
        return self._space.refusal() if self._space.full else ""

    @property
    def is_crowded(self) -> bool:
        """See `Store.is_crowded`."""
        return self._tail.is_crowded

    @property
    def position(self) -> Tail:
        """See `Store.position`."""
        return self._tail

    def relieve_by(self, free: Callable[[int], bool]) -> None:
        """Sets `free`, which any thread calls on a full disk to make room for the given number of bytes.

        `free` returns whether it removed anything.
        """
        self._relief = free
        self._space.free = free

    # --- for readers of the journal and the archive ------------------------------------------------------

    def want_sync(self) -> None:
        """Makes the next commit sync records that were written without a sync, if there are any."""
        tail = self._tail
        if tail.synced_lsn < tail.lsn and not self.failure and tail.segment.capacity:
            tail.sync_wanted = True

    def segments(self) -> list[Segment]:
        """All segments, the oldest first. Any thread may call it."""
        return list(self._segments.values())

    def segment(self, number: int) -> Segment | None:
        """The segment with this number, if there is one. Any thread may call it."""
        return self._segments.get(number)

    @property
    def is_capturing(self) -> bool:
        """Whether a queue of this journal is captured now."""
        return bool(self._tables.captured)

    def seal(self, now_ms: int) -> bool:
        """Begins the next segment although the current one is not full; False if there is no room for one."""
        if self.failure:
            return False
        try:
            self._tail.roll(0, now_ms)
        except StoreFullError:
            return False
        except OSError as error:
            self._refuse(error)
            return False
        return True

    @property
    def current(self) -> Segment:
        """The segment that records are appended to."""
        return self._tail.segment

    @property
    def has_records(self) -> bool:
        """Whether the current segment has records after its Snapshot."""
        return self._tail.lsn > self._tail.segment.index.first_lsn

    @property
    def has_captured(self) -> bool:
        """Whether the current segment has records of a captured queue."""
        return self._tail.segment.touched or self._tables.have_more_than(self._tail.segment.captured_from)

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, location: Location, queue: int, first: int, last: int) -> list[Run]:
        """See `Store.read`."""
        segment = self._segments.get(location.segment)
        if segment is None or not segment.pin():
            raise StoreError(f"expected segment {name_of(location.segment)} in the journal, found it removed")
        try:
            waiting = self._tail.waiting(segment)
            return read_location(segment, waiting, self.salt, location, queue, first, last)
        finally:
            segment.unpin()

    # --- reclaiming space ------------------------------------------------------------------------------

    def release(self, segment: int, size: int) -> None:
        """See `Store.release`."""
        known = self._segments.get(segment)
        if known is not None:
            known.live -= size

    def oldest_to_clean(self) -> int | None:
        """See `Store.oldest_to_clean`."""
        spare = self._space.spare
        room = self._tail.segment.capacity - self._tail.segment.end if self._space.full else None
        oldest = oldest_to_clean(
            list(self._segments.values()), self._segment_bytes, spare.capacity if spare else 0, room
        )
        if oldest is not None and self.holds is not None and self.holds(self._segments[oldest]):
            return None
        return oldest

    def drop(self, segment: int, now_ms: int = 0) -> None:
        """See `Store.drop`. Message-ids in their window, open transactions and termini are written again."""
        oldest = next(iter(self._segments))
        if segment != oldest or segment == self._tail.segment.number:
            raise ValueError(f"only the oldest segment, {oldest}, may be dropped, not {segment}")
        try:
            if not self._small.move(segment, now_ms):
                return  # The next commit goes on.
        except OSError as error:
            self._refuse(error)
            raise self._broken() from error
        self._tail.drop(self._segments.pop(segment))

    def usage(self) -> Usage:
        """See `Store.usage`."""
        usage = self._usage
        segments = list(self._segments.values())
        spare = self._space.spare
        usage.segments_made, usage.segments = self._space.made, len(segments)
        usage.total_bytes = sum(segment.capacity for segment in segments) + (spare.capacity if spare else 0)
        usage.live_bytes = sum(segment.live_bytes for segment in segments)
        usage.full, usage.broken = self._space.full, self.failure
        return usage
