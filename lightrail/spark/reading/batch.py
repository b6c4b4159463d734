"""A batch read: from the starting offsets to the ending offsets, or to the current end."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from lightrail.spark.journals.journal import Journal
from lightrail.spark.journals.listing import Listing
from lightrail.spark.reading.losses import Losses
from lightrail.spark.reading.options import Options
from lightrail.spark.reading.planning import Piece, pieces, resolve, tasks
from lightrail.spark.reading.pushing import Bounds, bounds_of
from lightrail.spark.reading.tasks import Task, reading_of


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in executors."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._reading = reading_of(options, columns)
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """One task for each 64 MiB of journal, or at least minPartitions tasks.

        Raises:
            DataLossError: requested records are missing, and losses are not allowed.
            SourceError: an archive or gateway does not answer.
        """
        options = self._options
        needed = {} if isinstance(options.ending, str) else options.ending
        journals = Listing(options.paths, options.access).journals_with(needed)
        start, end = resolve(options, journals)
        found: list[Piece] = []
        for disk, next_lsn in end.items():
            if disk in journals:
                found += self._pieces(journals[disk], start[disk], next_lsn)
            # resolve() has reported journals of offsets that no source has.
        return [Task(each) for each in tasks(found, options.partitions_min)]

    def _pieces(self, journal: Journal, first_lsn: int, next_lsn: int) -> Iterator[Piece]:
        bounds = self._bounds
        if bounds.shards is not None and journal.incarnation.shard not in bounds.shards:
            return
        if bounds.journals is not None and journal.incarnation.disk not in bounds.journals:
            return
        losses = Losses(self._options.fail_on_loss, self._options.loss_path)
        first_lsn = max(first_lsn, bounds.first_lsn or first_lsn)
        next_lsn = min(next_lsn, bounds.next_lsn or next_lsn)
        if first_lsn < next_lsn:
            for piece in pieces(journal, first_lsn, next_lsn, losses.say):
                if bounds.may_have(piece.part):
                    yield piece

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return self._reading.batches(partition)


class PushingBatchReader(BatchReader):
    """A BatchReader to which Spark pushes filters down; Spark applies the filters to the rows again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # as Spark names it
        """Stores bounds of queue, shard, journal, lsn and event_time; Spark keeps all filters."""
        self._bounds = bounds = bounds_of(filters)
        wanted = self._reading.wanted
        queues = wanted.queues
        if bounds.queues is not None:
            queues = bounds.queues if queues is None else queues & bounds.queues
        self._reading = replace(
            self._reading,
            wanted=replace(wanted, queues=queues, first_ms=bounds.first_ms, before_ms=bounds.before_ms),
        )
        return filters
