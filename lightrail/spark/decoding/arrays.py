"""Rows of a window as Arrow columns: fields of a record are repeated for its rows, messages copied once."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lightrail.amqp.sections import decode_header
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError
from lightrail.journal.layout import APPEND_BODY
from lightrail.model.attempts import DEFERRED, STATE
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.spark.columns import SCHEMA
from lightrail.spark.decoding.runs import EVENTS, REASON_SIZE_AT, RETURNED, Runs, carries_messages, reason_of
from lightrail.spark.decoding.values import PADDING, slices
from lightrail.spark.decoding.wanted import QueueValues
from lightrail.spark.decoding.windows import Numbers, Window

_EVENT_NAMES: Final = pa.array([event.value for event in EVENTS], pa.string())
_TIME: Final = SCHEMA.field("event_time").type
_DELIVERED_CONSUMER_AT: Final = 40
_PRIORITY_AT: Final = 82
_HEADERS_CACHED: Final = 1_024
_PIECES_FEW: Final = 1_024
"""From this number on Arrow copies the pieces, at a tenth of the cost, unless records overlap."""


class BadEndsError(Exception):
    """An Append record whose ends of messages are malformed."""

    def __init__(self, record: int) -> None:
        super().__init__(record)
        self.record = record
        """Index of the record in the window."""


class Rows:
    """Rows from some runs that become one record batch."""

    def __init__(self, window: Window, runs: Runs, skips: Numbers, counts: Numbers) -> None:
        """Selects `counts` rows of each run, after its first `skips` rows."""
        self.window = window
        self.runs = runs
        self.skips = skips
        self.counts = counts
        self.messages = carries_messages(runs.event)
        """Which runs have messages."""
        self.records = window.starts[runs.record]
        """Offset of each run's record in the window."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())

    def first(self, count: int) -> "Rows":
        """The first rows."""
        ends = np.cumsum(self.counts)
        last = int(np.searchsorted(ends, count))
        counts = self.counts[: last + 1].copy()
        counts[-1] -= int(ends[last]) - count
        return Rows(self.window, self.runs.take(np.arange(last + 1)), self.skips[: last + 1], counts)

    def spread(self, column: Numbers) -> Numbers:
        """Expands a column with one item per run to one item per row."""
        found: Numbers = np.repeat(column, self.counts)
        return found

    def within(self) -> Numbers:
        """Index of each row in its run."""
        ends = np.cumsum(self.counts)
        offsets = self.skips - (ends - self.counts)
        found: Numbers = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(offsets, self.counts)
        return found


class Extents:
    """Offsets of the messages of rows; empty for rows without a message.

    Raises:
        BadEndsError: the column of ends of a record does not rise, or not to its size.
    """

    def __init__(self, rows: Rows) -> None:
        window = rows.window
        some = rows if rows.messages.all() else _only(rows, rows.messages)
        starts = some.records
        ends_at = starts + APPEND_BODY + 16 * window.u16[starts + 80].astype(np.int64)
        blob_at = ends_at + 4 * window.u32[starts + 68].astype(np.int64)
        sizes = window.u32[starts + 72].astype(np.int64)
        within = some.within()
        offsets = some.spread(ends_at) + 4 * within
        stop = window.u32[offsets].astype(np.int64)
        start = window.u32[offsets - 4].astype(np.int64)
        start[within == 0] = 0
        lengths = stop - start
        wrong = (lengths < 0) | (stop > some.spread(sizes))
        if wrong.any():
            raise BadEndsError(int(some.spread(some.runs.record)[int(np.argmax(wrong))]))
        after = np.cumsum(some.counts)
        self._window = window
        self._starts = blob_at + start[after - some.counts]
        self._stops = blob_at + stop[after - 1]
        if some is rows:
            self.lengths = lengths
        else:
            self.lengths = np.zeros(rows.count, np.int64)
            self.lengths[rows.spread(rows.messages)] = lengths

    def blob(self) -> bytes | pa.Buffer:
        """The messages of all rows, one after another, and behind them as many octets as values.PADDING."""
        data = self._window.data
        starts, stops = self._starts, self._stops
        if len(starts) > _PIECES_FEW and (starts[1:] >= stops[:-1]).all():
            after = stops[-1] + len(PADDING)
            if after <= len(data):
                starts, stops = np.append(starts, stops[-1]), np.append(stops, after)
                return slices(pa.py_buffer(data), starts, stops - starts).buffers()[2]
        view = memoryview(data)
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        pieces: list[bytes | memoryview] = [view[start:stop] for start, stop in pairs]
        pieces.append(PADDING)
        return b"".join(pieces)

    def offsets(self) -> Numbers:
        """Offset of each row's message in the blob, and the blob's size at the end."""
        offsets = np.zeros(len(self.lengths) + 1, np.int32)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets


