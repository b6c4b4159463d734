"""Encoder: encodes rows of Arrow batches as AMQP messages, according to their columns.

If `message` of a row is not null, it is sent unchanged. Otherwise the message is made from `body` and the
columns of header, properties, application properties and message annotations. Nothing here imports Spark.

Chunks: the messages of a task by target, in pieces that depend on the rows alone.

A chunk ends at a number of messages or bytes, so its end depends on the rows alone. The number of a chunk is
its position among the chunks of its target. A repeated task with the same rows in the same order makes the
same chunks, and the broker recognises those that it has stored.
"""

import datetime
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lightrail.amqp.composite import write_composite
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import PRIORITY_DEFAULT, Header, Properties, encode_header
from lightrail.amqp.values import Byte, Float, Int, Short, Symbol, Timestamp
from lightrail.model import limits
from lightrail.spark.columns import FIELDS

SPARK_SINK_BYTES: Final[int] = 16 * 1024 * 1024
"""Bytes of messages for several targets that a task gathers before it sends them; the driver sends the
rest."""
SPARK_SINK_TARGETS: Final[int] = 10_000
"""Targets that a task gathers messages for before it sends them."""


class Chunk(NamedTuple):
    """Messages for one target."""

    target: str
    position: int
    """Index among the chunks of its target, from 0."""
    messages: list[bytes]

    def body(self) -> bytes:
        """Body of POST /NAME/!batch: count, ends, messages; little-endian."""
        ends = accumulate(map(len, self.messages))
        count = len(self.messages)
        return struct.pack(f"<{1 + count}I", count, *ends) + b"".join(self.messages)


class _Gathering:
    """Messages of one target that do not fill a chunk yet."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.bytes = 0


@dataclass(eq=False, repr=False)
class Chunks:
    """Gathers the messages of one task.

    Args:
        messages_max: maximum number of messages of a chunk.
        bytes_max: maximum bytes of a chunk's messages; a single message may have more.
    """

    _messages_max: int
    _bytes_max: int
    _gathering: dict[str, _Gathering] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, target: str, message: bytes) -> Iterator[Chunk]:
        """Adds a message; returns the chunks that are full with it."""
        found = self._gathering.get(target)
        if found is None:
            found = self._gathering[target] = _Gathering()
        if found.messages and found.bytes + len(message) > self._bytes_max:
            yield self._end(target)
            found = self._gathering[target] = _Gathering()
        found.messages.append(message)
        found.bytes += len(message)
        self._bytes += len(message)
        if len(found.messages) >= self._messages_max or found.bytes >= self._bytes_max:
            yield self._end(target)
        elif self._bytes > SPARK_SINK_BYTES or len(self._gathering) > SPARK_SINK_TARGETS:
            yield from self.rest()

    def rest(self) -> Iterator[Chunk]:
        """All gathered messages as chunks, full or not, in the order of the targets' first messages."""
        for target in list(self._gathering):
            yield self._end(target)

    def _end(self, target: str) -> Chunk:
        found = self._gathering.pop(target)
        self._bytes -= found.bytes
        position = self._counts.get(target, 0)
        self._counts[target] = position + 1
        return Chunk(target, position, found.messages)


TEXTS: Final = ("message_id", "correlation_id", "subject", "reply_to", "content_type", "group_id")
MAPS: Final = ("application_properties", "message_annotations")
WRITTEN: Final = frozenset({"message", "body", "queue", "durable", "priority", "ttl", *TEXTS, *MAPS})
"""Columns of a message's fields."""
PASSED_OVER: Final = frozenset(name for name, _ in FIELDS) - WRITTEN
"""Columns of the data source about a message's location and its events."""
TTL_MAX: Final = (1 << 32) - 1
_OPEN: Final = b"\x00\x53"
_ANNOTATIONS, _APPLICATION, _DATA, _VALUE = (_OPEN + bytes((code,)) for code in (0x72, 0x74, 0x75, 0x77))
_NO_PROPERTIES: Final = Properties()
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class BadColumnsError(ValueError):
    """The table can't be written; the message has the column, its expected and its actual type."""


class BadRowError(ValueError):
    """The row is no message; the text has the column, what was expected, and its value."""


