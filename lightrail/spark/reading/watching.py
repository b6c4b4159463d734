"""Gaps without capture: segments without a captured queue are not archived, so their absence is no loss."""

from lightrail.journal.index import SegmentIndex
from lightrail.journal.layout import QUEUE, SNAPSHOT, decode_small
from lightrail.journal.record import Queue, QueueEvent, Snapshot
from lightrail.journal.scan import Found, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.spark.decoding.tables import read_policy
from lightrail.spark.journals.journal import Held, Journal, first_answer
from lightrail.spark.journals.sources import File, SegmentMissingError


def unwatched(journal: Journal, first_lsn: int, next_lsn: int) -> bool:
    """Whether no queue was captured while the missing records were written.

    The segments before and after them show it: no queue was captured at the end of the one, nor at the
    beginning of the other. A segment with capture in between would have been archived, and would still exist,
    because retention removes the oldest first.

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