def _only(rows: Rows, which: Numbers) -> Rows:
    return Rows(rows.window, rows.runs.take(which), rows.skips[which], rows.counts[which])


# --- columns from fields of records -----------------------------------------------------------------------


class Facts:
    """Values that all rows of a part share: the journal, and its queues."""

    def __init__(self, shard: int, journal: str, entries: list[QueueValues]) -> None:
        self.shard = shard
        self.journal = pa.array([journal], pa.string())
        self._entries = entries
        self._names = pa.array([], pa.string())
        self._epochs: Numbers = np.zeros(0, np.int64)

    def names(self) -> pa.Array:
        """Names of queues by their index."""
        self._grow()
        return self._names

    def epochs(self) -> Numbers:
        """Epochs of queues by their index."""
        self._grow()
        return self._epochs

    def _grow(self) -> None:
        if len(self._names) != len(self._entries):
            self._names = pa.array([entry.name for entry in self._entries], pa.string())
            self._epochs = np.array([entry.epoch for entry in self._entries], np.int64)


def _plain(values: Numbers, kind: pa.DataType) -> pa.Array:
    """A column without nulls that shares the memory of `values`."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _of_messages(rows: Rows, values: Numbers, kind: pa.DataType) -> pa.Array:
    """A column from one item per run; null for runs without messages."""
    if rows.messages.all():
        return pa.array(rows.spread(values), kind)
    return pa.array(rows.spread(values), kind, mask=~rows.spread(rows.messages))


def _times(milliseconds: Numbers) -> Numbers:
    found: Numbers = milliseconds * 1000
    return found


def _in_messages(rows: Rows, numbers: Numbers, offset: int) -> Numbers:
    """A field of each run's Append record; the number is arbitrary for other records."""
    starts = np.where(rows.messages, rows.records, rows.records[int(np.argmax(rows.messages))])
    found: Numbers = numbers[starts + offset]
    return found


def _queue(rows: Rows, facts: Facts) -> pa.Array:
    return facts.names().take(pa.array(rows.spread(rows.runs.queue)))


def _shard(rows: Rows, facts: Facts) -> pa.Array:
    return _plain(np.full(rows.count, facts.shard, np.int32), pa.int32())


def _journal(rows: Rows, facts: Facts) -> pa.Array:
    return facts.journal.take(pa.array(np.zeros(rows.count, np.int32)))


def _epoch(rows: Rows, facts: Facts) -> pa.Array:
    return _plain(rows.spread(facts.epochs()[rows.runs.queue]), pa.int64())


def _sequence(rows: Rows, facts: Facts) -> pa.Array:
    return _plain(rows.spread(rows.runs.sequence) + rows.within(), pa.int64())


def _lsn(rows: Rows, facts: Facts) -> pa.Array:
    return _plain(rows.spread(rows.window.lsn[rows.runs.record]), pa.int64())


def _event(rows: Rows, facts: Facts) -> pa.Array:
    return _EVENT_NAMES.take(pa.array(rows.spread(rows.runs.event)))


def _event_time(rows: Rows, facts: Facts) -> pa.Array:
    return _plain(rows.spread(_times(rows.window.times[rows.runs.record])), _TIME)


def _enqueued_at(rows: Rows, facts: Facts) -> pa.Array:
    return _of_messages(rows, _times(_in_messages(rows, rows.window.i64, 48)), _TIME)


def _durable(rows: Rows, facts: Facts) -> pa.Array:
    return _of_messages(rows, _in_messages(rows, rows.window.octets, 83) & 1 != 0, pa.bool_())


def _priority(rows: Rows, facts: Facts) -> pa.Array:
    return _of_messages(rows, _said_priorities(rows), pa.int32())


def _said_priorities(rows: Rows) -> Numbers:
    found: Numbers = _in_messages(rows, rows.window.octets, _PRIORITY_AT).astype(np.int32)
    return found


def has_mixed(rows: Rows) -> bool:
    """Whether some messages have their priorities only in their own headers."""
    return bool(rows.messages.any() and (rows.messages & (_said_priorities(rows) == PRIORITY_MIXED)).any())


def mixed_priorities(rows: Rows, extents: Extents, blob: bytes | pa.Buffer) -> pa.Array:
    """The column `priority` if some messages have their priorities only in their headers."""
    mask = rows.spread(rows.messages)
    values = rows.spread(_said_priorities(rows))
    view = memoryview(blob)
    offsets = extents.offsets()
    for row in np.flatnonzero(mask & (values == PRIORITY_MIXED)).tolist():
        message = bytes(view[offsets[row] : offsets[row + 1]])
        try:
            values[row] = _priority_by(message[: survey(message).head_end])
        except DecodeError:
            mask[row] = False
    return pa.array(values, pa.int32(), mask=~mask)


@lru_cache(maxsize=_HEADERS_CACHED)
def _priority_by(head: bytes) -> int:
    priority: int = decode_header(head).priority
    return priority


