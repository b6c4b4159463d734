"""Reads the records of a segment in order, with all checks except those of their bodies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from lightrail.journal.layout import (
    HEADER,
    HEADER_SIZE,
    MARK,
    MARK_BYTES,
    MARK_OFFSET,
    RECORD_SIZE_MAX,
    RECORD_SIZE_MIN,
)

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Number of bytes of one read; a larger record is read by itself."""


class Readable(Protocol):
    """The part of a file's interface that a scan needs."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""


@dataclass(slots=True, eq=False, repr=False)
class Bytes:
    """Bytes that a scan reads like a file."""

    _data: bytes

    def read(self, offset: int, length: int) -> bytes:
        """See `Readable`."""
        return self._data[offset : offset + length]


class Found(NamedTuple):
    """A whole record with a correct checksum: `view[start : start + length]`."""

    view: memoryview
    start: int
    length: int
    code: int
    flags: int
    lsn: int
    unsynced: int
    timestamp: int
    offset: int
    """Offset of the record in the segment."""


@dataclass(slots=True, eq=False, repr=False)
class Scan:
    """Iterates over the records of a file from `offset` on and stops before the first incomplete one.

    Afterwards `offset` and `lsn` are those of the next expected record, and `found` describes the bytes at
    this offset.
    """

    _file: Readable
    _salt: int
    offset: int
    _end: int
    lsn: int | None
    _stop: int | None = None
    found: str = ""

    def skip_to(self, lsn: int) -> None:
        """Continues with record `lsn`; the records before it are known to be lost."""
        self.lsn = lsn

    def __iter__(self) -> Iterator[Found]:
        salt, end, expected = self._salt, self._end, self.lsn
        unpack = HEADER.unpack_from
        view = memoryview(b"")
        base = self.offset  # offset in the file of the view's first byte
        offset = self.offset
        size = 0
        stop = self._stop
        while expected is None or expected != stop:
            start = offset - base
            if start + HEADER_SIZE > size:
                base, start = offset, 0
                view = memoryview(self._file.read(offset, min(WINDOW_BYTES, end - offset)))
                size = len(view)
                if size < HEADER_SIZE:
                    self.found = "the end of the file"
                    return
            length, checksum, code, flags, mark, unsynced, lsn, timestamp = unpack(view, start)
            if mark != MARK or not RECORD_SIZE_MIN <= length <= RECORD_SIZE_MAX:
                self.found = f"no record, but the bytes {bytes(view[start : start + 16]).hex(' ')}"
                return
            if expected is None:
                expected = lsn
            elif lsn != expected:
                self.found = f"record {lsn} where record {expected} should be"
                return
            if offset + length > end:
                self.found = f"record {lsn} of {length} bytes, of which {end - offset} are there"
                return
            if start + length > size:
                base, start = offset, 0
                view = memoryview(self._file.read(offset, min(max(WINDOW_BYTES, length), end - offset)))
                size = len(view)
                if size < length:
                    self.found = f"record {lsn} of {length} bytes, of which {size} are there"
                    return
            if crc32(view[start + 8 : start + length], salt) != checksum:
                self.found = f"record {lsn} of {length} bytes with a wrong checksum"
                return
            self.offset = offset + length
            self.lsn = expected = expected + 1
            yield Found(view, start, length, code, flags, lsn, unsynced, timestamp, offset)
            offset = self.offset
            if self.lsn != expected:
                expected = self.lsn  # skip_to


def next_whole(
    file: Readable,
    salt: int,
    offset: int,
    end: int,
    lsn: int,
    written: Iterable[tuple[int, int]] | None = None,
) -> Iterator[Found]:
    """All whole records with a number of at least `lsn` from `offset` on, found by their mark.

    Args:
        written: ranges that are to be searched, if the others are known to be zero: most of a new segment is
            space that was allocated and not written.
    """
    for start, stop in ((offset, end),) if written is None else written:
        yield from _whole_within(file, salt, max(start, offset), min(stop, end), lsn, end)


def _whole_within(file: Readable, salt: int, position: int, stop: int, lsn: int, end: int) -> Iterator[Found]:
    """The whole records that begin between two offsets, and end before `end`."""
    zeros = bytes(WINDOW_BYTES)
    while position < stop:
        chunk = file.read(position, min(WINDOW_BYTES, end - position))
        if len(chunk) < HEADER_SIZE:
            return
        # A comparison is much faster than a search, where a file system does not know what was written.
        at = -1 if chunk == zeros[: len(chunk)] else chunk.find(MARK_BYTES, MARK_OFFSET)
        while at >= 0:
            start = at - MARK_OFFSET
            if start + HEADER_SIZE <= len(chunk):
                header = HEADER.unpack_from(chunk, start)
                length, checksum, code, flags, _, unsynced, number, timestamp = header
                there = position + start
                if number >= lsn and RECORD_SIZE_MIN <= length <= min(RECORD_SIZE_MAX, end - there):
                    data = file.read(there, length)
                    if len(data) == length and crc32(memoryview(data)[8:], salt) == checksum:
                        yield Found(
                            memoryview(data), 0, length, code, flags, number, unsynced, timestamp, there
                        )
            at = chunk.find(MARK_BYTES, at + 1)
        if len(chunk) < WINDOW_BYTES:
            return
        position += len(chunk) - HEADER_SIZE + 1
