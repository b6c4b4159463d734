"""Records of a journal: one class per type of record except Append; layout.py has their binary form.

All ranges are half-open, as in shard/queue/values/runs.py. A record names queues by number; their names and
policies are in Queue records and in the snapshot at the head of each segment.

Links of clients that outlive the process of a shard (2.6.13) have records here with their layout: a Receiver,
with its deliveries, and a Terminus, with its delivery-tags. All layouts are drawn in docs/formats/journal.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final

RECEIVER_FIXED: Final = Struct("<Q16sQB3xII")
"""queue, digits of the client's link, next delivery number u64, event u8, 3 reserved bytes, bytes of the
opening u32, number of runs u32."""
DELIVERY_RUN: Final = Struct("<QQQ")
"""delivery number, sequence, count."""

DeliveryRun = tuple[int, int, int]
"""(delivery number, sequence, count): deliveries that are consecutive in both."""


class ReceiverEvent(IntEnum):
    """What happened to a receiver; the journal stores the number."""

    BEGUN = 1
    """It exists, with this opening. With the flag REWRITTEN the record has all of its deliveries, and older
    records are no longer needed; without it, it has these besides those that it had."""
    DELIVERED = 2
    """These messages are about to be delivered to it."""
    SETTLED = 3
    """These deliveries have ended, with or without an outcome."""
    ENDED = 4
    """Nothing of it is kept any longer."""


@dataclass(slots=True)
class ReceiverChange:
    """A change of a link on which a client receives from a queue, and that it may resume."""

    queue: int
    link: bytes
    """16 bytes: the digits that identify the client's link (`client_link` in wire/bodies.py)."""
    event: int
    next: int = 0
    """Its next delivery number."""
    opening: bytes = b""
    """BEGUN: the body of its CONSUMER_OPEN."""
    runs: Sequence[DeliveryRun] = ()
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes of the opening and the runs."""
        return len(self.opening) + DELIVERY_RUN.size * len(self.runs)


def encode_receiver(record: ReceiverChange) -> bytes:
    """Body of a Receiver record."""
    fixed = RECEIVER_FIXED.pack(
        record.queue, record.link, record.next, record.event, len(record.opening), len(record.runs)
    )
    return b"".join((fixed, record.opening, *(DELIVERY_RUN.pack(*run) for run in record.runs)))


def decode_receiver(data: bytes | memoryview, start: int, end: int, flags: int) -> ReceiverChange:
    """The Receiver record whose body is data[start:end]. Raises ValueError."""
    queue, link, next_number, event, size, count = RECEIVER_FIXED.unpack_from(data, start)
    position = start + RECEIVER_FIXED.size
    middle = position + size
    if middle + DELIVERY_RUN.size * count != end:
        raise ValueError(f"a Receiver of {count} runs has {end - start} bytes")
    runs = [
        (first, sequence, length) for first, sequence, length in DELIVERY_RUN.iter_unpack(data[middle:end])
    ]
    opening = bytes(data[position:middle])
    return ReceiverChange(queue, link, ReceiverEvent(event), next_number, opening, runs, flags)


TERMINUS_FIXED: Final = Struct("<Q16sQBBHI")
"""queue, digits of the client's link, suspended_ms u64, event u8, durability u8, bytes of the user u16, bytes
of the tags u32."""


class TerminusEvent(IntEnum):
    """What happened to a terminus; the journal stores the number."""

    BEGUN = 1
    """It exists, with the fields of the record, and has these tags besides those that it had. With the flag
    REWRITTEN the record has all of its tags, and older records are no longer needed."""
    STORED = 2
    """Messages with these tags were stored. In one group with their Append."""
    SETTLED = 3
    """The client has settled the deliveries with these tags."""
    ENDED = 4
    """Nothing of it is kept any longer."""


@dataclass(slots=True)
class Terminus:
    """A change of the terminus of a client's link that sends to a queue."""

    queue: int
    link: bytes
    """16 bytes: the digits that identify the client's link (`client_link` in wire/bodies.py)."""
    event: int
    durability: int = 0
    """`terminus-durability` (messaging 3.5.5): 1 configuration, 2 unsettled-state."""
    suspended_ms: int = 0
    """How long it is kept without a link."""
    tags: Sequence[bytes] = ()
    """Delivery-tags, of at most 32 bytes each."""
    flags: int = 0
    user: str = ""
    """BEGUN: the user towards whose share it counts; "" if it is not known, as in format version 7."""

    @property
    def size(self) -> int:
        """Bytes of the user and of the column of its tags."""
        return len(self.user.encode()) + len(self.tags) + sum(map(len, self.tags))


