"""What is to be read: a part of a journal, and which rows and columns of it."""

import re
from dataclasses import dataclass

import pyarrow as pa

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex
from lightrail.model import limits
from lightrail.spark.columns import DECODED, SCHEMA, Decode
from lightrail.spark.decoding.tables import Entry


@dataclass(frozen=True)
class Part:
    """Records `first_lsn` to before `next_lsn` of one segment."""

    incarnation: Incarnation
    segment: int
    first_lsn: int
    next_lsn: int
    index: SegmentIndex
    """Of the segment: where to begin, where queues are declared, how far it is committed."""


@dataclass(frozen=True)
class Wanted:
    """Which rows and columns."""

    queues: frozenset[str] | None = None
    pattern: str | None = None
    """A regular expression that the whole name of a queue matches."""
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    """In the order of FIELDS."""
    decode: Decode = Decode.NONE
    include_body: bool = True
    """Without, `body` and `message` are null."""
    captured_only: bool = True
    first_ms: int | None = None
    """Records from this time on."""
    before_ms: int | None = None
    """Records before this time."""
    batch_rows: int = limits.SPARK_BATCH_ROWS
    batch_bytes: int = limits.SPARK_BATCH_BYTES

    def schema(self) -> pa.Schema:
        """Of every batch."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def decoded(self) -> tuple[str, ...]:
        """The columns for which messages are looked into."""
        decoded = frozenset() if self.decode == Decode.NONE else DECODED
        if self.decode == Decode.ALL and self.include_body:
            decoded = decoded | {"body"}
        return tuple(name for name in self.columns if name in decoded)

    def chooses(self, entry: Entry) -> bool:
        """Whether rows of a queue are wanted."""
        if self.captured_only and not entry.captured:
            return False
        if self.queues is not None and entry.name not in self.queues:
            return False
        return self.pattern is None or re.fullmatch(self.pattern, entry.name) is not None
