"""Reads messages back: from a segment or the rows of a SQLite store, and records that wait for a commit."""

import sqlite3
import threading

from lightrail.journal.layout import APPEND
from lightrail.journal.scan import Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.model import limits
from lightrail.shard.journal.batches import lay_over, runs_of
from lightrail.shard.journal.commit import Entry, Part, record_bytes
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.store import JournalDamagedError, StoreError
from lightrail.shard.queue.values.runs import Location, Run


class Overlay:
    """A segment as it will be when all waiting records are written."""

    __slots__ = ("_parts", "_salt", "_segment")

    def __init__(self, segment: Segment, waiting: list[Part], salt: int) -> None:
        """`waiting` has all parts that may not be on disk yet, the newest first."""
        self._segment = segment
        self._parts = waiting[::-1]
        self._salt = salt

    def read(self, offset: int, length: int) -> bytes:
        """See `Readable`."""
        written = self._segment.written
        if offset + length <= written:
            return self._segment.file.read(offset, length)
        pieces = [self._segment.file.read(offset, written - offset)] if offset < written else []
        position = max(offset, written)
        for part in self._parts:
            at = part.start
            for entry in list(part.entries):
                stop = at + (entry[0] or len(entry[1]))
                if at <= position < stop and at < offset + length:
                    data = record_bytes(entry, self._salt)[position - at : offset + length - at]
                    pieces.append(data)
                    position += len(data)
                at = stop
        return b"".join(pieces)


def read_location(
    segment: Segment, waiting: list[Part], salt: int, location: Location, queue: int, first: int, last: int
) -> list[Run]:
    """See `Store.read`; the caller has pinned the segment."""
    end = location.offset + location.length
    scan = Scan(Overlay(segment, waiting, salt), salt, location.offset, end, None)
    runs: list[Run] = []
    for found in scan:
        if found.code == APPEND:
            for run in runs_of(found, segment.number, queue, first, last):
                lay_over(runs, run)
    if scan.offset != end:
        raise JournalDamagedError(name_of(location.segment), scan.offset, scan.found)
    return runs


def read_rows(
    connection: sqlite3.Connection,
    lock: threading.Lock,
    waiting: dict[int, Entry],
    path: str,
    location: Location,
    queue: int,
    first: int,
    last: int,
) -> list[Run]:
    """The runs of a location in a queue of a SQLite store, between two sequences.

    Args:
        lock: the lock of the connection.
        waiting: records that are not committed yet, by number.
        path: the path of the file, for error texts.

    Raises:
        StoreError: there is no record at this location.
        JournalDamagedError: a record has a wrong checksum.
        sqlite3.Error: SQLite could not read them.
    """
    end = location.offset + location.length
    # Waiting records are read first: a record that is committed meanwhile is found twice and counted once.
    entries = {
        number: record_bytes(entry, 0)
        for number, entry in list(waiting.items())
        if location.offset <= number < end
    }
    with lock:
        rows = connection.execute(
            "SELECT id, bytes FROM record WHERE id >= ? AND id < ? ORDER BY id", (location.offset, end)
        ).fetchall()
    entries.update(rows)
    if not entries:
        raise StoreError(f"expected records {location.offset} to {end} in {path}, found them deleted")
    runs: list[Run] = []
    for number, data in sorted(entries.items()):
        scan = Scan(_Whole(data), 0, SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE + len(data), None)
        found = next(iter(scan), None)
        if found is None:
            raise JournalDamagedError(path, number, scan.found)
        for run in runs_of(found, number // limits.STORE_RECORDS_AT_ONCE, queue, first, last):
            run.batch.location = Location(number // limits.STORE_RECORDS_AT_ONCE, number, 1)
            lay_over(runs, run)
    return runs


class _Whole:
    """One record as a file for a scan."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        """See `Readable`."""
        start = offset - SEGMENT_HEADER_SIZE
        return self._data[start : start + length]