class Encoder:
    """Encodes the rows of batches of one schema.

    Args:
        schema: schema of the batches; columns of the data source that are no fields of a message are allowed.

    Raises:
        BadColumnsError: a column is unknown or has an unexpected type, or there is none for the contents.
    """

    def __init__(self, schema: pa.Schema, *, queues: bool) -> None:
        check(schema, queues=queues)
        self._names = [name for name in schema.names if name in WRITTEN]
        self._converters = {
            name: _converter(schema.field(name).type) for name in MAPS if name in schema.names
        }
        self._texts = [name for name in TEXTS if name in schema.names]
        self._is_text = "body" in schema.names and _is_text(schema.field("body").type)
        self._headers: dict[tuple[Any, Any, Any], bytes] = {}
        self._queues = queues

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
        """(queue, encoded message) of each row, in order; the queue is empty if there is no such column.

        Raises BadRowError.
        """
        columns = {name: batch.column(name).to_pylist() for name in self._names}
        nothing: list[Any] = [None] * batch.num_rows
        messages = columns.get("message", nothing)
        queues = columns.get("queue", nothing) if self._queues else nothing
        for index, (message, queue) in enumerate(zip(messages, queues, strict=True)):
            if self._queues and not queue:
                raise BadRowError(
                    "queue: expected the name to send to, found none; or give the option target"
                )
            yield queue or "", message if message is not None else self._encoded(columns, index)

    def _encoded(self, columns: Mapping[str, Sequence[Any]], index: int) -> bytes:
        body = columns["body"][index] if "body" in columns else None
        if body is None:
            raise BadRowError("expected a message, or a body; both are null")
        parts = [self._header(columns, index)]
        annotations = self._map("message_annotations", columns, index)
        if annotations:
            parts.append(_ANNOTATIONS + _encode_map("message_annotations", annotations, Symbol))
        properties = Properties()
        for name in self._texts:
            value = columns[name][index]
            if value is not None:
                setattr(properties, name, Symbol(value) if name == "content_type" else value)
        if properties != _NO_PROPERTIES:
            try:
                parts.append(write_composite(properties))
            except (ValueError, UnicodeError) as error:
                raise BadRowError(f"properties can't be encoded: {error}") from None
        own = self._map("application_properties", columns, index)
        if own:
            parts.append(_APPLICATION + _encode_map("application_properties", own, str))
        parts.append((_VALUE if self._is_text else _DATA) + encode(body))
        return b"".join(parts)

    def _header(self, columns: Mapping[str, Sequence[Any]], index: int) -> bytes:
        durable, priority, ttl = (
            columns[name][index] if name in columns else None for name in ("durable", "priority", "ttl")
        )
        found = self._headers.get((durable, priority, ttl))
        if found is not None:
            return found
        if priority is not None and not 0 <= priority <= 255:
            raise BadRowError(f"priority: expected 0 to 255, found {priority}")
        if ttl is not None and not 0 <= ttl <= TTL_MAX:
            raise BadRowError(f"ttl: expected milliseconds from 0 to {TTL_MAX}, found {ttl}")
        header = Header(
            durable=durable is not False, priority=PRIORITY_DEFAULT if priority is None else priority, ttl=ttl
        )
        if len(self._headers) >= limits.HEADERS_CACHED:
            self._headers.clear()
        found = self._headers[durable, priority, ttl] = encode_header(header)
        return found

    def _map(self, name: str, columns: Mapping[str, Sequence[Any]], index: int) -> dict[str, Any]:
        value = columns[name][index] if name in columns else None
        return {} if value is None else self._converters[name](value)


def check(schema: pa.Schema, *, queues: bool) -> None:
    """Checks that rows of this schema can be written.

    Args:
        queues: whether the column `queue` has the target of each row.

    Raises:
        BadColumnsError: a column is unknown or has an unexpected type, or there is none for the contents.
    """
    names = schema.names
    unknown = [name for name in names if name not in WRITTEN and name not in PASSED_OVER]
    if unknown:
        raise BadColumnsError(
            f"the sink has no use for the column {unknown[0]!a}: drop it, or put it into "
            f"application_properties; columns are {', '.join(sorted(WRITTEN))}"
        )
    if "message" not in names and "body" not in names:
        raise BadColumnsError("expected a column message (encoded), or body; the table has neither")
    if queues and "queue" not in names:
        raise BadColumnsError("expected the option target, or a column queue with the target of each row")
    for name in sorted(WRITTEN.intersection(names)):
        expected, is_good = _EXPECTED[name]
        found = schema.field(name).type
        if not is_good(found):
            raise BadColumnsError(f"{name}: expected {expected}, found {found}")


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _is_map(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return all(_value_of(field.type) is not None for field in type)
    return bool(pa.types.is_map(type) and _is_text(type.key_type)) and _value_of(type.item_type) is not None


_EXPECTED: Final[Mapping[str, tuple[str, Callable[[pa.DataType], bool]]]] = {
    "message": ("binary", _is_bytes),
    "body": ("binary, or string for an amqp-value", lambda type: _is_bytes(type) or _is_text(type)),
    "durable": ("boolean", pa.types.is_boolean),
    "priority": ("an integer", pa.types.is_integer),
    "ttl": ("an integer, milliseconds", pa.types.is_integer),
    "queue": ("string", _is_text),
    **dict.fromkeys(TEXTS, ("string", _is_text)),
    **dict.fromkeys(MAPS, ("a map from string to simple values, or a struct of them", _is_map)),
}


def _as_timestamp(value: datetime.datetime) -> Timestamp:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return Timestamp((aware - _EPOCH) // datetime.timedelta(milliseconds=1))


def _value_of(type: pa.DataType) -> Callable[[Any], Any] | None:
    """The conversion of values of an Arrow type to AMQP; None if the type has no simple values."""
    if _is_text(type) or _is_bytes(type) or pa.types.is_boolean(type) or pa.types.is_float64(type):
        return _as_it_is
    if pa.types.is_timestamp(type):
        return _as_timestamp
    kinds = {pa.int8(): Byte, pa.int16(): Short, pa.int32(): Int, pa.int64(): int, pa.float32(): Float}
    return kinds.get(type)


def _as_it_is(value: Any) -> Any:
    return value


def _converter(type: pa.DataType) -> Callable[[Any], dict[str, Any]]:
    """The conversion of Arrow's maps (pairs) or structs (dicts) to a dict without nulls."""
    if pa.types.is_map(type):
        convert = _value_of(type.item_type)
        assert convert is not None, "check() refuses such a schema"
        return lambda pairs: {key: convert(value) for key, value in pairs if value is not None}
    converters = {field.name: _value_of(field.type) for field in type}
    return lambda fields: {
        name: converter(fields[name])
        for name, converter in converters.items()
        if converter is not None and fields[name] is not None
    }


def _encode_map(name: str, values: Mapping[str, Any], key: Callable[[str], str]) -> bytes:
    try:
        return encode({key(each): value for each, value in values.items()})
    except (ValueError, UnicodeError) as error:
        raise BadRowError(f"{name}: {error}") from None
