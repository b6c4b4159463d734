"""What a read of a journal wants: its part, rows and columns, by the names of its queues.

Selection: a part of a journal, and the rows and columns to read.

Tables: names, epochs and capture of a journal's queues, by number, as of a position.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex
from lightrail.journal.record import Queue, QueueEvent, Snapshot
from lightrail.spark.columns import DECODED, SCHEMA, Decode

UNKNOWN: Final = -1
"""Index of a queue that is not selected."""


class QueueValues(NamedTuple):
    """A queue's values for columns."""

    name: str
    epoch: int
    captured: bool


def read_policy(name: str, text: str) -> QueueValues:
    """The contents of a Queue record's text (docs/formats/journal.md, 3 Queue)."""
    try:
        fields = json.loads(text)
        return QueueValues(name, int(fields.get("epoch", 1)), fields.get("capture") is True)
    except (ValueError, AttributeError, TypeError):
        return QueueValues(name, 1, False)


class QueueTables:
    """Follows the Queue records; `indexes` maps a number to the queue's index in `entries`, or UNKNOWN for
    one that is not selected."""

    def __init__(self, wanted: Callable[[QueueValues], bool]) -> None:
        self._wanted = wanted
        self._known: dict[int, tuple[str, str]] = {}
        self._by_entry: dict[QueueValues, int] = {}
        self.entries: list[QueueValues] = []
        self.indexes = _Indexes(self._resolve)
        self.undeclared: set[int] = set()
        """Indexes of queues without a Queue record, which is possible only after records were lost."""

    def restore(self, record: Snapshot) -> None:
        """The Snapshot at the head of the segment."""
        self._known = {entry.queue: (entry.name, entry.policy) for entry in record.queues}
        self.indexes.clear()

    def apply(self, record: Queue) -> None:
        """Applies a Queue record."""
        if record.event == QueueEvent.DELETED:
            self._known.pop(record.queue, None)
        else:
            self._known[record.queue] = (record.name, record.policy)
        self.indexes.pop(record.queue, None)

    def _resolve(self, number: int) -> int:
        known = self._known.get(number)
        # The name that recovery assigns to a queue whose records were lost (shard/journal/recovery.py).
        entry = QueueValues(f"lost-and-found/{number}", 1, False) if known is None else read_policy(*known)
        if not self._wanted(entry):
            return UNKNOWN
        index = self._by_entry.get(entry)
        if index is None:
            index = self._by_entry[entry] = len(self.entries)
            self.entries.append(entry)
        if known is None:
            self.undeclared.add(index)
        return index


class _Indexes(dict[int, int]):
    """Looks a queue up when its number first appears: most queues of a shard have no record in a part."""

    def __init__(self, resolve: Callable[[int], int]) -> None:
        super().__init__()
        self._resolve = resolve

    def __missing__(self, number: int) -> int:
        index = self[number] = self._resolve(number)
        return index


SPARK_BATCH_ROWS: Final[int] = 65_536
"""Rows of a record batch."""
SPARK_BATCH_BYTES: Final[int] = 16 * 1024 * 1024
"""Bytes of the messages in a record batch; a larger message is a batch of its own."""
_WORTH: Final = 4
"""A batch of at least this part (1/4) of the wanted size is not joined with others."""


@dataclass(frozen=True)
class Part:
    """Records `first_lsn` to before `next_lsn` of one segment."""

    incarnation: Incarnation
    segment: int
    first_lsn: int
    next_lsn: int
    index: SegmentIndex
    """Index of the segment: blocks, records that declare queues, committed end."""


@dataclass(frozen=True)
class Wanted:
    """Rows and columns to read."""

    queues: frozenset[str] | None = None
    pattern: str | None = None
    """A regular expression that the whole name of a queue matches."""
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    """Names of columns in the order of FIELDS."""
    decode: Decode = Decode.NONE
    include_body: bool = True
    """Whether to read `body` and `message`, which are null otherwise."""
    captured_only: bool = True
    first_ms: int | None = None
    """Only records from this time on."""
    before_ms: int | None = None
    """Only records before this time."""
    batch_rows: int = SPARK_BATCH_ROWS
    batch_bytes: int = SPARK_BATCH_BYTES

    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def decoded(self) -> tuple[str, ...]:
        """The columns that are decoded from messages."""
        decoded = frozenset() if self.decode == Decode.NONE else DECODED
        if self.decode == Decode.ALL and self.include_body:
            decoded = decoded | {"body"}
        return tuple(name for name in self.columns if name in decoded)

    def chooses(self, entry: QueueValues) -> bool:
        """Whether rows of a queue are selected."""
        if self.captured_only and not entry.captured:
            return False
        if self.queues is not None and entry.name not in self.queues:
            return False
        return self.pattern is None or re.fullmatch(self.pattern, entry.name) is not None


def gathered(batches: Iterator[pa.RecordBatch], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, each within the wanted bounds of rows and bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (
            rows + batch.num_rows > wanted.batch_rows or size + batch.nbytes > wanted.batch_bytes
        ):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows * _WORTH >= wanted.batch_rows or size * _WORTH >= wanted.batch_bytes:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
