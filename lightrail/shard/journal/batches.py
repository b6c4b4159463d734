"""Converts the bytes of Append records to batches and runs, and batches to columns.

So messages are read back: from a segment, from the rows of a SQLite store, and from records that wait for a
commit.
"""

import sqlite3
import threading
from bisect import bisect_right

from lightrail.journal.layout import APPEND, AppendHead, decode_append_head
from lightrail.journal.scan import Bytes, Found, Scan
from lightrail.model import limits
from lightrail.shard.journal.commit import CommitPart, Entry, record_bytes
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.store import JournalDamagedError, StoreError
from lightrail.shard.queue.values.runs import Batch, Location, Run, sequence_of, shifted


def columns(batch: Batch, first: int, last: int) -> tuple[int, bytes | memoryview, memoryview]:
    """Size, ends and blob of messages `first` to before `last`, as in an Append record.

    The messages are not copied; their ends are copied only if they are renumbered, or may still change.

    Raises:
        ValueError: the batch is not in memory.
    """
    data, column = batch.loaded()
    if first:
        start = column[first - 1]
        size = column[last - 1] - start
        ends: bytes | memoryview = shifted(column[first:last], -start)
        start += batch.base
    else:
        start = batch.base
        size = column[last - 1]
        if last != batch.count:
            ends = column[:last].tobytes()
        elif type(column) is memoryview:
            ends = column
        else:
            ends = column.tobytes()
    return size, ends, memoryview(data)[start : start + size]


def load(found: Found, head: AppendHead, column: int, segment: int, first: int, last: int) -> Batch:
    """Messages `first` to before `last` of an Append record as a batch in memory, copied from the view.

    Args:
        column: where the record's ends begin in the view.
    """
    view = found.view
    blob = column + 4 * head.messages
    ends = memoryview(bytes(view[column + 4 * first : column + 4 * last])).cast("I")
    start = 0
    if first:
        start = int.from_bytes(view[column + 4 * first - 4 : column + 4 * first], "little")
        ends = memoryview(shifted(ends, -start)).cast("I")
    size = ends[-1]
    return Batch(
        bytes(view[blob + start : blob + start + size]),
        ends,
        last - first,
        size,
        0,
        bool(head.attributes & 1),
        head.priority,
        head.expires_at_ms or None,
        head.enqueued_at_ms,
        Location(segment, found.offset, found.length),
        head.message_format,
    )


def runs_of(found: Found, segment: int, queue: int, first: int, last: int) -> list[Run]:
    """The messages of a queue with sequences `first` to before `last` in an Append record (none or one run).

    A record that names the queue twice would result in two runs.
    """
    head, targets, column = decode_append_head(found.view, found.start, found.length)
    runs = []
    for target, sequence in targets:
        if target == queue:
            start, stop = max(first, sequence), min(last, sequence + head.messages)
            if start < stop:
                batch = load(found, head, column, segment, start - sequence, stop - sequence)
                runs.append(Run(batch, 0, stop - start, start, head.attempts))
    return runs


def lay_over(runs: list[Run], run: Run) -> None:
    """Inserts a run among sorted ones; it replaces messages with the same sequences."""
    if not runs or run.sequence >= runs[-1].end:
        runs.append(run)
        return
    low = max(0, bisect_right(runs, run.sequence, key=sequence_of) - 1)
    if runs[low].end <= run.sequence:
        low += 1
    high = low
    kept = []
    while high < len(runs) and runs[high].sequence < run.end:
        old = runs[high]
        if old.sequence < run.sequence:
            kept.append(old.cut(0, run.sequence - old.sequence))
        if old.end > run.end:
            kept.append(old.cut(run.end - old.sequence, old.count))
        high += 1
    at = 1 if kept and kept[0].sequence < run.sequence else 0
    kept.insert(at, run)
    runs[low:high] = kept


class Overlay:
    """A segment as it will be when all waiting records are written."""

    __slots__ = ("_parts", "_salt", "_segment")

    def __init__(self, segment: Segment, waiting: list[CommitPart], salt: int) -> None:
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
    segment: Segment,
    waiting: list[CommitPart],
    salt: int,
    location: Location,
    queue: int,
    first: int,
    last: int,
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
        scan = Scan(Bytes(data), 0, 0, len(data), None)
        found = next(iter(scan), None)
        if found is None:
            raise JournalDamagedError(path, number, scan.found)
        for run in runs_of(found, number // limits.STORE_RECORDS_AT_ONCE, queue, first, last):
            run.batch.location = Location(number // limits.STORE_RECORDS_AT_ONCE, number, 1)
            lay_over(runs, run)
    return runs
