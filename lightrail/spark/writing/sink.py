"""The sink: rows of a table or a stream become messages in queues or routers, each exactly once.

A task is a producer that names itself: (id, partition), where the id is that of the streaming query, or drawn
once when a batch write is planned. Its batches are numbered by their place in the task, and in a stream by
the micro-batch. A shard stores each number once (POST /NAME/!batch), so a task that is tried again, or runs
twice at a time, stores nothing twice, as long as its rows come in the same order again.
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

from lightrail.model import limits
from lightrail.spark.http import Access, GatewayClient, GatewayError, path_of
from lightrail.spark.writing.chunks import Chunk, Chunks
from lightrail.spark.writing.encoding import BadRowError, Encoder, check
from lightrail.spark.writing.marking import marked_rows

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""Local properties of each task of a micro-batch; pyspark gives them to a writer in no other way."""
CHUNK_BITS: Final = 20
"""Of a number in a stream: micro-batch << CHUNK_BITS | place of the chunk."""
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


class SinkError(Exception):
    """A write that can't be planned, or a task that failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How to write, without any secret."""

    access: Access
    target: str
    """A queue or router for all rows; empty: the column `queue` says it."""
    id: str
    """Of the producers; empty: of the query."""
    batch_messages: int
    batch_bytes: int
    rate: float
    """Messages per second of one task; 0: as fast as it goes."""
    replayed_ms: int
    """Rows are of a journal, and marked as replayed at this time, milliseconds since 1970; 0: not."""
    retry_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Raises SinkError for an option that is not as expected."""
        given = {name.lower(): value for name, value in options.items()}
        try:
            access = Access.of_options(options)
        except ValueError as error:
            raise SinkError(str(error)) from None
        id = given.get("id", "")
        if not (id.isascii() and id.isprintable()) or len(id) > limits.SPARK_SINK_ID_BYTES:
            raise SinkError(
                f"id is {id[:80]!a}; expected up to {limits.SPARK_SINK_ID_BYTES} characters of ASCII"
            )
        return cls(
            access,
            given.get("target", "").strip("/"),
            id,
            int(_number(given, "batchMessages", limits.SPARK_SINK_MESSAGES, 1, limits.HTTP_BATCH_MESSAGES)),
            int(_number(given, "batchBytes", limits.SPARK_SINK_CHUNK_BYTES, 1, limits.HTTP_BATCH_BYTES // 2)),
            _number(given, "messagesPerSecond", 0, 0, 1e9),
            int(_number(given, "replayedAt", 0, 0, 1 << 53)),
            int(1000 * _number(given, "retrySeconds", limits.SPARK_RETRY_MS / 1000, 0, 86_400)),
        )


@dataclass(frozen=True, slots=True)
class Rest:
    """The last messages of a task for one target, which are no whole chunk."""

    producer: str
    number: int
    chunk: Chunk


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent, all of which is stored, and what is left for the commit.

    A Python worker whose JVM dies takes the end of its input for the end of its rows. Whole chunks are the
    same for it; what is behind them may not be all. So the driver sends that, once every task has ended.
    """

    messages: int = 0
    stored: int = 0
    """Put into queues by this attempt; the others had been by an earlier one, or were of a router's many."""
    batches: int = 0
    duplicates: int = 0
    """Batches of which everything was stored before."""
    rests: list[Rest] = field(default_factory=list)


class BatchWriter(DataSourceArrowWriter):
    """Writes a table. The driver makes one, whose copies all tasks of the write have."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._id = options.id or f"write-{uuid.uuid4()}"
        _check(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """One task: sends its rows, and comes back when all whole chunks are stored."""
        context = _context()
        return send(self._options, iterator, producer_name(self._id, context.partitionId()), place_number)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task has had all of its rows: sends what is left of each."""
        send_rests(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What is stored stays; the same write tried again would store the rest."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        _check(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """One task of a micro-batch: sends its rows, and comes back when all whole chunks are stored."""
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SinkError(
                f"this Spark does not tell its tasks the query and the micro-batch ({QUERY_ID}, {BATCH_ID}); "
                "use foreachBatch, and in it a batch write with the option id"
            )
        name = producer_name(self._options.id or query, context.partitionId())
        first = int(batch) << CHUNK_BITS
        return send(self._options, iterator, name, lambda place: stream_number(first, place))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every task has had all of its rows: sends what is left of each."""
        send_rests(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What is stored stays: it may be that of a batch that was committed."""


def producer_name(id: str, partition: int) -> str:
    """How the broker knows a task, whichever attempt it is."""
    return f"spark/{id}/{partition}"


def place_number(place: int) -> int:
    """The number of a chunk in a batch write."""
    return place


def stream_number(first: int, place: int) -> int:
    """The number of a chunk of a micro-batch. Raises SinkError: there are too many chunks."""
    if place >= 1 << CHUNK_BITS:
        raise SinkError(
            f"a task has more than {1 << CHUNK_BITS} batches for one target in a micro-batch: raise "
            "batchMessages, or lower maxMessagesPerTrigger"
        )
    return first + place


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
    """Sends the whole chunks of a task, each when the one before it is stored; the rest is in what it gives.

    Args:
        number: of a chunk, by its place among those of its target.

    Raises:
        SinkError: a row is no message, or the broker would not take a chunk; what was stored before stays.
    """
    sent = Sent()
    began = monotonic()
    asked = client or GatewayClient(options.access, retry_ms=options.retry_ms)
    chunks = Chunks(options.batch_messages, options.batch_bytes)
    with asked:
        for chunk in _whole(chunks, options, batches):
            _post(asked, chunk, producer, number(chunk.place), sent)
            if options.rate:
                ahead_s = sent.messages / options.rate - (monotonic() - began)
                if ahead_s > 0:
                    sleep(ahead_s)
    sent.rests = [Rest(producer, number(chunk.place), chunk) for chunk in chunks.rest()]
    return sent


def send_rests(
    options: SinkOptions, sent: Iterable[WriterCommitMessage | None], *, client: GatewayClient | None = None
) -> None:
    """Sends what tasks have left, which have all ended.

    Raises:
        SinkError: the broker would not take it; what was stored before stays.
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
            "What was stored before it stays, and is not stored again when this is tried again with the same "
            "id"
        ) from None
    sent.batches += 1
    sent.messages += len(chunk.messages)
    sent.stored += answer["stored"]
    sent.duplicates += answer["duplicate"]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """What `df.write` asks the data source for. Raises SinkError."""
    _only_append(overwrite)
    return BatchWriter(SinkOptions.of(options), schema)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """What `df.writeStream` asks the data source for. Raises SinkError."""
    _only_append(overwrite)
    return StreamWriter(SinkOptions.of(options), schema)


def _check(options: SinkOptions, schema: StructType) -> None:
    try:
        check(to_arrow_schema(schema, timezone="UTC"), queues=not options.target)
    except ValueError as error:
        raise SinkError(str(error)) from None


def _only_append(overwrite: bool) -> None:
    if overwrite:
        raise SinkError("queues are not overwritten; expected mode append (outputMode append)")


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
