"""Planning of a read: finds the blocks of segments for a range of a journal, and the tasks that read them.

Ranges: the offsets of a read, from options and existing journals.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex
from lightrail.journal.layout import QUEUE, SNAPSHOT, decode_small
from lightrail.journal.record import Queue, QueueEvent, Snapshot
from lightrail.journal.scan import Found, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.spark.decoding.wanted import Part, read_policy
from lightrail.spark.journals.journal import File, Held, Journal, SegmentMissingError, Source, first_answer
from lightrail.spark.reading.losses import Loss, Losses
from lightrail.spark.reading.options import EARLIEST, LATEST, Offsets, Options, Wish, ordered

SPARK_TASK_BYTES: Final[int] = 64 * 1024 * 1024
"""Bytes of journals that a task reads: smaller segments are joined, larger ones split at blocks."""

SayLoss = Callable[[Loss], None]


@dataclass(frozen=True)
class Piece:
    """A part of a segment, and the sources that have it."""

    part: Part
    sources: tuple[Source, ...]
    size: int
    """Approximate bytes of records."""


class Cut(NamedTuple):
    """A block of a segment, or its part within a range."""

    first_lsn: int
    next_lsn: int
    messages: int
    """Records in the whole block."""
    size: int
    """Bytes of the whole block."""
    timestamp: int
    """Time of the block's first record."""


def cuts(index: SegmentIndex, first_lsn: int, next_lsn: int) -> Iterator[Cut]:
    """The blocks of a segment that have records of a range."""
    blocks = index.blocks
    for at, block in enumerate(blocks):
        if at + 1 < len(blocks):
            after = blocks[at + 1]
            stop, messages, end = after.lsn, after.messages, after.offset
        else:
            stop, messages, end = index.next_lsn, index.messages, index.end
        first, last = max(block.lsn, first_lsn), min(stop, next_lsn)
        if first < last:
            yield Cut(first, last, messages - block.messages, end - block.offset, block.timestamp)


def pieces(journal: Journal, first_lsn: int, next_lsn: int, lost: SayLoss) -> Iterator[Piece]:
    """The segments of a range of a journal, in order; reports missing ones.

    Raises:
        SourceError: an archive or gateway does not answer.
    """
    expected = first_lsn
    for held, index in present(journal, first_lsn, next_lsn):
        if index.first_lsn > expected and not unwatched(journal, expected, index.first_lsn):
            lost(_loss(journal.incarnation, expected, index.first_lsn, _DELETED))
        first, last = max(expected, index.first_lsn), min(next_lsn, index.next_lsn)
        if first < last:
            size = sum(cut.size for cut in cuts(index, first, last))
            yield Piece(Part(journal.incarnation, held.number, first, last, index), tuple(held.sources), size)
        expected = max(expected, last)
    if expected < next_lsn and not unwatched(journal, expected, next_lsn):
        lost(_loss(journal.incarnation, expected, next_lsn, _DELETED))


_DELETED = "no segment has them any longer (the retention of the archive, or a segment was removed)"


def _loss(incarnation: Incarnation, first_lsn: int, next_lsn: int, reason: str) -> Loss:
    return Loss(incarnation.disk, incarnation.shard, first_lsn, next_lsn, reason)


def present(journal: Journal, first_lsn: int, next_lsn: int) -> Iterator[tuple[Held, SegmentIndex]]:
    """Segments of a range; a segment that is removed meanwhile is skipped, which makes a gap."""
    while True:
        try:
            yield from list(journal.covering(first_lsn, next_lsn))
        except SegmentMissingError:
            # Only the oldest segments are removed.
            del journal.segments[0]
            continue
        return


