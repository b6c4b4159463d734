"""Pieces: the bytes of the owner's journal as its members get them, from a commit or from a segment."""

from collections.abc import Iterator

from lightrail.journal.index import over_gaps
from lightrail.journal.layout import REST
from lightrail.journal.scan import Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.shard.journal.commit import JournalCommit
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import Segment, checksum_before
from lightrail.shard.journal.store import StoreError
from lightrail.shard.replicas.lineage import OwnedSegment, RecordEnd
from lightrail.wire.replication import JournalPiece, checksum_of


def encoded_pieces(commit: JournalCommit, salt: int) -> Iterator[JournalPiece]:
    """The bytes of a commit that is encoded: headers of segments, and whole records."""
    for part in commit.parts:
        buffers = part.pieces
        if not buffers:
            continue
        segment, offset, next_lsn = part.segment.number, part.start, part.segment.index.first_lsn
        data = b"".join(buffers)
        part.pieces = [data]  # This disk gets the same bytes.
        if offset == 0:
            yield JournalPiece(segment, 0, next_lsn, 0, data[:SEGMENT_HEADER_SIZE])
            offset, data = SEGMENT_HEADER_SIZE, data[SEGMENT_HEADER_SIZE:]
        if data:
            next_lsn = REST.unpack_from(part.entries[-1][1])[4] + 1
            yield JournalPiece(
                segment, offset, next_lsn, checksum_of(salt, segment, offset, next_lsn, (data,)), data
            )


def lineage_of(journal: Journal, written: RecordEnd) -> list[OwnedSegment]:
    """The segments of a journal up to this end, the newest first."""
    found: list[OwnedSegment] = []
    for segment in _kept(journal):
        index = segment.index
        if segment.number < written.segment:
            found.append(
                OwnedSegment(segment.number, index.first_lsn, segment.epoch, index.end, index.next_lsn)
            )
        elif segment.number == written.segment:
            found.append(
                OwnedSegment(segment.number, index.first_lsn, segment.epoch, written.offset, written.next_lsn)
            )
    return found[::-1]


def _kept(journal: Journal) -> list[Segment]:
    """All segments that other members may need, the oldest first: also those that are dropped, and whose
    files stay until the records that replace theirs are accepted."""
    return [*journal.position.leaving, *journal.segments()]


def difference(journal: Journal, end: RecordEnd, checksum: int) -> str:
    """How the bytes of a member before this end, where its journal ends, differ from the owner's; empty if
    they do not.

    Args:
        checksum: of the member's bytes (CHECKED in wire/replication.py).
    """
    segment = next((each for each in _kept(journal) if each.number == end.segment), None)
    if segment is None or not segment.pin():
        # It was dropped since: the member attaches again.
        return ""
    try:
        own = checksum_before(segment.file, journal.salt, end)
    finally:
        segment.unpin()
    if own == checksum:
        return ""
    return (
        f"expected the bytes before record {end.next_lsn} in segment {end.segment} as the owner has them, "
        f"found others: two owners had epoch {segment.epoch}, after etcd was set back. Empty the directory "
        "of the member whose messages are to be given up"
    )


def behind(journal: Journal, at: RecordEnd, written: RecordEnd, size: int) -> tuple[JournalPiece, RecordEnd]:
    """The next bytes of a journal after this end, about `size` of them, and the end after them.

    Raises StoreError: the segment was dropped meanwhile, or can't be read.
    """
    number, offset, next_lsn = at
    segment = next((each for each in _kept(journal) if each.number == number), None)
    if segment is None or not segment.pin():
        raise StoreError(f"expected segment {number} in the journal, found it dropped")
    try:
        if offset == 0:
            header = segment.file.read(0, SEGMENT_HEADER_SIZE)
            first = RecordEnd(number, SEGMENT_HEADER_SIZE, next_lsn)
            return JournalPiece(number, 0, next_lsn, 0, header), first
        end = written.offset if number == written.segment else segment.index.end
        if offset == end:
            return behind(journal, RecordEnd(number + 1, 0, next_lsn), written, size)
        scan = Scan(segment.file, journal.salt, offset, end, next_lsn)
        for _ in over_gaps(scan):
            if scan.offset - offset >= size:
                break
        if scan.offset == offset or scan.lsn is None:
            raise StoreError(
                f"expected record {next_lsn} at {offset} of segment {number}, found {scan.found}"
            )
        data = segment.file.read(offset, scan.offset - offset)
        after = RecordEnd(number, scan.offset, scan.lsn)
        checksum = checksum_of(journal.salt, number, offset, after.next_lsn, (data,))
        return JournalPiece(number, offset, after.next_lsn, checksum, data), after
    finally:
        segment.unpin()
