"""Marking: message annotations that mark a replayed message; its other bytes are unchanged."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import DecodeError, Symbol, Timestamp, ULong
from lightrail.spark.writing.encoding import BadRowError

REPLAYED: Final = Symbol("x-opt-lightrail-replayed")
"""When the replay began; a timestamp."""
FROM_QUEUE: Final = Symbol("x-opt-lightrail-replayed-queue")
"""The original queue of the message."""
FROM_SEQUENCE: Final = Symbol("x-opt-lightrail-replayed-sequence")
"""Its sequence in that queue; a ulong."""


def marked_rows(batch: pa.RecordBatch, began_ms: int) -> Iterator[tuple[str, bytes]]:
    """(queue, marked message) of the rows of a journal, in order. Raises BadRowError."""
    columns = (batch.column(name).to_pylist() for name in ("queue", "sequence", "message"))
    for queue, sequence, message in zip(*columns, strict=True):
        yield queue, marked(message, queue, sequence, began_ms)


def marked(message: bytes, queue: str, sequence: int, began_ms: int) -> bytes:
    """The message with the annotations of its origin. Raises BadRowError."""
    try:
        return with_annotations(
            message,
            {REPLAYED: Timestamp(began_ms), FROM_QUEUE: queue, FROM_SEQUENCE: ULong(sequence)},
        )
    except DecodeError as error:
        raise BadRowError(
            f"message {sequence} of {queue} is no AMQP message of format 0 ({error}): leave it out with "
            f"--where \"not (queue = '{queue}' and sequence = {sequence})\""
        ) from None
