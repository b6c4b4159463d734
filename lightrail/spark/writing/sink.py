"""The sink: rows of a table or a stream become messages in queues or routers, each exactly once.

A task is a producer named (id, partition), where the id is that of the streaming query, or drawn once when a
batch write is planned. Its batches are numbered by their position in the task, and in a stream by the
micro-batch. A shard stores each number once (POST /NAME/!batch), so a task that is retried, or runs twice at
the same time, stores nothing twice, as long as its rows have the same order.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lightrail.amqp.sections import decode_header, with_annotations, with_header
from lightrail.amqp.values import DecodeError, Symbol, Timestamp, ULong
from lightrail.model import limits
from lightrail.spark.http import Access, GatewayClient, GatewayError, path_of
from lightrail.spark.writing.encoding import BadRowError, Chunk, Chunks, Encoder, check

SPARK_SINK_MESSAGES: Final[int] = 1_000
"""Messages of one request of the sink."""
SPARK_SINK_CHUNK_BYTES: Final[int] = 1024 * 1024
"""Bytes of one request of the sink."""
SPARK_SINK_ID_BYTES: Final[int] = 200
"""Longest name of a write; the name of a producer is made of it and the partition."""
REPLAYED: Final = Symbol("x-opt-lightrail-replayed")
"""When the replay began; a timestamp."""
FROM_QUEUE: Final = Symbol("x-opt-lightrail-replayed-queue")
"""The original queue of the message."""
FROM_SEQUENCE: Final = Symbol("x-opt-lightrail-replayed-sequence")
"""Its sequence in that queue; a ulong."""
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""Local property of each task of a micro-batch; a writer of pyspark can get the id in no other way."""
CHUNK_BITS: Final = 20
"""Bits of the chunk in a number of a stream: micro-batch << CHUNK_BITS | position of the chunk."""
OPTIONS: Final = (
    *(
        "gateway",
        "user",
        "passwordFile",
        "tokenFile",
        "caFile",
        "target",
        "id",
        "batchMessages",
        "batchBytes",
    ),
    *("messagesPerSecond", "replayedAt", "retrySeconds"),
)


def marked_rows(batch: pa.RecordBatch, began_ms: int) -> Iterator[tuple[str, bytes]]:
    """(queue, marked message) of the rows of a journal, in order. Raises BadRowError."""
    columns = (batch.column(name).to_pylist() for name in ("queue", "sequence", "message", "durable"))
    for queue, sequence, message, durable in zip(*columns, strict=True):
        yield queue, marked(message, queue, sequence, began_ms, durable=bool(durable))


def marked(message: bytes, queue: str, sequence: int, began_ms: int, *, durable: bool) -> bytes:
    """The message with the annotations of its origin. Raises BadRowError.

    Args:
        durable: whether its queue had it on disk, also if its header does not say so: then this one does.
    """
    try:
        header = decode_header(message)
        if durable and not header.durable:
            header.durable = True
            message = with_header(message, header)
        return with_annotations(
            message, {REPLAYED: Timestamp(began_ms), FROM_QUEUE: queue, FROM_SEQUENCE: ULong(sequence)}
        )
    except DecodeError as error:
        raise BadRowError(
            f"message {sequence} of {queue} is no AMQP message of format 0 ({error}): leave it out with "
            f"--where \"not (queue = '{queue}' and sequence = {sequence})\""
        ) from None


