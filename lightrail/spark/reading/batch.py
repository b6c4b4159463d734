"""A batch read: from the starting offsets to the ending offsets, or to the current end.

Bounds from the filters of a query: of queue, shard, journal, lsn and time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from lightrail.spark.decoding.wanted import Part
from lightrail.spark.journals.journal import Journal
from lightrail.spark.journals.listing import Listing
from lightrail.spark.reading.losses import Losses
from lightrail.spark.reading.options import Options
from lightrail.spark.reading.planning import Piece, pieces, resolve, tasks
from lightrail.spark.reading.tasks import Task, reading_of

SPARK_CLOCK_MS: Final[int] = 600_000
"""How much earlier a record's time may be than that of earlier records, after a clock was set back."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Bounds:
    """Bounds of the rows of a query; None where there is no bound."""

    queues: frozenset[str] | None = None
    shards: frozenset[int] | None = None
    journals: frozenset[str] | None = None
    first_lsn: int | None = None
    next_lsn: int | None = None
    first_ms: int | None = None
    before_ms: int | None = None

    def may_have(self, part: Part) -> bool:
        """Whether a part may have rows within the bounds of time.

        Times of records rise except where a clock was set back, by up to SPARK_CLOCK_MS.
        """
        index = part.index
        times = [index.last_ms, *(block.timestamp for block in index.blocks)]
        slack = SPARK_CLOCK_MS
        if self.first_ms is not None and max(times) + slack < self.first_ms:
            return False
        return self.before_ms is None or min(times) - slack < self.before_ms


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds of all filters together; unknown filters are ignored."""
    bounds = Bounds()
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) == 1:
            _add(bounds, attribute[0], each)
    return bounds


_FEWER: Final = {"queue": "queues", "shard": "shards", "journal": "journals"}


def _add(bounds: Bounds, column: str, each: Filter) -> None:
    if column in _FEWER:
        values = _values(each)
        if values is not None:
            name = _FEWER[column]
            before = getattr(bounds, name)
            setattr(bounds, name, values if before is None else before & values)
    elif column == "lsn":
        for first, next_lsn in _ranges(each, int):
            bounds.first_lsn = _higher(bounds.first_lsn, first)
            bounds.next_lsn = _lower(bounds.next_lsn, None if next_lsn is None else next_lsn + 1)
    elif column == "event_time":
        for start, end in _ranges(each, datetime):
            # Times of rows are whole milliseconds.
            bounds.first_ms = _higher(bounds.first_ms, None if start is None else _ms(start))
            bounds.before_ms = _lower(bounds.before_ms, None if end is None else _ms(end) + 1)


def _values(each: Filter) -> frozenset[Any] | None:
    if isinstance(each, EqualTo | EqualNullSafe):
        return frozenset([each.value]) if each.value is not None else None
    if isinstance(each, In):
        return frozenset(value for value in each.value if value is not None)
    return None


def _ranges(each: Filter, kind: type[_T]) -> Iterator[tuple[_T | None, _T | None]]:
    """Bounds of the values that a filter accepts; the bounds themselves may be excluded."""
    value = getattr(each, "value", None)
    if isinstance(each, In):
        values = [each for each in each.value if isinstance(each, kind)]
        if values and len(values) == len(each.value):
            yield min(values), max(values)  # type: ignore[type-var]
        return
    if not isinstance(value, kind):
        return
    if isinstance(each, EqualTo | EqualNullSafe):
        yield value, value
    elif isinstance(each, GreaterThan | GreaterThanOrEqual):
        yield value, None
    elif isinstance(each, LessThan | LessThanOrEqual):
        yield None, value


def _ms(time: datetime) -> int:
    """Milliseconds, rounded down. A time without a zone is local to the process."""
    return int((time if time.tzinfo else time.astimezone(UTC)).timestamp() * 1000)


def _higher(before: int | None, value: int | None) -> int | None:
    return before if value is None else value if before is None else max(before, value)


def _lower(before: int | None, value: int | None) -> int | None:
    return before if value is None else value if before is None else min(before, value)


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
