"""Pieces: how messages and figures of a queue that moves are encoded, and all messages of such a queue.

A piece is messages by sequence, the answer to one request of an export. Its figures are columns: arrays one
after another, and a checksum over them.

A queue may have a hundred thousand single messages; encoding an object of JSON for each of them would take
longer than a move may stop a queue. The JSON beside a blob lists the columns in it: `{"columns": [[name,
type, items], ...], "crc": CRC-32 of the blob}`; types are those of Python's array (B, I, Q, q: 1, 4, 8, 8
bytes, little-endian), and `b` for plain bytes.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from lightrail.model.attempts import of_journal
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.values.runs import Batch, Run, ends_of, sequence_of
from lightrail.shard.queues.shard_queue import Queue

if TYPE_CHECKING:
    from lightrail.shard.effects.performer import Performer

BYTES: Final = "b"
_TYPES: Final = frozenset("BIQq")

Column = array
Columns = dict[str, Any]
"""By name: an array, or bytes."""


class ColumnsError(Exception):
    """A blob does not match its JSON, or is damaged."""


def table(types: str, rows: Iterable[tuple[int, ...]]) -> list["Column[int]"]:
    """One array for each field of the rows."""
    columns = [array(code) for code in types]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return columns


def pack(columns: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The JSON and the blob of some columns: arrays, or bytes, or lists of pieces of bytes."""
    said: list[list[Any]] = []
    pieces: list[Any] = []
    for name, column in columns.items():
        if isinstance(column, array):
            said.append([name, column.typecode, len(column)])
            pieces.append(memoryview(column).cast("B") if len(column) else b"")
        else:
            parts = column if isinstance(column, list) else [column]
            said.append([name, BYTES, sum(len(part) for part in parts)])
            pieces += parts
    blob = b"".join(pieces)
    return {"columns": said, "crc": crc32(blob)}, blob


def unpack(header: Mapping[str, Any], blob: bytes | memoryview) -> Columns:
    """The columns of a blob.

    Raises:
        ColumnsError: the checksum is wrong, or the columns do not fill the blob.
    """
    found = crc32(blob)
    if header.get("crc") != found:
        raise ColumnsError(f"expected {len(blob)} bytes with checksum {header.get('crc')}, found {found}")
    view = memoryview(blob)
    columns: Columns = {}
    position = 0
    try:
        for name, code, items in header["columns"]:
            if code != BYTES and code not in _TYPES:
                raise ColumnsError(f"column {name!r} has the unknown type {code!r}")
            column: Column[int] = array("B" if code == BYTES else code)
            end = position + items * column.itemsize
            if end > len(view):
                raise ColumnsError(f"column {name!r} ends at {end} of {len(view)} bytes")
            if code == BYTES:
                columns[name] = view[position:end]
            else:
                column.frombytes(view[position:end])
                columns[name] = column
            position = end
    except (KeyError, TypeError, ValueError) as error:
        raise ColumnsError(f"the list of columns is not as expected: {error!r}") from error
    if position != len(view):
        raise ColumnsError(f"the columns have {position} bytes, found {len(view)}")
    return columns


def rows(columns: Columns, *names: str) -> Iterable[tuple[int, ...]]:
    """Some columns of the same length, row by row. Raises ColumnsError if one is missing or shorter."""
    try:
        wanted = [columns[name] for name in names]
    except KeyError as error:
        raise ColumnsError(f"expected a column {error}, found {', '.join(columns)}") from None
    if len({len(column) for column in wanted}) > 1:
        raise ColumnsError(f"the columns {', '.join(names)} are not of one length")
    return zip(*wanted, strict=True)


def put(columns: Columns, prefix: str, types: Mapping[str, str], rows: Iterable[tuple[int, ...]]) -> None:
    """Adds a column for each field of the rows, named `PREFIX.NAME`, or `NAME` without a prefix."""
    made = table("".join(types.values()), rows)
    for name, column in zip(types, made, strict=True):
        columns[f"{prefix}.{name}" if prefix else name] = column


