"""Tasks of a read, in executors: from segments to Arrow record batches."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lightrail.spark.decoding.rows import record_batches
from lightrail.spark.decoding.wanted import Wanted
from lightrail.spark.decoding.windows import DamageError
from lightrail.spark.journals.journal import SegmentMissingError, first_answer
from lightrail.spark.reading.losses import Loss, Losses
from lightrail.spark.reading.options import Options
from lightrail.spark.reading.planning import Piece

log = logging.getLogger("lightrail.spark.reading")


class Task(InputPartition):
    """The pieces of one task, in the order of the journal."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(pieces)
        self.pieces = pieces

    def __repr__(self) -> str:
        parts = [piece.part for piece in self.pieces]
        return (
            "Task("
            + ", ".join(
                f"{part.incarnation.disk}/{part.segment}[{part.first_lsn}, {part.next_lsn})" for part in parts
            )
            + ")"
        )


@dataclass(frozen=True)
class Reading:
    """Settings of tasks, which are sent to executors with the reader."""

    wanted: Wanted
    fail_on_loss: bool
    loss_path: str | None

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task.

        Raises:
            DamageError: a record is damaged, and losses are not allowed.
            DataLossError: a segment is missing, and losses are not allowed.
            SourceError: an archive or gateway does not answer.
        """
        if isinstance(partition, Task):
            losses = Losses(self.fail_on_loss, self.loss_path)
            for piece in partition.pieces:
                yield from self._piece(piece, losses)

    def _piece(self, piece: Piece, losses: Losses) -> Iterator[pa.RecordBatch]:
        part = piece.part
        where = part.incarnation

        def lost(damage: DamageError) -> None:
            losses.say(Loss(where.disk, where.shard, damage.lsn, damage.next_lsn, damage.what))

        odd = 0

        def undecodable(count: int) -> None:
            nonlocal odd
            odd += count

        try:
            file = first_answer(list(piece.sources), lambda source: source.open())
            try:
                yield from record_batches(
                    part, file, self.wanted, None if self.fail_on_loss else lost, undecodable
                )
            finally:
                file.close()
            if odd:
                log.warning(
                    "segment %d of journal %s has %d messages that could not be decoded, or only in part: "
                    "the affected columns are null, `message` has the bytes",
                    part.segment,
                    where.disk,
                    odd,
                )
        except SegmentMissingError as error:
            losses.say(Loss(where.disk, where.shard, part.first_lsn, part.next_lsn, f"{error}"))


def reading_of(options: Options, columns: tuple[str, ...]) -> Reading:
    """Settings of tasks according to the options."""
    wanted = Wanted(
        queues=options.queues,
        pattern=options.pattern,
        columns=columns,
        decode=options.decode,
        include_body=options.include_body,
        captured_only=options.captured_only,
        first_ms=None,
        before_ms=None,
    )
    return Reading(wanted, options.fail_on_loss, options.loss_path)
