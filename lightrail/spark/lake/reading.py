"""A task of capture, which reads a part of journals and writes its rows; it runs in executors."""

from collections.abc import Iterable
from dataclasses import dataclass

from lightrail.spark.decoding.rows import record_batches
from lightrail.spark.decoding.wanted import Wanted
from lightrail.spark.decoding.windows import DamageError
from lightrail.spark.journals.journal import first_answer
from lightrail.spark.journals.sources import SegmentMissingError
from lightrail.spark.lake.files import File, FileWriter, Folder, Range
from lightrail.spark.lake.tally import marks, signed
from lightrail.spark.reading.losses import DataLossError, Loss
from lightrail.spark.reading.planning import Piece


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task."""

    files: list[File]
    ranges: list[Range]
    losses: list[Loss]


@dataclass(frozen=True, slots=True)
class Work:
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
