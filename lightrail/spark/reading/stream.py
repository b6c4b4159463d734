"""A stream read: micro-batches between offsets, limits, Trigger.AvailableNow, the pin of a named reader.

Offsets name journals by their disks. A new journal first enters the offsets of a query at its earliest
record, without rows, which follow in the next micro-batch. So each range has a begin, and always has the same
rows. A removed journal stays in the offsets.
"""

import heapq
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lightrail.spark.journals import gateways
from lightrail.spark.journals.journal import Journal, SourceError
from lightrail.spark.journals.listing import Listing
from lightrail.spark.reading.losses import Loss, Losses
from lightrail.spark.reading.options import Offsets, Options, ordered
from lightrail.spark.reading.planning import NOWHERE, Cut, cuts, pieces, present, starting, tasks, there
from lightrail.spark.reading.tasks import Task, reading_of

_LOG = logging.getLogger("lightrail.spark")


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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance in the driver while a query runs, and one in each task."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._reading = reading_of(options, columns)
        self._listing = Listing(options.paths, options.access)
        self._losses = Losses(options.fail_on_loss, options.loss_path)
        self._known: Offsets = {}
        """End of each journal at the last listing."""
        self._target: Offsets | None = None
        """With Trigger.AvailableNow: end of each journal when the query began."""

    # --- offsets ---------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # as Spark names it
        """Begin of a new query; sets the pin there.

        Raises:
            SourceError: an archive or gateway does not answer.
        """
        start = starting(self._options, self._listed())
        self._pin(start)
        return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a micro-batch from the options; latestOffset applies the second one, if any."""
        if self._options.messages_max is not None:
            return ReadMaxRows(self._options.messages_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """End of the next micro-batch; `start` itself if there are no new records.

        Raises:
            DataLossError: a journal was removed before it was read to its end, and losses are not allowed.
            SourceError: an archive or gateway does not answer.
        """
        journals = self._listed()
        end = dict(start)
        ranges: dict[str, tuple[Journal, int, int]] = {}
        for disk, journal in there(journals).items():
            target = self._known[disk] if self._target is None else self._target.get(disk)
            if target is None:
                continue  # A journal that was added after the query began.
            if disk not in start:
                end[disk] = min(journal.earliest or 0, target)
            elif start[disk] < target:
                ranges[disk] = journal, start[disk], target
        for disk, position in start.items():
            if disk not in journals and position < self._known.get(disk, position):
                self._losses.say(Loss(disk, -1, position, self._known[disk], NOWHERE))
                end[disk] = self._known[disk]
        end.update(self._admitted(ranges, limit))
        return ordered(end)

    def _admitted(self, ranges: dict[str, tuple[Journal, int, int]], limit: ReadLimit) -> Offsets:
        messages, size = None, None
        if not isinstance(limit, ReadAllAvailable):
            messages, size = self._options.messages_max, self._options.bytes_max
        if isinstance(limit, ReadMaxRows):
            messages = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return admitted(ranges, messages, size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of the query: later records are not read.

        Raises:
            SourceError: an archive or gateway does not answer.
        """
        self._listed()
        self._target = dict(self._known)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Ends of journals at the last listing, for the progress of the query."""
        return ordered(self._known) or None

    def _listed(self) -> dict[str, Journal]:
        journals = self._listing.journals()
        for disk, journal in journals.items():
            latest = journal.latest
            if latest is not None:
                self._known[disk] = max(latest, self._known.get(disk, 0))
        return journals

    # --- reading ---------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch.

        Raises:
            DataLossError: records of the micro-batch are missing, and losses are not allowed.
            SourceError: an archive, a gateway, or the shard that has them, does not answer.
        """
        ranges = {
            disk: (start[disk], next_lsn)
            for disk, next_lsn in end.items()
            if disk in start and start[disk] < next_lsn
        }
        if not ranges:
            return []
        journals = self._listing.journals_with({disk: next_lsn for disk, (_, next_lsn) in ranges.items()})
        found = []
        for disk, (first_lsn, next_lsn) in ranges.items():
            journal = journals.get(disk)
            if journal is None:
                self._losses.say(Loss(disk, -1, first_lsn, next_lsn, NOWHERE))
                continue
            found.append(pieces(journal, first_lsn, next_lsn, self._losses.say))
        return [Task(each) for each in tasks(chain.from_iterable(found), self._options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return self._reading.batches(partition)

    # --- the pin ---------------------------------------------------------------------------------------

    def commit(self, end: dict[str, int]) -> None:
        """Moves the pin: records before `end` may be deleted. Spark never commits the last micro-batch."""
        self._pin(end)

    def _pin(self, positions: Offsets) -> None:
        options = self._options
        if options.reader is None or options.access is None:
            return
        body: dict[str, object] = {"positions": positions}
        if options.reader_hours is not None:
            body["hold_hours"] = options.reader_hours
        if options.reader_bytes is not None:
            body["hold_bytes"] = options.reader_bytes
        try:
            gateways.move_reader(options.access, options.reader, body)
        except SourceError as error:
            # No rows are lost: more records than necessary are kept until the pin moves again.
            _LOG.warning("the pin of reader %s has not moved: %s", options.reader, error)

    def __getstate__(self) -> dict[str, object]:
        """The state for executors, without that of the driver."""
        state = dict(self.__dict__)
        state["_listing"] = None
        state["_known"], state["_target"] = {}, None
        return state
