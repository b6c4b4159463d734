"""The records that a shard appends: batches of messages, and those of lightrail/journal/record.py."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lightrail.journal.layout import APPEND, APPEND_FIXED, MARK, REST, TARGET, WAITING
from lightrail.journal.receiver import Receiver
from lightrail.journal.record import Delivered, Epoch, Ids, Numbers, Queue, Seal, Settle, Taken, Transaction
from lightrail.journal.terminus import Terminus
from lightrail.model.attempts import of_journal, waits_until_ms
from lightrail.shard.queue.values.runs import Batch


@dataclass(slots=True)
class Append:
    """Messages `first` to before `last` of a batch become part of each queue of `targets`.

    The batch's data must be in memory and must not change until the record is committed.
    """

    targets: Sequence[tuple[int, int]]
    """(queue number, sequence of the first message there)."""
    producer: int
    """The producer of the batch; 0 for copies made by the broker, whose `number` has no meaning."""
    number: int
    """The producer's number of this batch."""
    batch: Batch
    first: int
    last: int
    attempts: int = 0
    flags: int = 0
    spills: bool = False
    """Not written. Whether a REWRITTEN record spills messages, and so needs room on disk like new ones."""


SmallRecord = (
    Settle | Delivered | Queue | Ids | Taken | Numbers | Transaction | Terminus | Receiver | Seal | Epoch
)
"""Every record of them without messages."""
Record = Append | SmallRecord
"""Every record that the engine may append."""


RECORD_BYTES: Final = 512
"""Upper bound of the size of a record without its messages, ends, targets and other columns."""


def size_of(records: Iterable[Record]) -> int:
    """Upper bound of the bytes of records, to reserve room for a group of them."""
    return sum(map(_size, records))


def _size(record: Record) -> int:
    match record:
        case Append():
            batch = record.batch
            return RECORD_BYTES + 16 * len(record.targets) + 4 * batch.count + batch.size
        case Settle():
            return RECORD_BYTES + 16 * len(record.ranges) + 4 * len(record.reason)
        case Ids():
            return RECORD_BYTES + len(record.digests)
        case Transaction() | Terminus() | Receiver():
            return RECORD_BYTES + record.size
        case Numbers():
            return RECORD_BYTES + 24 * len(record.producers)
    return RECORD_BYTES


def encode_append_head(record: Append, lsn: int, unsynced: int, now_ms: int, size: int) -> bytes:
    """The part of an Append record between its header and its ends, for any number of targets."""
    batch = record.batch
    until_ms = waits_until_ms(record.attempts)
    rest = REST.pack(APPEND, record.flags, MARK, unsynced, lsn, now_ms)
    fixed = APPEND_FIXED.pack(
        record.producer,
        until_ms or record.number,
        batch.enqueued_at_ms,
        batch.expires_at_ms or 0,
        batch.message_format,
        record.last - record.first,
        size,
        of_journal(record.attempts),
        len(record.targets),
        batch.priority,
        batch.durable | WAITING * (until_ms > 0),
    )
    return b"".join((rest, fixed, *(TARGET.pack(queue, sequence) for queue, sequence in record.targets)))
