"""Admission: the end of a micro-batch with a limit of messages or bytes; the oldest blocks are read first."""

import heapq
from collections.abc import Iterator, Mapping

from lightrail.spark.journals.journal import Journal
from lightrail.spark.reading.offsets import Offsets
from lightrail.spark.reading.planning import Cut, cuts, present


def admitted(
    ranges: Mapping[str, tuple[Journal, int, int]], messages_max: int | None, bytes_max: int | None
) -> Offsets:
    """The end of the micro-batch in each journal, for (journal, first lsn, next lsn) each.

    Blocks of all journals are admitted in the order of their times, as long as they fit, so that a lagging
    query catches up with all journals evenly. The first block is always admitted. A block that is read
    partially counts fully.

    Raises:
        SourceError: an archive or gateway does not answer.
    """
    if messages_max is None and bytes_max is None:
        return {disk: next_lsn for disk, (_, _, next_lsn) in ranges.items()}
    offsets: Offsets = {}
    messages = size = 0
    for disk, cut in heapq.merge(
        *(_cuts(disk, *range_) for disk, range_ in ranges.items()), key=lambda each: each[1].timestamp
    ):
        messages += cut.messages
        size += cut.size
        if offsets and (
            (messages_max is not None and messages > messages_max)
            or (bytes_max is not None and size > bytes_max)
        ):
            break
        offsets[disk] = cut.next_lsn
    if not offsets:
        # Records of the ranges are missing; planning reports them.
        return {disk: next_lsn for disk, (_, _, next_lsn) in ranges.items()}
    return offsets


def _cuts(disk: str, journal: Journal, first_lsn: int, next_lsn: int) -> Iterator[tuple[str, Cut]]:
    for _, index in present(journal, first_lsn, next_lsn):
        for cut in cuts(index, first_lsn, next_lsn):
            yield disk, cut
