"""Bounds from the filters of a query: of queue, shard, journal, lsn and time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from lightrail.spark.decoding.wanted import Part

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
