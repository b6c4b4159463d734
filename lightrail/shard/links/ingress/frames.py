"""Makes batches of received frames."""

from lightrail.shard.queue.values.runs import Batch
from lightrail.wire.frames import ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER_SIZE


def batch_in(part: bytes, durable: bool, priority: int, count: int, now_ms: int) -> Batch:
    """The batch of an ENQUEUE or ROUTE frame, over the bytes of the frame."""
    expires, message_format, size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
    base = ENQUEUE_ENDS + 4 * count
    ends = memoryview(part)[ENQUEUE_ENDS:base].cast("I")
    return Batch(
        part, ends, count, size, base, durable, priority, expires or None, now_ms, None, message_format
    )


def twin(batch: Batch) -> Batch:
    """A batch with the same messages and bytes that can have another location."""
    return Batch(
        batch.data,
        batch.ends,
        batch.count,
        batch.size,
        batch.base,
        batch.durable,
        batch.priority,
        batch.expires_at_ms,
        batch.enqueued_at_ms,
        None,
        batch.message_format,
    )
