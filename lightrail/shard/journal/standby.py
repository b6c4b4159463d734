"""A standby: what a recovery would restore of a journal that another process owns; replay goes on with it.

A member that follows (mirror.py) keeps one, so that it reads little when it takes over: `Journal.recover`
goes on where the standby is. It reads the files of the mirror and nothing else of it. It needs no lock and
keeps no file open but within a replay:

- It is asked for records that are accepted. A cut never reaches these, so what was read stays right. A
  journal that begins anew has other headers of segments, as each owner has its epoch: then the standby does,
  too.
- A segment that was dropped is missing in the directory; what its records alone restored is forgotten.

One thread at a time calls it. The tables need as much memory as the owner's, and a message needs none beside
its span (live.py).
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from lightrail.journal.scan import Found, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, SegmentHeader, decode_segment_header
from lightrail.model import limits
from lightrail.shard.journal.files import DiskFile, Files
from lightrail.shard.journal.loading import made_of, make
from lightrail.shard.journal.replay import Replay
from lightrail.shard.journal.segment import Segment, name_of, numbers
from lightrail.shard.journal.store import JournalDamagedError
from lightrail.shard.journal.tables import Tables

REPLAYED_RECORDS: Final[int] = 256
"""Records of one call, about a millisecond: the threads of a follower wait for each other."""
MADE_QUEUES: Final[int] = 128
"""Queues of one call, about a millisecond."""
_BYTES: Final = 1024 * 1024
"""After so many bytes a call ends, too."""
_CHUNK: Final = 16
"""Records after which the bytes are counted."""


@dataclass(slots=True, eq=False, repr=False)
class _Range:
    """A segment that is being read, up to a record."""

    file: DiskFile
    scan: Scan
    records: Iterator[Found]
    to: int


@dataclass(slots=True, eq=False, repr=False)
class Standby:
    """See the module.

    Args:
        files: the directory of the mirror.
        salt: that of the journal.
    """

    _files: Files
    _salt: int
    producers_max: int = limits.PRODUCERS_MAX
    _replay: Replay = field(init=False)
    _reading: _Range | None = None
    _unmade: Iterator[int] | None = None
    """Queues that are left to be made; None between two passes over all queues."""

    def __post_init__(self) -> None:
        self._replay = Replay(Tables(self.producers_max))

    @property
    def lsn(self) -> int:
        """Number of the last record that was read."""
        return self._replay.lsn

    def replay(self, to: int, records: int = REPLAYED_RECORDS) -> bool:
        """Reads on, about so many records, but none behind `to`.

        Args:
            to: a record that is accepted, as `Mirror.accepted_lsn`: it is on this disk and stays there.

        Returns:
            Whether records up to this one are left for another call.

        Raises:
            JournalDamagedError: what is on disk are not the records; the next call begins anew.
            OSError: a call of the disk failed; the next call begins anew.
        """
        try:
            budget = _BYTES
            while records > 0 and budget > 0 and (self._reading is not None or self._open(to)):
                count, size = self._read(min(records, _CHUNK))
                records, budget = records - count, budget - size
        except FileNotFoundError:
            self.clear()  # A segment was dropped before it was read.
        except BaseException as error:
            # Segments that were dropped, or a journal that has begun anew meanwhile, are no damage.
            is_damaged = isinstance(error, JournalDamagedError)
            has_changed = is_damaged and bool(self._replay.segments) and not self._is_known()
            self.clear()
            if not has_changed:
                raise
        return self._reading is not None or self._replay.lsn < to

    def _open(self, to: int) -> bool:
        """Begins to read the last segment from where it was read up to; False if there is nothing to read."""
        replay = self._replay
        if replay.lsn >= to:
            return False
        there = numbers(self._files)
        if there:
            replay.forget_before(there[0])
        if self._is_known():
            self._read_from(self._files.open(name_of(replay.segments[-1].number)), to)
        else:
            self.clear()
            if there:
                self._begin(there[0], to)
        return self._reading is not None

    def _is_known(self) -> bool:
        """Whether the directory has the segment that was read last."""
        if not self._replay.segments:
            return False
        segment = self._replay.segments[-1]
        try:
            with closing(self._files.open(name_of(segment.number))) as file:
                header = self._header(file)
        except FileNotFoundError:
            return False
        return header is not None and (header.first_lsn, header.epoch) == (
            segment.index.first_lsn,
            segment.epoch,
        )

    def _header(self, file: DiskFile) -> SegmentHeader | None:
        """The header of a segment of this journal; None if the file has none."""
        header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        return header if header is not None and header.salt == self._salt else None

    def _begin(self, number: int, to: int, found: str = "") -> None:
        """Begins a segment; `found` are the bytes where the last record of the one before ends."""
        replay = self._replay
        file = self._files.open(name_of(number))
        try:
            header = self._header(file)
            if header is None or header.segment != number:
                raise JournalDamagedError(name_of(number), 0, f"no header, though record {to} is accepted")
            if replay.segments and header.first_lsn != replay.lsn + 1:
                last = replay.segments[-1]
                raise JournalDamagedError(name_of(last.number), last.end, found)
            replay.begin(number, file, header)
        except BaseException:
            file.close()
            raise
        if replay.lsn < to:
            self._read_from(file, to)
        else:
            file.close()

    def _read_from(self, file: DiskFile, to: int) -> None:
        """Goes on in a file where its segment was read up to."""
        replay = self._replay
        scan = Scan(file, self._salt, replay.segments[-1].end, file.size(), replay.lsn + 1, to + 1)
        self._reading = _Range(file, scan, iter(scan), to)

    def _read(self, records: int) -> tuple[int, int]:
        """Applies up to so many records of the segment that is being read; returns (records, bytes)."""
        reading, replay = self._reading, self._replay
        assert reading is not None
        segment, lsn = replay.segments[-1], replay.lsn
        before = segment.end
        replay.read(reading.scan, islice(reading.records, records))
        if replay.lsn >= reading.to:
            self._close()
        elif replay.lsn == lsn:
            self._close()
            self._next(segment, reading)
        return replay.lsn - lsn, segment.end - before

    def _next(self, segment: Segment, reading: _Range) -> None:
        """Begins the segment behind this one, in which no record is left."""
        what = f"{reading.scan.found}, though record {reading.to} is accepted"
        if segment.number + 1 not in numbers(self._files):
            raise JournalDamagedError(name_of(segment.number), segment.end, what)
        self._replay.end()
        self._begin(segment.number + 1, reading.to, what)

    def make(self, queues: int = MADE_QUEUES) -> bool:
        """Makes queues of what was replayed, about so many, so that a take-over makes only those that change.

        Their messages are read on demand, as those of a backlog beyond the memory of a shard.

        Returns:
            Whether queues are left for another call.
        """
        replay = self._replay
        if self._unmade is None:
            self._unmade = iter([*replay.tables.queues])
        for number in islice(self._unmade, queues):
            entry = replay.tables.queues.get(number)
            if entry is not None and made_of(replay, entry) is None:
                make(replay, entry)
            queues -= 1
        if queues:
            self._unmade = None
        return self._unmade is not None

    def take(self) -> Replay:
        """What was replayed, which the caller goes on with; this standby begins anew."""
        found = self._replay
        self.clear()
        return found

    def clear(self) -> None:
        """Forgets everything; the next call begins anew."""
        self._close()
        self._replay = Replay(Tables(self.producers_max))
        self._unmade = None

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.file.close()
            self._reading = None