def encode_terminus(record: Terminus) -> bytes:
    """Body of a Terminus record."""
    user, tags = record.user.encode(), encode_tags(record.tags)
    fixed = TERMINUS_FIXED.pack(
        record.queue, record.link, record.suspended_ms, record.event, record.durability, len(user), len(tags)
    )
    return b"".join((fixed, user, tags))


def decode_terminus(data: bytes | memoryview, start: int, end: int, flags: int) -> Terminus:
    """The Terminus record whose body is data[start:end]. Raises ValueError."""
    queue, link, suspended_ms, event, durability, named, size = TERMINUS_FIXED.unpack_from(data, start)
    position = start + TERMINUS_FIXED.size
    middle = position + named
    if middle + size != end:
        raise ValueError(f"a Terminus with {named} bytes of a user, {size} of tags has {end - start} bytes")
    user, tags = bytes(data[position:middle]).decode(), decode_tags(bytes(data[middle:end]))
    return Terminus(queue, link, TerminusEvent(event), durability, suspended_ms, tags, flags, user)


def encode_tags(tags: Iterable[bytes]) -> bytes:
    """A column of tags: the length of each in one byte, then its bytes."""
    parts: list[bytes] = []
    for tag in tags:
        parts += (len(tag).to_bytes(1, "big"), tag)
    return b"".join(parts)


def decode_tags(data: bytes) -> list[bytes]:
    """The tags of such a column. Raises ValueError."""
    tags: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + 1 + data[position]
        if end > len(data):
            raise ValueError(f"a tag of {data[position]} bytes has {len(data) - position - 1}")
        tags.append(data[position + 1 : end])
        position = end
    return tags


REWRITTEN: Final = 1
"""Flag of Append: sequences written before, now moved or changed; the last record of a sequence counts."""
SPILLED: Final = 2
"""Flag of Append: transient messages that were spilled; recovery skips them."""
CONTINUED: Final = 4
"""Flag of any record: forms a group with the next record; recovery applies a group whole or not at all."""
MOVED: Final = 8
"""Flag of Append: these messages were enqueued at another shard and moved here with their queue."""
DEFERRED_REASON: Final = "deferred"
"""Reason of a Settle of messages that are deferred, for the first time or again."""
MOVED_REASON: Final = "moved"
"""Reason of a Settle that the copy of a queue repeats from its source; it is no event of a message."""


class Outcome(IntEnum):
    """How messages left a queue, or why they returned to it; the journal stores the number."""

    ACCEPTED = 0
    REJECTED = 1
    RELEASED = 2
    MODIFIED = 3
    EXPIRED = 4
    DEAD_LETTERED = 5
    PURGED = 6
    DISCARDED = 7


RETURNING: Final = frozenset({Outcome.RELEASED, Outcome.MODIFIED})
"""Outcomes after which the messages stay in the queue, with the number of attempts of the record."""


class QueueEvent(IntEnum):
    """What happened to a queue."""

    DECLARED = 1
    POLICY = 2
    DELETED = 3


@dataclass(slots=True)
class Settle:
    """Messages of one queue were settled and removed, or returned to it with a new number of attempts."""

    queue: int
    ranges: Sequence[tuple[int, int]]
    """Sequences (first, before last)."""
    outcome: int
    reason: str = ""
    attempts: int = 0
    """For RELEASED and MODIFIED: failed deliveries so far, whether the messages are deferred, and until when
    they wait (model/attempts.py)."""
    flags: int = 0


@dataclass(slots=True)
class Delivered:
    """Messages of a captured queue were delivered to a consumer; recovery skips this record."""

    queue: int
    consumer: int
    """Id of the consumer's link: boot of the frontend << 32 | number of the link."""
    ranges: Sequence[tuple[int, int]]
    """Sequences (first, before last)."""
    flags: int = 0


