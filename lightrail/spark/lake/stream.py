"""The stream of a capture: each micro-batch is planned, read and written by executors, and committed.

Rows never pass through the JVM: the internal data source `lightrail-parts` is a stream of descriptions of
tasks, with the planning and offsets of the source `lightrail`. See docs/adr/0013-capture-to-delta.md.

A task of capture, which reads a part of journals and writes its rows; it runs in executors.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from lightrail.spark.columns import SCHEMA
from lightrail.spark.command import CommandError
from lightrail.spark.decoding.rows import record_batches
from lightrail.spark.decoding.wanted import Wanted
from lightrail.spark.decoding.windows import DamageError
from lightrail.spark.failures import named
from lightrail.spark.journals.journal import SegmentMissingError, first_answer
from lightrail.spark.lake.files import Bounds, Covered, File, FileWriter, Folder, Range
from lightrail.spark.lake.ledger import Ledger
from lightrail.spark.lake.table import OrderError, commit_batch, committed, follows
from lightrail.spark.lake.tally import marks, signed
from lightrail.spark.reading.losses import DataLossError, Loss, Losses
from lightrail.spark.reading.options import read_options
from lightrail.spark.reading.planning import Piece
from lightrail.spark.reading.stream import StreamReader
from lightrail.spark.reading.tasks import Task, reading_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task."""

    files: list[File]
    ranges: list[Range]
    losses: list[Loss]


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """The task of a capture, which is sent to executors."""

    wanted: Wanted
    table: str
    fail_on_loss: bool

    def run(self, pieces: Iterable[Piece]) -> Written:
        """Reads the pieces and writes files below the table, which belong to no commit yet.

        Raises:
            DamageError: a record is damaged, and losses are not allowed.
            DataLossError: a segment is missing, and losses are not allowed.
            SourceError: an archive or gateway does not answer.
        """
        writer = FileWriter(Folder(self.table))
        written = Written(writer.files, [], [])
        for piece in pieces:
            self._piece(piece, writer, written)
        writer.flush()
        return written

    def _piece(self, piece: Piece, writer: FileWriter, written: Written) -> None:
        part = piece.part
        where = part.incarnation
        losses: list[Loss] = []

        def lost(damage: DamageError) -> None:
            next_lsn = max(damage.lsn + 1, damage.next_lsn)
            losses.append(Loss(where.disk, where.shard, damage.lsn, next_lsn, damage.what))

        rows = total = 0
        try:
            file = first_answer(list(piece.sources), lambda source: source.open())
            try:
                for batch in record_batches(part, file, self.wanted, None if self.fail_on_loss else lost):
                    rows += batch.num_rows
                    total += int(marks(batch).sum())
                    writer.add(batch)
            finally:
                file.close()
        except SegmentMissingError as error:
            loss = Loss(where.disk, where.shard, part.first_lsn, part.next_lsn, f"{error}")
            if self.fail_on_loss:
                raise DataLossError(loss) from error
            losses.append(loss)
        records = part.next_lsn - part.first_lsn - _missing(losses, part.first_lsn, part.next_lsn)
        written.losses.extend(losses)
        written.ranges.append(
            Range(where.disk, where.shard, part.first_lsn, part.next_lsn, records, rows, signed(total))
        )


def _missing(losses: list[Loss], first_lsn: int, next_lsn: int) -> int:
    """Number of lost records in a range; losses may overlap."""
    missing, upto = 0, first_lsn
    for loss in sorted(losses, key=lambda each: each.first_lsn):
        last = min(loss.next_lsn, next_lsn)
        missing += max(0, last - max(loss.first_lsn, upto))
        upto = max(upto, last)
    return missing


_COLUMN: Final = "pieces"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
"""Name of the property with the id of the query, which the checkpoint preserves."""
_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling it: java.lang.InterruptedException"
)
"""Text by which Spark recognises that a micro-batch failed because the query was stopped
(StreamExecution.scala)."""


