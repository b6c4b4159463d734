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

import logging
from collections.abc import Callable

from lightrail.journal.scan import Scan, next_whole
from lightrail.journal.segment_header import SegmentHeader
from lightrail.shard.journal.files import DiskFile, Files, own_copy
from lightrail.shard.journal.identity import NOTHING, Extent
from lightrail.shard.journal.replay import Replay
from lightrail.shard.journal.segment import Segment, begun, name_of, numbers
from lightrail.shard.journal.store import JournalDamagedError, StoreRefusedError
from lightrail.shard.journal.tables import Tables

Check = Callable[[Extent, int], None]
"""Raises StoreError if a journal that reaches to this offset of its last segment is too short."""

log = logging.getLogger("lightrail.shard.journal.recovery")


class _Recovery:
    """Reads the segments once, from their beginning or from where a replay ended."""

    __slots__ = ("_check", "_epoch", "_files", "_producers_max", "_replay", "_salt")

    def __init__(
        self, files: Files, salt: int, producers_max: int, check: Check, epoch: int, former: Replay | None
    ) -> None:
        self._files = files
        self._salt = salt
        self._producers_max = producers_max
        self._check = check
        self._epoch = epoch
        self._replay = former or Replay(Tables(producers_max))

    def run(self) -> Replay:
        files = self._files
        opened = {number: files.open(name_of(number)) for number in numbers(files)}
        try:
            headers = begun(opened, self._salt)
            if headers:
                self._check_epoch(*headers[-1])
            replay = self._resumed(opened, headers)
            known = {segment.number: segment for segment in replay.segments}
            for index, (number, header) in enumerate(headers):
                segment = known.get(number) or replay.begin(number, opened[number], header)
                if not segment.index.sealed:
                    self._segment(segment, headers[index + 1][1].first_lsn if headers[index + 1 :] else None)
            self._end(opened)
        except BaseException:
            for file in opened.values():
                file.close()
            raise
        return replay

    def _resumed(self, opened: dict[int, DiskFile], headers: list[tuple[int, SegmentHeader]]) -> Replay:
        """The replay to go on with: a new one, if what was read is not in these files."""
        if self._replay.segments and (reason := self._replay.resume(opened, headers)):
            log.warning("the whole journal is read again, as it has changed since it was read: %s", reason)
            self._replay = Replay(Tables(self._producers_max))
        return self._replay

    def _check_epoch(self, number: int, newest: SegmentHeader) -> None:
        if self._epoch <= newest.epoch and (self._epoch or newest.epoch):
            raise StoreRefusedError(
                f"expected an epoch of this owner after {newest.epoch}, which {name_of(number)} has, found "
                f"{self._epoch}: start the shard with the etcd of its cluster, which has its replicas"
            )

    def _segment(self, segment: Segment, next_lsn: int | None) -> None:
        """Replays one segment up to the next segment's first record, or to its end."""
        replay = self._replay
        scan = Scan(segment.file, self._salt, segment.end, segment.capacity, replay.lsn + 1, next_lsn)
        replay.read(scan, scan)
        replay.end()
        reached = replay.lsn + 1
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

    def _extent(self) -> Extent:
        """End of the whole records, in whole groups."""
        replay = self._replay
        if not replay.segments:
            return NOTHING
        last = replay.segments[-1]
        next_lsn = replay.group_start.lsn if replay.group_start is not None else replay.lsn + 1
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
        if replay.group_start is not None:
            cut = replay.group_start
            replay.lsn = cut.lsn - 1
            last = cut.segment
            last.end = cut.offset
            last.cut(cut.lsn, cut.last_ms)
            while segments[-1] is not last:
                replay.cut_bytes += segments.pop().end
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
    files: Files,
    salt: int,
    producers_max: int,
    check: Check = lambda *_: None,
    epoch: int = 0,
    former: Replay | None = None,
) -> Replay:
    """Reads all segments of a journal; `check` is called before anything is changed.

    Args:
        former: what was replayed of this journal before; only the rest is read.

    Raises:
        StoreRefusedError: the epoch is not later than that of the newest segment.
        JournalDamagedError: the journal has damage that no crash explains.
        NewerFormatError: the journal has a newer format.
        StoreError: raised by `check`.
        OSError: a call of the disk failed.
    """
    return _Recovery(files, salt, producers_max, check, epoch, former).run()
