"""The records of a segment, many at once, and what is known of malformed or missing ones.

Windows: whole records of a segment, many at once, with every checksum computed.

Scan (lightrail/journal/scan.py) returns records one by one. Here a loop only follows lengths and computes
checksums, and fields of all records are read as columns.

Damage: malformed records of a journal, or records that no archive or gateway has.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from lightrail.journal.layout import FRONT, FRONT_SIZE, GAP, HEADER_SIZE, RECORD_SIZE_MIN, U64
from lightrail.journal.scan import Readable, Scan


class DamageError(Exception):
    """Rows are missing; the message says which, where, why, and what to do."""

    def __init__(
        self, journal: str, segment: int, offset: int, lsn: int, what: str, next_lsn: int | None = None
    ) -> None:
        # All arguments are passed to Exception, because workers of Spark pickle their exceptions.
        super().__init__(journal, segment, offset, lsn, what, next_lsn)
        self.journal = journal
        self.segment = segment
        self.offset = offset
        """Bytes from the beginning of the segment."""
        self.lsn = lsn
        """Lsn of the first missing record."""
        self.next_lsn = lsn + 1 if next_lsn is None else next_lsn
        """Lsn of the first record after the missing ones, within the range that was read."""
        self.what = what

    def __str__(self) -> str:
        return (
            f"journal {self.journal}, segment {self.segment}, offset {self.offset}, record {self.lsn}: "
            f"{self.what}. Expected whole records; read another copy of this segment, or set "
            "failOnDataLoss=false (--allow-loss of lightrail-spark) to continue without the missing records"
        )


Lost = Callable[[DamageError], None]
"""Called with damage if reading continues after it."""


SPARK_WINDOW_BYTES: Final[int] = 8 * 1024 * 1024
"""Bytes of a segment that are read at once; a larger record is read on its own."""
_PIECE_BYTES: Final = 65_536
"""Minimum size of a read; Queue records are close to each other."""
Numbers = npt.NDArray[Any]


@dataclass(eq=False, repr=False)
class ReadAhead:
    """A file that reads more than requested and serves later reads from it."""

    _file: Readable
    _data: bytes = b""
    _offset: int = 0

    def read(self, offset: int, length: int) -> bytes:
        """See Readable."""
        at = offset - self._offset
        if at < 0 or at + length > len(self._data):
            self._data = self._file.read(offset, max(length, _PIECE_BYTES))
            self._offset, at = offset, 0
        return self._data[at : at + length]


def _overlapping(kind: str, data: bytes | memoryview) -> Numbers:
    """The little-endian number at every offset: indexed by offsets of records, it is a column of a field."""
    width = np.dtype(kind).itemsize
    return np.ndarray((max(0, len(data) - width + 1),), kind, data, strides=(1,))


@dataclass(slots=True)
class Window:
    """Consecutive whole records; `data[start : start + length]` is one."""

    data: bytes | memoryview
    base: int
    """Offset of the window's first byte in the segment."""
    starts: Numbers
    octets: Numbers = field(init=False)
    u16: Numbers = field(init=False)
    u32: Numbers = field(init=False)
    i64: Numbers = field(init=False)
    lengths: Numbers = field(init=False)
    codes: Numbers = field(init=False)
    flags: Numbers = field(init=False)
    lsn: Numbers = field(init=False)
    times: Numbers = field(init=False)
    """Milliseconds since 1970-01-01 UTC."""

    def __post_init__(self) -> None:
        data, starts = self.data, self.starts
        self.octets = np.frombuffer(data, np.uint8)
        self.u16 = _overlapping("<u2", data)
        self.u32 = _overlapping("<u4", data)
        self.i64 = _overlapping("<i8", data)
        self.lengths = self.u32[starts].astype(np.int64)
        self.codes = self.octets[starts + FRONT_SIZE]
        self.flags = self.octets[starts + FRONT_SIZE + 1]
        self.lsn = self.i64[starts + 16]
        self.times = self.i64[starts + 24]

    def cut(self, count: int) -> "Window":
        """The first `count` records."""
        return Window(self.data, self.base, self.starts[:count])


class Walk:
    """Reads the records of a segment, as Scan does.

    Afterwards `offset` and `lsn` are those of the next record, and `found` describes the bytes in its place;
    `found` is empty at the end.
    """

    __slots__ = ("_end", "_file", "_salt", "_stop", "found", "lsn", "offset")

    def __init__(self, file: Readable, salt: int, offset: int, end: int, lsn: int, stop: int) -> None:
        """`lsn` is the first record's number, `stop` the end, exclusive."""
        self._file = file
        self._salt = salt
        self._end = end
        self._stop = stop
        self.offset = offset
        self.lsn = lsn
        self.found = ""

    def window(self) -> Window | None:
        """The next whole records, at least one; None if there are no more."""
        offset, count = self.offset, self._stop - self.lsn
        if offset >= self._end or count <= 0:
            return None
        data: bytes | memoryview = self._file.read(offset, min(SPARK_WINDOW_BYTES, self._end - offset))
        starts = _whole(memoryview(data), self._salt, count)
        if not starts:
            # A record larger than a window, or no record: the scan decides.
            scan = Scan(self._file, self._salt, offset, self._end, self.lsn)
            found = next(iter(scan), None)
            if found is None:
                self.found = scan.found
                return None
            data, starts = found.view[found.start : found.start + found.length], [0]
        window = Window(data, offset, np.array(starts, np.int64))
        expected = np.arange(self.lsn, self.lsn + len(starts))
        whole = len(starts)
        if not np.array_equal(window.lsn, expected):
            whole = int(np.argmax(window.lsn != expected))
        gaps = np.flatnonzero(window.codes[:whole] == GAP)
        if len(gaps):
            whole = int(gaps[0]) + 1
        if whole == 0:
            self.found = f"record {window.lsn[0]} where record {self.lsn} should be"
            return None
        if whole < len(starts):
            window = window.cut(whole)
        last = int(window.starts[-1])
        self.offset = offset + last + int(window.lengths[-1])
        self.lsn += whole
        if len(gaps):
            (self.lsn,) = U64.unpack_from(data, last + HEADER_SIZE)
        return window


def _whole(view: memoryview, salt: int, count: int) -> list[int]:
    """Offsets of at most `count` consecutive whole records with correct checksums."""
    front = FRONT.unpack_from
    size = len(view)
    room = size - RECORD_SIZE_MIN
    start = 0
    starts: list[int] = []
    add = starts.append
    while start <= room and count:
        length, checksum = front(view, start)
        after = start + length
        if after > size or length < RECORD_SIZE_MIN or crc32(view[start + 8 : after], salt) != checksum:
            break
        add(start)
        start = after
        count -= 1
    return starts