def tasks(found: Iterable[Piece], partitions_min: int | None) -> list[list[Piece]]:
    """The pieces of each task: small segments of a journal are joined, large ones split at blocks.

    Without `partitions_min` a task reads about SPARK_TASK_BYTES. With it, tasks read less, so that
    there are that many tasks, as far as there are enough blocks.
    """
    every = list(found)
    total = sum(piece.size for piece in every)
    size = SPARK_TASK_BYTES
    if partitions_min is not None:
        size = min(size, max(1, total // partitions_min))
    planned: list[list[Piece]] = []
    room = 0
    before: str | None = None
    for piece in every:
        for part in _split(piece, size) if piece.size > size else (piece,):
            disk = part.part.incarnation.disk
            if disk != before or part.size > room:
                planned.append([])
                room = size
            planned[-1].append(part)
            room -= part.size
            before = disk
    return planned


def _split(piece: Piece, size: int) -> Iterator[Piece]:
    """Splits a piece into parts of about `size` bytes, each with at least one block."""
    part = piece.part
    first, gathered, number = part.first_lsn, 0, 1
    # Even parts: three of 30 MiB instead of two of 40 and one of 10.
    share = piece.size / -(-piece.size // size)
    done = 0
    for cut in cuts(part.index, part.first_lsn, part.next_lsn):
        gathered += cut.size
        done += cut.size
        if done >= share * number - 1:
            number = int(done / share) + 1
            yield _between(piece, first, cut.next_lsn, gathered)
            first, gathered = cut.next_lsn, 0
    if first < part.next_lsn:
        yield _between(piece, first, part.next_lsn, gathered)


def _between(piece: Piece, first_lsn: int, next_lsn: int, size: int) -> Piece:
    part = piece.part
    return Piece(Part(part.incarnation, part.segment, first_lsn, next_lsn, part.index), piece.sources, size)


def first_since(journal: Journal, time_ms: int) -> int:
    """The first record of a journal since `time_ms`; the end of the journal if there is none.

    Raises:
        SourceError: an archive or gateway does not answer.
    """
    latest = journal.latest or 0
    before: tuple[Held, SegmentIndex, Cut] | None = None
    for held, index in _since(journal, time_ms):
        for cut in cuts(index, index.first_lsn, index.next_lsn):
            if cut.timestamp >= time_ms:
                return cut.first_lsn if before is None else _scan(*before, time_ms)
            before = held, index, cut
    return latest if before is None else _scan(*before, time_ms)


def _since(journal: Journal, time_ms: int) -> Iterator[tuple[Held, SegmentIndex]]:
    """Segments that may have records since `time_ms`, in order."""
    began = False
    for held in journal.segments:
        index = journal.index(held)
        began = began or index.last_ms >= time_ms
        if began:
            yield held, index


def _scan(held: Held, index: SegmentIndex, cut: Cut, time_ms: int) -> int:
    """The first record of a block since a time, or the first one after the block."""
    offset = next(block.offset for block in index.blocks if block.lsn == cut.first_lsn)
    file = first_answer(held.sources, lambda source: source.open())
    try:
        header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        if header is None:
            return cut.first_lsn
        for found in Scan(file, header.salt, offset, index.end, cut.first_lsn, cut.next_lsn):
            if found.timestamp >= time_ms:
                return found.lsn
    finally:
        file.close()
    return cut.next_lsn


def unwatched(journal: Journal, first_lsn: int, next_lsn: int) -> bool:
    """Whether no queue was captured while the missing records were written, so that their absence is no loss.

    Segments without a captured queue are not archived. Those before and after the records show it: no queue
    was captured at the end of the one, nor at the beginning of the other. A segment with capture in between
    would have been archived, and would still exist, because retention removes the oldest first.

    Raises:
        SourceError: an archive or gateway does not answer.
    """
    before: tuple[Held, SegmentIndex] | None = None
    try:
        for held in journal.segments:
            index = journal.index(held)
            if index.next_lsn <= first_lsn:
                before = held, index
            elif index.first_lsn >= next_lsn:
                return (
                    before is not None
                    and not _captured(*before, at_end=True)
                    and not _captured(held, index, at_end=False)
                )
    except SegmentMissingError:
        return False
    return False


def _captured(held: Held, index: SegmentIndex, at_end: bool) -> bool:
    """Whether a queue is captured where a segment ends, or where it begins."""
    file = first_answer(held.sources, lambda source: source.open())
    try:
        captured: dict[int, bool] = {}
        for found in _records(file, index, at_end):
            record = decode_small(found.view, found.start, found.length)
            if isinstance(record, Snapshot):
                captured = {
                    each.queue: read_policy(each.name, each.policy).captured for each in record.queues
                }
            elif isinstance(record, Queue):
                captured[record.queue] = (
                    record.event != QueueEvent.DELETED and read_policy(record.name, record.policy).captured
                )
        return any(captured.values())
    finally:
        file.close()


def _records(file: File, index: SegmentIndex, at_end: bool) -> list[Found]:
    """The Snapshot at the head, and with `at_end` every Queue record.

    Raises:
        SegmentMissingError: the records can't be read.
    """
    header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
    if header is None:
        raise SegmentMissingError("no header of a segment")
    found: list[Found] = []
    for offset, code in ((SEGMENT_HEADER_SIZE, SNAPSHOT), *((each, QUEUE) for each in index.queues)):
        record = next(iter(Scan(file, header.salt, offset, index.end, None)), None)
        if record is None or record.code != code:
            raise SegmentMissingError(f"no whole record at {offset}")
        found.append(record)
        if not at_end:
            break
    return found


NOWHERE = "no archive or gateway has this journal any longer"


def starting(options: Options, journals: Mapping[str, Journal]) -> Offsets:
    """Begin of a read in each existing or named journal.

    Raises:
        SourceError: an archive or gateway does not answer.
    """
    if options.starting_ms is not None:
        since = options.starting_ms
        return ordered({disk: first_since(journal, since) for disk, journal in there(journals).items()})
    return _resolved(options.starting, journals, EARLIEST)


def resolve(options: Options, journals: Mapping[str, Journal]) -> tuple[Offsets, Offsets]:
    """Begin and end of a batch in each journal that it reads.

    Raises:
        DataLossError: no archive or gateway has a journal of the offsets, and losses are not allowed.
        SourceError: an archive or gateway does not answer.
    """
    start = starting(options, journals)
    end = (
        _resolved("latest", journals, LATEST)
        if isinstance(options.ending, str)
        else _resolved(options.ending, journals, None)
    )
    losses = Losses(options.fail_on_loss, options.loss_path)
    for disk, next_lsn in end.items():
        first = start.setdefault(disk, next_lsn if disk not in journals else journals[disk].earliest or 0)
        if disk not in journals and first < next_lsn:
            losses.say(Loss(disk, -1, first, next_lsn, NOWHERE))
    return start, end


def there(journals: Mapping[str, Journal]) -> dict[str, Journal]:
    """Journals that have records to read."""
    return {disk: journal for disk, journal in journals.items() if journal.earliest is not None}


def _resolved(wish: Wish, journals: Mapping[str, Journal], others: int | None) -> Offsets:
    """Positions in journals; `others` is the position in unnamed journals, None to omit them."""
    found: Offsets = {}
    for disk, journal in there(journals).items():
        if isinstance(wish, str):
            position: int | None = EARLIEST if wish == "earliest" else LATEST
        else:
            position = wish.get(disk, others)
        if position == EARLIEST:
            position = journal.earliest
        elif position == LATEST:
            position = journal.latest
        if position is not None:
            found[disk] = position
    if not isinstance(wish, str):
        for disk, position in wish.items():
            if disk not in found and position >= 0:
                found[disk] = position
    return ordered(found)