class PartsSource(DataSource):
    """A source of tasks instead of data: one row for each task."""

    @classmethod
    def name(cls) -> str:
        """Name of the format; only this module uses it."""
        return "lightrail-parts"

    def schema(self) -> StructType:
        """The pickled pieces of a task."""
        return StructType([StructField(_COLUMN, BinaryType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # as Spark names it
        """Plans micro-batches."""
        return PartsReader(read_options(self.options, streaming=True), tuple(SCHEMA.names))


class PartsReader(StreamReader):
    """Plans as the source does, and returns the plan as rows."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The outline of a micro-batch, and then the pieces of its tasks.

        Raises:
            DataLossError: records of the micro-batch are missing, and losses are not allowed.
            SourceError: an archive, a gateway, or the shard that has them, does not answer.
        """
        bounds = {disk: (start[disk], after) for disk, after in end.items() if start.get(disk, after) < after}
        losses, self._losses = self._losses, (recorded := _Recorded(self._losses))
        try:
            planned = super().partitions(start, end)
        finally:
            self._losses = losses
        return [InputPartition(Outline(bounds, recorded.losses)), *planned] if bounds else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The plan of one task, or the outline."""
        yield (pickle.dumps(partition.pieces if isinstance(partition, Task) else partition.value),)


class _Recorded(Losses):
    """Passes losses on and records them."""

    def __init__(self, further: Losses) -> None:
        self._further = further
        self.losses: list[Loss] = []

    def say(self, loss: Loss) -> None:
        self._further.say(loss)
        self.losses.append(loss)


@dataclass(frozen=True, slots=True)
class Outline:
    """The outline of a micro-batch."""

    bounds: Bounds
    losses: list[Loss]
    """Losses found by planning, and later by reading."""

    def covered(self, ranges: Iterable[Range]) -> Covered:
        """The bounds with all gaps filled: records in no range and no loss were never archived."""
        read: list[Range] = []
        unwatched: list[Range] = []
        every = list(ranges)
        shards = {each.journal: each.shard for each in self.losses}
        shards |= {each.journal: each.shard for each in every}
        for journal, (first_lsn, next_lsn) in self.bounds.items():
            expected = first_lsn
            shard = shards.get(journal, -1)
            mine = sorted(
                (each for each in every if each.journal == journal), key=lambda each: each.first_lsn
            )
            for each in (*mine, Range.without_rows(journal, shard, next_lsn, next_lsn)):
                for loss in sorted(self.losses, key=lambda loss: loss.first_lsn):
                    begin, end = max(expected, loss.first_lsn), min(each.first_lsn, loss.next_lsn)
                    if loss.journal == journal and begin < end:
                        if expected < begin:
                            unwatched.append(Range.without_rows(journal, shard, expected, begin))
                        read.append(Range.without_rows(journal, shard, begin, end))
                        expected = end
                if expected < each.first_lsn:
                    unwatched.append(Range.without_rows(journal, shard, expected, each.first_lsn))
                if each.first_lsn < each.next_lsn:
                    read.append(each)
                expected = each.next_lsn
        return Covered(self.bounds, read, unwatched)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A committed micro-batch, for reports of progress."""

    number: int
    records: int
    rows: int
    files: int
    bytes: int
    losses: list[Loss]


class BatchError(Exception):
    """An error of a micro-batch in the form that Spark accepts."""


@dataclass(slots=True)
class Capture:
    """One capture into one table."""

    spark: "SparkSession"
    table: DeltaTable
    uri: str
    options: dict[str, str]
    """Options of the data source."""
    checkpoint: str
    told: Callable[[MicroBatch], None] = lambda batch: None
    problem: Exception | None = field(default=None, init=False)
    """The error of the last micro-batch, which Spark wraps in an error of another class."""
    stopping: bool = field(default=False, init=False)
    """Whether the query is being stopped: the current micro-batch is interrupted, and repeated later."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of the table."""
        return Ledger(self.table, self.uri)

    def start(self, available_now: bool, every_s: float | None = None) -> "StreamingQuery":
        """Starts at the end of the checkpoint; without one, at the end of the table.

        Raises:
            CommandError: the table's log was cleaned before its ledger was brought up to date.
        """
        self.ledger.catch_up()
        positions = self.ledger.positions()
        starting = json.dumps(positions) if positions else "earliest"
        self.spark.dataSource.register(PartsSource)
        frame = (
            self.spark.readStream.format(PartsSource.name())
            .options(**self.options)
            .option("startingOffsets", starting)
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", self.checkpoint)
        writer = (
            writer.trigger(availableNow=True)
            if available_now
            else writer.trigger(processingTime=f"{every_s or 0} seconds")
        )
        return writer.start()

    def stop(self, query: "StreamingQuery") -> None:
        """Stops the query, interrupting a micro-batch if need be."""
        self.stopping = True
        query.stop()

    def _batch(self, frame: "DataFrame", number: int) -> None:
        query = self.spark.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        assert query is not None
        try:
            self._done(frame, query, number)
        except Exception as error:
            self.problem = error
            # Raise a short text without a cause: Spark searches it for an interruption by a regular
            # expression that overflows the stack on long texts.
            raise BatchError(_INTERRUPTED if self.stopping else str(named(error))) from None

    def _done(self, frame: "DataFrame", query: str, number: int) -> None:
        self.table.update_incremental()
        if not committed(self.table, query, number):
            outline, tasks = _planned(frame)
            if outline is not None:
                self._write_batch(query, number, outline, tasks)
        # Also when the table has the batch already, after a crash between the table and its ledger.
        self.ledger.catch_up()

    def _write_batch(self, query: str, number: int, outline: Outline, tasks: list[list[Piece]]) -> None:
        try:
            # Also checked before reading, which would be useless otherwise.
            follows(self.table, outline.bounds)
        except OrderError as error:
            raise CommandError(
                f"{error}: the checkpoint {self.checkpoint} is that of another table, or older than this "
                "one. Remove it: capture then continues at the end of the table"
            ) from error
        written = self._run(CaptureTask(self._wanted(), self.uri, self._fail_on_loss()), tasks)
        files = [each for one in written for each in one.files]
        covered = outline.covered(each for one in written for each in one.ranges)
        commit_batch(self.table, query, number, files, covered)
        self.told(
            MicroBatch(
                number,
                sum(each.records for each in covered.ranges),
                sum(each.rows for each in covered.ranges),
                len(files),
                sum(each.size for each in files),
                [*outline.losses, *(each for one in written for each in one.losses)],
            )
        )

    def _run(self, work: CaptureTask, tasks: list[list[Piece]]) -> list[Written]:
        if not tasks:
            return []
        context = self.spark.sparkContext
        return context.parallelize(tasks, len(tasks)).map(work.run).collect()

    def _wanted(self) -> Any:
        return reading_of(read_options(self.options, streaming=True), tuple(SCHEMA.names)).wanted

    def _fail_on_loss(self) -> bool:
        return read_options(self.options, streaming=True).fail_on_loss


def _planned(frame: "DataFrame") -> tuple[Outline | None, list[list[Piece]]]:
    """The outline of a micro-batch, None if it is empty, and the pieces of its tasks."""
    outline: Outline | None = None
    tasks: list[list[Piece]] = []
    for row in frame.collect():
        found = pickle.loads(row[0])
        if isinstance(found, Outline):
            outline = found
        else:
            tasks.append(found)
    return outline, tasks