class SinkError(Exception):
    """A write can't be planned, or a task failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a write, without secrets."""

    access: Access
    target: str
    """A queue or router for all rows; if empty, the column `queue` has the target of each row."""
    id: str
    """Id of the producers; if empty, that of the query."""
    batch_messages: int
    batch_bytes: int
    rate: float
    """Messages per second of one task; 0 for no limit."""
    replayed_ms: int
    """Time with which rows of a journal are marked as replayed, in milliseconds since 1970; 0 for no mark."""
    retry_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Reads the options. Raises SinkError for an invalid one."""
        given = {name.lower(): value for name, value in options.items()}
        try:
            access = Access.of_options(options)
        except ValueError as error:
            raise SinkError(str(error)) from None
        id = given.get("id", "")
        if not (id.isascii() and id.isprintable()) or len(id) > SPARK_SINK_ID_BYTES:
            raise SinkError(f"id is {id[:80]!a}; expected up to {SPARK_SINK_ID_BYTES} characters of ASCII")
        return cls(
            access,
            given.get("target", "").strip("/"),
            id,
            int(_number(given, "batchMessages", SPARK_SINK_MESSAGES, 1, limits.HTTP_BATCH_MESSAGES)),
            int(_number(given, "batchBytes", SPARK_SINK_CHUNK_BYTES, 1, limits.HTTP_BATCH_BYTES // 2)),
            _number(given, "messagesPerSecond", 0, 0, 1e9),
            int(_number(given, "replayedAt", 0, 0, 1 << 53)),
            int(1000 * _number(given, "retrySeconds", limits.SPARK_RETRY_MS / 1000, 0, 86_400)),
        )


@dataclass(frozen=True, slots=True)
class LastMessages:
    """The last messages of a task for one target, fewer than a chunk."""

    producer: str
    number: int
    chunk: Chunk


@dataclass
class Sent(WriterCommitMessage):
    """Result of a task: chunks that are sent and stored, and the rest, which the commit sends.

    If the JVM of a Python worker dies, the worker takes the end of its input for the end of its rows. Its
    whole chunks are correct, but the rest may be incomplete. So the driver sends the rests, once every task
    has ended.
    """

    messages: int = 0
    stored: int = 0
    """Number of messages that this attempt stored, according to the answers, and not an earlier one."""
    batches: int = 0
    duplicates: int = 0
    """Number of batches that had been stored completely before."""
    rests: list[LastMessages] = field(default_factory=list)


class BatchWriter(DataSourceArrowWriter):
    """Writes a table. The driver creates one writer, and all tasks of the write have copies."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._id = options.id or f"write-{uuid.uuid4()}"
        _check(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Runs in a task: sends its rows, and returns when all whole chunks are stored."""
        context = _context()
        return send(self._options, iterator, producer_name(self._id, context.partitionId()), batch_number)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Called when every task has ended: sends the rests of all tasks."""
        send_rests(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Stored messages stay; the same write, repeated, stores the rest."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        _check(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Runs in a task of a micro-batch: sends its rows, and returns when all whole chunks are stored."""
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SinkError(
                f"this Spark does not send tasks the ids of query and micro-batch ({QUERY_ID}, {BATCH_ID}); "
                "use foreachBatch, and in it a batch write with the option id"
            )
        name = producer_name(self._options.id or query, context.partitionId())
        first = int(batch) << CHUNK_BITS
        return send(self._options, iterator, name, lambda position: stream_number(first, position))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Called when every task has ended: sends the rests of all tasks."""
        send_rests(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Stored messages stay, because the batch may have been committed."""


def producer_name(id: str, partition: int) -> str:
    """The producer name of a task, the same for all attempts."""
    return f"spark/{id}/{partition}"


def batch_number(position: int) -> int:
    """The number of a chunk in a batch write."""
    return position


def stream_number(first: int, position: int) -> int:
    """The number of a chunk of a micro-batch. Raises SinkError: there are too many chunks."""
    if position >= 1 << CHUNK_BITS:
        raise SinkError(
            f"a task has more than {1 << CHUNK_BITS} batches for one target in a micro-batch: raise "
            "batchMessages, or lower maxMessagesPerTrigger"
        )
    return first + position


def send(
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    producer: str,
    number: Callable[[int], int],
    *,
    client: GatewayClient | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sent:
    """Sends the whole chunks of a task, each when the one before it is stored; returns the rest.

    Args:
        number: returns the number of a chunk from its position among those of its target.

    Raises:
        SinkError: a row is no message, or the broker refused a chunk; stored messages stay.
    """
    sent = Sent()
    began = monotonic()
    asked = client or GatewayClient(options.access, retry_ms=options.retry_ms)
    chunks = Chunks(options.batch_messages, options.batch_bytes)
    with asked:
        for chunk in _whole(chunks, options, batches):
            _post(asked, chunk, producer, number(chunk.position), sent)
            if options.rate:
                ahead_s = sent.messages / options.rate - (monotonic() - began)
                if ahead_s > 0:
                    sleep(ahead_s)
    sent.rests = [LastMessages(producer, number(chunk.position), chunk) for chunk in chunks.rest()]
    return sent


def send_rests(
    options: SinkOptions, sent: Iterable[WriterCommitMessage | None], *, client: GatewayClient | None = None
) -> None:
    """Sends the rests of all tasks after their end.

    Raises:
        SinkError: the broker refused a chunk; stored messages stay.
    """
    rests = [rest for each in sent if isinstance(each, Sent) for rest in each.rests]
    if rests:
        with client or GatewayClient(options.access, retry_ms=options.retry_ms) as asked:
            for rest in rests:
                _post(asked, rest.chunk, rest.producer, rest.number, Sent())


def _whole(chunks: Chunks, options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    encoder = None
    target = options.target
    row = 0
    try:
        for batch in batches:
            if options.replayed_ms:
                rows = marked_rows(batch, options.replayed_ms)
            else:
                encoder = encoder or Encoder(batch.schema, queues=not target)
                rows = encoder.rows(batch)
            for queue, message in rows:
                yield from chunks.add(target or queue, message)
                row += 1
    except BadRowError as error:
        raise SinkError(f"row {row} of this partition is no message: {error}") from None


def _post(client: GatewayClient, chunk: Chunk, producer: str, number: int, sent: Sent) -> None:
    headers = {
        "LightRail-Producer": producer,
        "LightRail-Batch": str(number),
        "Content-Type": "application/octet-stream",
    }
    try:
        answer: dict[str, Any] = client.post(
            path_of(chunk.target, "!batch"), chunk.body(), headers=headers
        ).json()
    except GatewayError as error:
        raise SinkError(
            f"batch {number} of {producer} with {len(chunk.messages)} messages for {chunk.target}: {error}. "
            "Batches stored before stay, and are not stored again when the write is repeated with the same "
            "id"
        ) from None
    sent.batches += 1
    sent.messages += len(chunk.messages)
    sent.stored += answer["stored"]
    sent.duplicates += answer["duplicate"]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer for `df.write`. Raises SinkError."""
    _only_append(overwrite)
    return BatchWriter(SinkOptions.of(options), schema)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer for `df.writeStream`. Raises SinkError."""
    _only_append(overwrite)
    return StreamWriter(SinkOptions.of(options), schema)


def _check(options: SinkOptions, schema: StructType) -> None:
    try:
        check(to_arrow_schema(schema, timezone="UTC"), queues=not options.target)
    except ValueError as error:
        raise SinkError(str(error)) from None


def _only_append(overwrite: bool) -> None:
    if overwrite:
        raise SinkError("queues can't be overwritten; expected mode append (outputMode append)")


def _context() -> Any:
    context = TaskContext.get()
    assert context is not None, "Spark calls writers in tasks"
    return context


def _number(given: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise SinkError(f"{name} is {text[:40]!a}; expected a number from {low:g} to {high:g}")
    return value