def _ttl(rows: Rows, facts: Facts) -> pa.Array:
    expires = _in_messages(rows, rows.window.i64, 56)
    values = expires - _in_messages(rows, rows.window.i64, 48)
    return pa.array(rows.spread(values), pa.int64(), mask=~rows.spread(rows.messages & (expires != 0)))


def _delivery_count(rows: Rows, facts: Facts) -> pa.Array:
    """Number of attempts, from the field of an Append, or of a Settle that returned messages."""
    returned = np.isin(rows.runs.event, RETURNED)
    there = rows.messages | returned
    if not there.any():
        return pa.nulls(rows.count, pa.int64())
    starts = np.where(there, rows.records, rows.records[int(np.argmax(there))])
    attempts = rows.window.u32[starts + np.where(rows.messages, 76, 44)].astype(np.int64)
    numbers = attempts & ~(DEFERRED | STATE)
    return pa.array(rows.spread(numbers), pa.int64(), mask=~rows.spread(there))


def _reason(rows: Rows, facts: Facts) -> pa.Array:
    window = rows.window
    settled = window.codes[rows.runs.record] == 2
    if not settled.any():
        return pa.nulls(rows.count, pa.string())
    texts: dict[bytes, int] = {}
    indexes = np.zeros(len(rows.runs), np.int32)
    there = np.zeros(len(rows.runs), bool)
    for at in np.flatnonzero(settled).tolist():
        record = int(rows.runs.record[at])
        if window.u16[int(window.starts[record]) + REASON_SIZE_AT]:
            indexes[at] = texts.setdefault(reason_of(window, record), len(texts))
            there[at] = True
    if not texts:
        return pa.nulls(rows.count, pa.string())
    names = pa.array([text.decode(errors="replace") for text in texts], pa.string())
    return names.take(pa.array(rows.spread(indexes), mask=~rows.spread(there)))


def party(number: int) -> str:
    """The name of a producer or consumer: the boot of its frontend, and the number of its link."""
    return f"{number >> 32:08x}-{number & 0xFFFF_FFFF}"


def _parties(rows: Rows, which: Numbers, offset: int) -> pa.Array:
    """The names of producers or consumers at `offset` of the records of these runs; null for 0."""
    if not which.any():
        return pa.nulls(rows.count, pa.string())
    numbers = np.zeros(len(rows.runs), np.uint64)
    numbers[which] = rows.window.i64[rows.records[which] + offset].view(np.uint64)
    first = numbers[0]
    if (numbers == first).all():
        values, indexes = numbers[:1], np.zeros(len(numbers), np.int64)
    else:
        values, indexes = np.unique(numbers, return_inverse=True)
    names = pa.array([party(number) if number else None for number in values.tolist()], pa.string())
    return names.take(pa.array(rows.spread(indexes)))


def _producer(rows: Rows, facts: Facts) -> pa.Array:
    return _parties(rows, rows.messages, 32)


def _consumer(rows: Rows, facts: Facts) -> pa.Array:
    return _parties(rows, rows.window.codes[rows.runs.record] == 12, _DELIVERED_CONSUMER_AT)


_ALWAYS: Final[dict[str, Callable[[Rows, Facts], pa.Array]]] = {
    "queue": _queue,
    "shard": _shard,
    "journal": _journal,
    "epoch": _epoch,
    "sequence": _sequence,
    "lsn": _lsn,
    "event": _event,
    "event_time": _event_time,
    "delivery_count": _delivery_count,
    "reason": _reason,
    "producer": _producer,
    "consumer": _consumer,
}
_OF_APPENDS: Final[dict[str, Callable[[Rows, Facts], pa.Array]]] = {
    "enqueued_at": _enqueued_at,
    "durable": _durable,
    "priority": _priority,
    "ttl": _ttl,
}


def column(name: str, rows: Rows, facts: Facts) -> pa.Array:
    """A column that needs no decoding of messages; all null if it needs it."""
    build = _ALWAYS.get(name)
    if build is None and rows.messages.any():
        build = _OF_APPENDS.get(name)
    if build is None:
        return pa.nulls(rows.count, SCHEMA.field(name).type)
    found: Any = build(rows, facts)
    return found


def foreign(rows: Rows) -> Numbers:
    """For each row with a message, whether its message format is not 0, that is AMQP's."""
    formats = rows.window.u32[rows.records + 64] != 0
    found: Numbers = rows.spread(formats)[rows.spread(rows.messages)]
    return found


def message_column(rows: Rows, extents: Extents, blob: bytes | pa.Buffer) -> pa.Array:
    """The column `message`, null in rows that have none."""
    validity = None
    if not rows.messages.all():
        validity = pa.array(rows.spread(rows.messages)).buffers()[1]
    buffers = [validity, pa.py_buffer(extents.offsets()), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.binary(), rows.count, buffers)
