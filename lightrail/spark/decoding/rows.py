"""Rows of the data source: part of a segment's bytes as Arrow record batches, in the order of the journal.

The fields of all records of a window are read at once (windows.py, runs.py, arrays.py); per record there are
one read of its length and one checksum. docs/formats/columns.md has the columns.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from lightrail.journal.archive import ArchiveError, segment_name
from lightrail.journal.layout import (
    FRONT,
    GAP,
    HEADER_SIZE,
    QUEUE,
    RECEIVER,
    SNAPSHOT,
    LayoutError,
    decode_small,
)
from lightrail.journal.record import CONTINUED, Queue, Snapshot, range_of
from lightrail.journal.scan import Found, Readable, Scan, next_whole
from lightrail.journal.segment_header import (
    FORMAT_VERSION,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
)
from lightrail.spark.decoding import messages
from lightrail.spark.decoding.arrays import (
    BadEndsError,
    Extents,
    Facts,
    Rows,
    column,
    foreign,
    has_mixed,
    message_column,
    mixed_priorities,
)
from lightrail.spark.decoding.runs import Bad, Runs, carries_messages, runs_of
from lightrail.spark.decoding.wanted import UNKNOWN, Part, QueueTables, Wanted, gathered
from lightrail.spark.decoding.windows import DamageError, Lost, ReadAhead, Walk, Window

__all__ = ["Part", "Wanted", "record_batches"]


def record_batches(
    part: Part,
    file: Readable,
    wanted: Wanted,
    lost: Lost | None = None,
    undecodable: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a part; no batch if there are none.

    Args:
        lost: called with damage, after which reading continues with the next whole record; if None, damage is
        raised. undecodable: called with the number of messages that could not be decoded, whole or in part.

    Raises:
        DamageError: records of the part are missing.
        ArchiveError: the segment has a newer format, or the file is that of another segment.
    """
    return gathered(_Reader(part, file, wanted, lost, undecodable).batches(), wanted)


