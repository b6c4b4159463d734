"""Records of a journal: one class per type of record except Append; layout.py has their binary form.

All ranges are half-open, as in shard/queue/values/runs.py. A record names queues by number; their names and
policies are in Queue records and in the snapshot at the head of each segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

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
class Transaction:
    """A step of a transaction over several shards; the newest record of an id counts."""

    id: bytes
    """16 bytes."""
    state: int
    shard: int = 0
    """PREPARED: the shard that decides."""
    detail: str = "{}"
    """JSON. PREPARED: the work (shard/transactions/prepared.py); COMMITTED: the shards that have not ended
    the transaction."""
    blob: bytes = b""
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
    """The records before `next_lsn` are lost; a repair wrote this record in place of the damaged ones."""

    next_lsn: int
    flags: int = 0
