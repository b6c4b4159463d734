"""The layout of the lake: columns, partitions, folders, and what commits say beside their files."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from lightrail.spark.columns import SCHEMA

FORMAT: Final = 1
PARTITIONS: Final = ("queue_slug", "date", "hour")
"""Slug of the queue (slug.py), and day and hour of `event_time` in UTC."""
LAKE_SCHEMA: Final = pa.schema(
    [*SCHEMA, ("queue_slug", pa.string()), ("date", pa.date32()), ("hour", pa.int32())]
)
STATISTICS: Final = ("queue", "shard", "journal", "epoch", "sequence", "lsn", "event", "event_time")
"""Columns of which each file says the least and the greatest value; they are in every row."""
FOLDER: Final = "_lightrail"
"""Begins with `_`: readers of the table and its vacuum leave it alone."""
COVERAGE: Final = f"{FOLDER}/coverage"
CHECKPOINT: Final = f"{FOLDER}/checkpoint"
NOTE: Final = "lightrail"
"""Key of what a commit says for the ledger."""
JOURNAL_TRANSACTION: Final = "lightrail-journal:"
"""Before the disk of a journal: the application transaction whose version is the first lsn of that journal
that the table does not cover."""


Bounds = dict[str, tuple[int, int]]
"""Journal (its disk) → its first record in a batch, and the first one behind."""


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one journal, half-open, and the rows that they gave."""

    journal: str
    shard: int
    first_lsn: int
    next_lsn: int
    records: int
    """That were read: fewer than the numbers of the range where some were lost."""
    rows: int
    checksum: int
    """Sum of the marks of the rows (sums.py)."""

    @classmethod
    def without_rows(cls, journal: str, shard: int, first_lsn: int, next_lsn: int) -> "Range":
        """Records that are not there."""
        return cls(journal, shard, first_lsn, next_lsn, 0, 0, 0)

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Covered:
    """What a batch covers of the journals."""

    bounds: Bounds
    """All of it, filled by the ranges without a hole."""
    ranges: Sequence[Range]
    """What was read, and what is lost: that has no records."""
    unwatched: Sequence[Range] = ()
    """Records that were never archived, as no queue was captured then."""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file that was written and belongs to no commit yet."""

    path: str
    """Below the table."""
    size: int
    modified_ms: int
    partition: dict[str, str]
    stats: str
    """JSON as Delta's log has it."""