class _Reader:
    """Reads one part."""

    def __init__(
        self,
        part: Part,
        file: Readable,
        wanted: Wanted,
        lost: Lost | None,
        undecodable: Callable[[int], None] | None,
    ) -> None:
        self._part = part
        self._file = file
        self._wanted = wanted
        self._lost = lost
        self._tables = QueueTables(wanted.chooses)
        self._facts = Facts(part.incarnation.shard, part.incarnation.disk, self._tables.entries)
        self._schema = wanted.schema()
        self._bytes = wanted.include_body and "message" in wanted.columns
        self._decoded = wanted.decoded()
        self._priorities = "priority" in wanted.columns
        self._undecodable = undecodable
        self._salt = 0
        self._closed_to = 0
        """Groups of records before this record are known to be whole."""

    def _damage(self, offset: int, lsn: int, what: str, next_lsn: int | None = None) -> None:
        part = self._part
        damage = DamageError(part.incarnation.disk, part.segment, offset, lsn, what, next_lsn)
        if self._lost is None:
            raise damage
        self._lost(damage)

    # --- from record to record -------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        part, index = self._part, self._part.index
        first, stop = max(part.first_lsn, index.first_lsn), min(part.next_lsn, index.next_lsn)
        if first >= stop:
            return
        header = self._header()
        if header is None:
            return
        self._salt = header.salt
        at = bisect_right(index.blocks, first, key=lambda block: block.lsn) - 1
        offset, lsn = SEGMENT_HEADER_SIZE, index.first_lsn
        if at >= 0:
            offset, lsn = index.blocks[at].offset, index.blocks[at].lsn
        self._read_tables(offset)
        walk = Walk(self._file, header.salt, offset, self._end_of(stop), lsn, stop)
        while walk.lsn < stop:
            window = walk.window()
            if window is None:
                again = self._resume(walk, first, stop)
                if again is None:
                    return
                walk = again
                continue
            gap = window.codes[-1] == GAP
            if gap and walk.lsn > first:
                self._lost_at_gap(window, walk.lsn)
            torn = self._torn(window, walk, gap)
            if torn is not None:
                window = window.cut(torn)
            yield from self._rows(window, first)
            if torn is not None:
                return

    def _end_of(self, stop: int) -> int:
        """The offset at which reading ends, behind all records before `stop`."""
        index = self._part.index
        at = bisect_left(index.blocks, stop, key=lambda block: block.lsn)
        return index.blocks[at].offset if at < len(index.blocks) else index.end

    def _header(self) -> SegmentHeader | None:
        header = decode_segment_header(self._file.read(0, SEGMENT_HEADER_SIZE))
        part = self._part
        if header is None:
            self._damage(0, part.first_lsn, "no header of a segment", part.next_lsn)
            return None
        if header.version > FORMAT_VERSION:
            raise ArchiveError(
                f"{segment_name(part.segment)} of journal {part.incarnation.disk} has format version "
                f"{header.version}, expected up to {FORMAT_VERSION}: read it with the newer version"
            )
        if header.segment != part.segment:
            raise ArchiveError(
                f"expected segment {part.segment} of journal {part.incarnation.disk}, found segment "
                f"{header.segment}: the file has the name of another segment"
            )
        return header

    def _read_tables(self, before: int) -> None:
        """Applies the Snapshot, and the Queue records before an offset."""
        file = ReadAhead(self._file)
        if before > SEGMENT_HEADER_SIZE:
            self._read_table(file, SEGMENT_HEADER_SIZE)
        for offset in self._part.index.queues:
            if offset < before:
                self._read_table(file, offset)

    def _read_table(self, file: Readable, offset: int) -> None:
        index = self._part.index
        head = file.read(offset, HEADER_SIZE)
        length = FRONT.unpack_from(head)[0] if len(head) == HEADER_SIZE else 0
        scan = Scan(file, self._salt, offset, min(index.end, offset + length), None)
        found = next(iter(scan), None)
        if found is None:
            self._damage(
                offset, index.first_lsn, f"expected a record that declares queues, found {scan.found}"
            )
        else:
            self._apply(found.view, found.start, found.length, offset, found.lsn)

    def _apply(self, data: bytes | memoryview, start: int, length: int, offset: int, lsn: int) -> None:
        """Applies a record that declares queues."""
        try:
            record = decode_small(data, start, length)
        except LayoutError as error:
            self._damage(offset, lsn, str(error))
            return
        if isinstance(record, Snapshot):
            self._tables.restore(record)
        elif isinstance(record, Queue):
            self._tables.apply(record)

    def _resume(self, walk: Walk, first: int, stop: int) -> Walk | None:
        """Continues after a damaged record with the next whole one; None if there is none in this part."""
        index = self._part.index
        found: Found | None = next(next_whole(self._file, self._salt, walk.offset, index.end, walk.lsn), None)
        upto, after = (index.next_lsn, index.end) if found is None else (found.lsn, found.offset)
        tables = (SEGMENT_HEADER_SIZE, *index.queues)
        if upto > first or any(walk.offset <= offset < after for offset in tables):
            # Other damage before the part's first record belongs to another part.
            what = walk.found or "the end of the file"
            if found is not None:
                what += f"; the next whole record is {found.lsn} at offset {found.offset}"
            lsn = max(walk.lsn, first) if upto > first else walk.lsn
            self._damage(walk.offset, lsn, what, min(upto, stop))
        if found is None or found.lsn >= stop:
            return None
        return Walk(self._file, self._salt, found.offset, self._end_of(stop), found.lsn, stop)

    def _lost_at_gap(self, window: Window, next_lsn: int) -> None:
        """Reports records that a Gap at the window's end replaces."""
        start = int(window.starts[-1])
        lsn = int(window.lsn[-1])
        what = f"a repair found records {lsn} to {next_lsn - 1} damaged and set them aside"
        if range_of(lsn) != range_of(next_lsn):
            what = f"records {lsn} to {next_lsn - 1} were given up when another member was promoted"
        self._damage(window.base + start, lsn, what, next_lsn)

    def _torn(self, window: Window, walk: Walk, gap: bool) -> int | None:
        """Number of records of the window that count; None for all.

        A group without its last record does not count. Such a group can only be at the end of a journal: a
        sealed segment, or a committed record behind the group, shows that the group's end was written.
        """
        index = self._part.index
        if index.sealed or gap or not window.flags[-1] & CONTINUED or walk.lsn <= self._closed_to:
            return None
        scan = Scan(self._file, self._salt, walk.offset, index.end, walk.lsn)
        for found in scan:
            if not found.flags & CONTINUED:
                self._closed_to = found.lsn
                return None
        if scan.offset < index.end:
            return None  # The rest is damaged; this is reported elsewhere.
        ended = np.flatnonzero(window.flags & CONTINUED == 0)
        return int(ended[-1]) + 1 if len(ended) else 0

    # --- from records to rows --------------------------------------------------------------------------

    def _rows(self, window: Window, first: int) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        records = window.lsn >= first
        if wanted.first_ms is not None:
            records &= window.times >= wanted.first_ms
        if wanted.before_ms is not None:
            records &= window.times < wanted.before_ms

        def bad(index: int, what: str) -> None:
            self._damage(window.base + int(window.starts[index]), int(window.lsn[index]), what)

        unknown = (window.codes > RECEIVER) | (window.codes == 0)
        if unknown.any():
            for index in np.flatnonzero(unknown & (window.lsn >= first)).tolist():
                bad(index, f"a record of type {window.codes[index]}, expected 1 to {RECEIVER}")
        runs = self._named(window, runs_of(window, records, bad))
        yield from self._cut(window, runs, bad)

    def _named(self, window: Window, runs: Runs) -> Runs:
        """The runs of selected queues, with their indexes; applies the window's Queue records to the
        tables."""
        tables = self._tables
        changes = np.flatnonzero((window.codes == QUEUE) | (window.codes == SNAPSHOT)).tolist()
        numbers = runs.queue.tolist()
        indexes: list[int] = []
        at = 0
        for record in [*changes, None]:
            upto = len(numbers) if record is None else int(np.searchsorted(runs.record, record))
            if upto > at:
                indexes += map(tables.indexes.__getitem__, numbers[at:upto])
                at = upto
            if record is not None:
                start = int(window.starts[record])
                self._apply(
                    window.data,
                    start,
                    int(window.lengths[record]),
                    window.base + start,
                    int(window.lsn[record]),
                )
        queue = np.array(indexes, np.int64)
        kept = (queue != UNKNOWN) & (runs.rows > 0)
        if tables.undeclared:
            # Records about messages of a deleted queue are no events.
            kept &= carries_messages(runs.event) | ~np.isin(queue, list(tables.undeclared))
        runs.queue = queue
        return runs if kept.all() else runs.take(np.flatnonzero(kept))

    def _decode(self, rows: Rows, extents: Extents, blob: bytes | pa.Buffer) -> dict[str, pa.Array]:
        """The columns that are decoded from messages."""
        offsets = extents.offsets()
        which = rows.spread(rows.messages)
        starts, stops = offsets[:-1][which], offsets[1:][which]
        found, undecodable = messages.columns(blob, starts, stops, foreign(rows), self._decoded)
        if undecodable and self._undecodable is not None:
            self._undecodable(undecodable)
        if which.all():
            return found
        indexes = pa.array(np.cumsum(which) - 1, mask=~which)
        return {name: array.take(indexes) for name, array in found.items()}

    def _cut(self, window: Window, runs: Runs, bad: Bad) -> Iterator[pa.RecordBatch]:
        """Runs as batches of the wanted size."""
        most = self._wanted.batch_rows
        looks = self._bytes or bool(self._decoded)
        at = skip = 0
        while at < len(runs):
            some = runs.take(np.arange(at, min(len(runs), at + most)))
            counts = some.rows.copy()
            counts[0] -= skip
            skips = np.zeros(len(counts), np.int64)
            skips[0] = skip
            rows = Rows(window, some, skips, counts)
            if rows.count > most:
                rows = rows.first(most)
            extents = None
            if (looks and rows.messages.any()) or (self._priorities and has_mixed(rows)):
                try:
                    extents = Extents(rows)
                except BadEndsError as error:
                    bad(error.record, "an Append whose ends of messages do not rise")
                    skip = 0 if error.record == runs.record[at] else skip
                    runs = runs.take(np.arange(at, len(runs)))
                    runs = runs.take(runs.record != error.record)
                    at = 0
                    continue
                sizes = np.cumsum(extents.lengths)
                if sizes[-1] > self._wanted.batch_bytes:
                    rows = rows.first(
                        max(1, int(np.searchsorted(sizes, self._wanted.batch_bytes, side="right")))
                    )
                    extents = Extents(rows)
            yield self._batch(rows, extents)
            at += len(rows.runs) - 1
            skip = int(rows.skips[-1] + rows.counts[-1])
            if skip == runs.rows[at]:
                at, skip = at + 1, 0

    def _batch(self, rows: Rows, extents: Extents | None) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        if extents is not None:
            blob = extents.blob()
            if self._bytes:
                made["message"] = message_column(rows, extents, blob)
            if self._decoded:
                made |= self._decode(rows, extents, blob)
            if self._priorities and has_mixed(rows):
                made["priority"] = mixed_priorities(rows, extents, blob)
        columns = [
            made[name] if name in made else column(name, rows, self._facts) for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
