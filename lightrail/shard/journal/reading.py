"""Reads messages back from a segment, from the disk or from records that wait for a commit."""

from lightrail.journal.layout import APPEND
from lightrail.journal.scan import Scan
from lightrail.shard.journal.batches import lay_over, runs_of
from lightrail.shard.journal.commit import Part, record_bytes
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.store import JournalDamagedError
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
