"""The records that a shard appends: batches of messages, and those of lightrail/journal/record.py.

The text of a Queue record has more than the policy of the queue, such as its owner: `Declared`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.journal.layout import APPEND, APPEND_FIXED, MARK, REST, TARGET, WAITING
from lightrail.journal.record import (
    Delivered,
    Epoch,
    Ids,
    Numbers,
    Queue,
    ReceiverChange,
    Seal,
    Settle,
    Taken,
    Terminus,
    TransactionStep,
)
from lightrail.model.attempts import of_journal, waits_until_ms
from lightrail.shard.queue.values.runs import Batch

if TYPE_CHECKING:
    from lightrail.namespace.records import Name

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Declared(NamedTuple):
    """The fields of a Queue record beside the policy."""

    created: int | None = None
    """The revision that created the name; None if the record has none."""
    epoch: int = 1
    """The epoch in which this shard owns the queue, or will own it if it is a copy."""
    copy: bool = False
    """Whether the queue is being copied to this shard, and is not served."""
    frozen: bool = False
    """Whether the queue is frozen for its move to another shard, and does not change in this epoch."""
    captured: bool = False
    """Whether all events of its messages are recorded from this record on."""
    history: str = ""
    """The coordinator's history in which `created` is a revision."""
    idle_since_ms: int = 0
    """Since when nobody has used the queue; 0 if somebody has, or may have. See shard/links/idle.py."""
    leaving: int = 0
    """The revision of the name at which the shard has requested its deletion; 0 if it has not."""
    leaves_with: str = ""
    """The topic at whose deletion, in place of that of the name, the shard awaits the end of the queue."""
    fields: Mapping[str, Any] = NOTHING
    """All fields of the text, with the policy."""


def fields_of(
    record: "Name",
    epoch: int = 1,
    idle_since_ms: int = 0,
    leaving: int = 0,
    leaves_with: str = "",
    *,
    copy: bool = False,
    frozen: bool = False,
) -> dict[str, Any]:
    """The fields of the policy text of a Queue record in the journal; see `Declared`."""
    text: dict[str, Any] = {"created": record.created, "policy": record.policy.to_json()}
    if epoch != 1:
        text["epoch"] = epoch
    if copy:
        text["copy"] = True
    if frozen:
        text["frozen"] = True
    if record.policy["capture"]:
        text["capture"] = True
    if record.history:
        text["history"] = record.history
    if idle_since_ms:
        text["idle_since_ms"] = idle_since_ms
    if leaving:
        text["leaving"] = leaving
        if leaves_with:
            text["leaves_with"] = leaves_with
    return text


def encode_declared(record: "Name", epoch: int = 1, *, copy: bool = False) -> str:
    """The policy text of a Queue record in the journal."""
    return encode_fields(fields_of(record, epoch, copy=copy))


def encode_fields(fields: Mapping[str, Any]) -> str:
    """The text with these fields."""
    return json.dumps(fields, separators=(",", ":"))


def declared_of(text: str) -> Declared:
    """Decodes the text of this version or an older one."""
    try:
        found = json.loads(text)
        created, epoch, history = found.get("created"), found.get("epoch", 1), found.get("history", "")
    except (ValueError, AttributeError):
        return Declared()
    return Declared(
        created if isinstance(created, int) else None,
        epoch if isinstance(epoch, int) else 1,
        found.get("copy") is True,
        found.get("frozen") is True,
        found.get("capture") is True,
        history if isinstance(history, str) else "",
        _whole(found.get("idle_since_ms")),
        _whole(found.get("leaving")),
        str(found.get("leaves_with", "")),
        found,
    )


def _whole(found: object) -> int:
    return found if isinstance(found, int) else 0


@dataclass(slots=True, eq=False, repr=False)
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
    Settle
    | Delivered
    | Queue
    | Ids
    | Taken
    | Numbers
    | TransactionStep
    | Terminus
    | ReceiverChange
    | Seal
    | Epoch
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
        case TransactionStep() | Terminus() | ReceiverChange():
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