@dataclass(slots=True, eq=False, repr=False)
class QueueMessages:
    """The messages of one queue: ready, delayed, in flight, and dead letters that are not written yet."""

    queue: Queue
    _performer: "Performer"

    def lines(self) -> list[Ready]:
        """The lines of ready and, if there is one, of delayed messages."""
        return self.queue.view.lines

    def others(self) -> Iterator[Run]:
        """Messages in flight, and dead letters that the store had no room for: those are in no queue yet."""
        for consumer in self.queue.view.consumers:
            yield from consumer.in_flight.runs[consumer.in_flight.head :]
        for queue, effect in self._performer.dead_letters.unwritten:
            if queue is self.queue:
                yield effect.run

    def runs(self) -> list[Run]:
        """All runs, by sequence."""
        runs = list(chain(*(runs_from(line, 0) for line in self.lines()), self.others()))
        runs.sort(key=sequence_of)
        return runs

    @property
    def lowest(self) -> int:
        """The lowest sequence in the queue; of an empty queue, the one of its next message."""
        first = [next(runs_from(line, 0), None) for line in self.lines()]
        sequences = [run.sequence for run in chain(first, self.others()) if run is not None]
        return min(sequences, default=self.queue.view.next_sequence)


def runs_from(line: Ready, first: int) -> Iterator[Run]:
    """The runs of a line from the one on that ends after a sequence; holes are skipped."""
    runs = line.runs
    for index in range(line.index(first), len(runs)):
        run = runs[index]
        if run.last > run.first:
            yield run


RUN_COLUMNS = {
    "sequence": "Q",
    "count": "I",
    "attempts": "I",
    "durable": "B",
    "priority": "B",
    "expires_at_ms": "q",
    "enqueued_at_ms": "q",
    "message_format": "I",
    "size": "I",
}
"""Columns of the runs of a piece: name and type; `expires_at_ms` is 0 for never. Then follow `ends` (u32, of
all messages, each run's counted from its own first byte) and `data`."""


def encode_runs(runs: list[tuple[Run, int]]) -> tuple[dict[str, Any], bytes]:
    """The JSON and the blob of runs in memory, each with its attempts."""
    columns: dict[str, Any] = {}
    put(columns, "", RUN_COLUMNS, (_row(run, attempts) for run, attempts in runs))
    ends: array[int] = array("I")
    for run, _ in runs:
        ends.frombytes(bytes(ends_of(run)))
    columns["ends"] = ends
    columns["data"] = [run.batch.blob(run.first, run.last) for run, _ in runs]
    return pack(columns)


def _row(run: Run, attempts: int) -> tuple[int, ...]:
    batch = run.batch
    # Until when they wait is part of the state.
    return (
        run.sequence,
        run.count,
        of_journal(attempts),
        batch.durable,
        batch.priority,
        batch.expires_at_ms or 0,
        batch.enqueued_at_ms,
        batch.message_format,
        run.size,
    )


def decode_runs(columns: Columns) -> list[Run]:
    """The runs of a piece, each with a separate batch. Raises ColumnsError."""
    runs: list[Run] = []
    ends, data = columns["ends"], columns["data"]
    at = position = before = 0
    for (
        sequence,
        count,
        attempts,
        durable,
        priority,
        expires_at_ms,
        enqueued_at_ms,
        message_format,
        size,
    ) in rows(columns, *RUN_COLUMNS):
        column = ends[at : at + count]
        if not count or len(column) != count or column[-1] != size or sequence < before:
            raise ColumnsError(f"the run at sequence {sequence} has other ends than its size and count")
        batch = Batch(
            bytes(data[position : position + size]),
            column,
            count,
            size,
            0,
            bool(durable),
            priority,
            expires_at_ms or None,
            enqueued_at_ms,
            None,
            message_format,
        )
        runs.append(Run(batch, 0, count, sequence, attempts))
        at += count
        position += size
        before = sequence + count
    if position != len(data) or at != len(ends):
        raise ColumnsError(f"the runs have {position} bytes, found {len(data)}")
    return runs
