"""The layout of the lake: columns, partitions, folders, and the metadata of commits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from lightrail.spark.columns import SCHEMA

FORMAT: Final = 1
PARTITIONS: Final = ("queue_slug", "date", "hour")
"""Slug of the queue (files.py), and day and hour of `event_time` in UTC."""
LAKE_SCHEMA: Final = pa.schema(
    [*SCHEMA, ("queue_slug", pa.string()), ("date", pa.date32()), ("hour", pa.int32())]
)
STATISTICS: Final = ("queue", "shard", "journal", "epoch", "sequence", "lsn", "event", "event_time")
"""Columns with minimum and maximum in the statistics of each file; every row has them."""
FOLDER: Final = "_lightrail"
"""Folder of the ledger. It begins with `_`, so that readers of the table and its vacuum ignore it."""
COVERAGE: Final = f"{FOLDER}/coverage"
CHECKPOINT: Final = f"{FOLDER}/checkpoint"
NOTE: Final = "lightrail"
"""Key of a commit's metadata for the ledger."""
JOURNAL_TRANSACTION: Final = "lightrail-journal:"
"""Prefix of an application transaction, followed by the disk of a journal. Its version is the first lsn of
the journal that the table does not cover."""


Bounds = dict[str, tuple[int, int]]
"""By journal (its disk): its first record in a batch, and the first one after the batch."""


@dataclass(frozen=True, slots=True)
class Range:
    """A half-open range of records of one journal, with counts of its rows."""

    journal: str
    shard: int
    first_lsn: int
    next_lsn: int
    records: int
    """Number of records that were read; smaller than the range if some were lost."""
    rows: int
    checksum: int
    """Sum of the marks of the rows (sums.py)."""

    @classmethod
    def without_rows(cls, journal: str, shard: int, first_lsn: int, next_lsn: int) -> "Range":
        """The range of lost records."""
        return cls(journal, shard, first_lsn, next_lsn, 0, 0, 0)

    def plain(self) -> dict[str, Any]:
        """The range as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Covered:
    """The coverage of a batch."""

    bounds: Bounds
    """Bounds by journal; the ranges cover them without a hole."""
    ranges: Sequence[Range]
    """Ranges that were read, and lost ranges, which have no records."""
    unwatched: Sequence[Range] = ()
    """Ranges that were never archived, because no queue was captured at the time."""


@dataclass(frozen=True, slots=True)
class File:
    """A written Parquet file without a commit yet."""

    path: str
    """Path relative to the table."""
    size: int
    modified_ms: int
    partition: dict[str, str]
    stats: str
    """Statistics as JSON, in the form of Delta's log."""