@dataclass(slots=True)
class Queue:
    """A queue was declared or deleted, or has a new policy."""

    event: int
    queue: int
    name: str
    policy: str = "{}"
    """JSON."""
    flags: int = 0


@dataclass(slots=True)
class Ids:
    """Message-ids that were enqueued; a later message with one of them is a duplicate."""

    queue: int
    until_ms: int
    """Time at which the window of duplicates of these ids ends."""
    digests: bytes
    """Digests of the ids, 16 bytes each, concatenated (shard/queue/timed/windows.py)."""
    flags: int = 0


@dataclass(slots=True)
class Taken:
    """Only the first `taken` messages of a producer's last batch were stored or settled.

    The other messages of the batch were refused, or will be stored later under the same number. The next
    Append of that producer cancels this record.
    """

    producer: int
    number: int
    taken: int
    flags: int = 0


@dataclass(slots=True)
class Numbers:
    """A queue moved here from another shard: its producers, and the next sequence, as that shard had them."""

    queue: int
    next_sequence: int
    producers: Sequence[tuple[int, int, int]] = ()
    """(producer, number of its last batch, number of messages stored of that batch; 0 for all). If this shard
    has a newer number of the producer, it keeps that one."""
    flags: int = 0


class TransactionState(IntEnum):
    """The state of a transaction over several shards at one shard; the journal stores the number."""

    PREPARED = 1
    """This shard stored its part of the work in the record; another shard decides."""
    COMMITTED = 2
    """This shard decided to commit; other shards may request the decision."""
    ABORTED = 3
    """Another shard requested the decision too early: the transaction can no longer be committed."""
    ENDED = 4
    """All shards have ended the transaction; its state is deleted."""


@dataclass(slots=True)
class TransactionStep:
    """A step of a transaction over several shards; the newest record of an id counts."""

    id: bytes
    """16 bytes."""
    state: int
    shard: int = 0
    """PREPARED: the shard that decides."""
    detail: str = "{}"
    """JSON. PREPARED: the work (shard/transactions/prepared.py); COMMITTED: the shards that have not ended
    the transaction."""
    blob: bytes | memoryview = b""
    """PREPARED: the messages that the transaction sends, in the order of the work."""
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes that are kept until the transaction has ended."""
        return len(self.detail) + len(self.blob)


@dataclass(slots=True)
class Seal:
    """The journal was sealed in that epoch: another owner serves its queues."""

    epoch: int
    flags: int = 0


@dataclass(slots=True)
class Epoch:
    """From this record on the epoch of the shard is that of the record."""

    epoch: int
    flags: int = 0


@dataclass(slots=True)
class QueueEntry:
    """A queue in a snapshot."""

    queue: int
    name: str
    policy: str
    next_sequence: int = 0


@dataclass(slots=True)
class Snapshot:
    """The tables at the head of a segment: all state but messages. Written by the journal itself."""

    epoch: int
    queues: list[QueueEntry] = field(default_factory=list)
    producers: dict[int, int] = field(default_factory=dict)
    """Last batch number by producer, the least recently active first."""
    parts: dict[int, int] = field(default_factory=dict)
    """Number of messages stored from each partially accepted last batch, by producer."""
    flags: int = 0


@dataclass(slots=True)
class Close:
    """The journal was closed in order: all earlier records are on disk. Written by the journal itself."""

    flags: int = 0


@dataclass(slots=True)
class Gap:
    """The records before `next_lsn` are lost; a repair wrote this record in place of the damaged ones, or a
    promoted member behind its last one."""

    next_lsn: int
    flags: int = 0


RANGE_RECORDS: Final = 1 << 40
"""Numbers of one range of records. The member that is promoted in an epoch goes on with the range of this
number: members that were given up may have used the numbers before, and readers know them. No journal gets
to the next range by itself: that takes a hundred thousand records per second for four months."""


def range_of(lsn: int) -> int:
    """The range of the record with this number."""
    return lsn // RANGE_RECORDS
