"""What a journal says: one class per type of record but Append, without its binary form (that is layout.py).

All ranges are half-open, as in shard/queue/runs.py. A record names queues by number; their names and
policies are in Queue records and in the snapshot at the head of each segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

REWRITTEN: Final = 1
"""Flag of Append: these sequences were written before and are moved or changed; the last one counts."""
SPILLED: Final = 2
"""Flag of Append: transient messages, on disk only to free memory; recovery leaves them out."""
CONTINUED: Final = 4
"""Flag of any record: belongs together with the next; recovery applies such a group whole or not at all."""


MOVED: Final = 8
"""Flag of Append: these messages came with their queue from another shard, where they were enqueued."""
DEFERRED_REASON: Final = "deferred"
"""Reason of a Settle of messages that are deferred, or were before and are so again."""
MOVED_REASON: Final = "moved"
"""Reason of a Settle by which the copy of a queue follows its source; it is no event of a message."""


class Outcome(IntEnum):
    """How messages left a queue, or why they came back to it; the number is what the journal stores."""

    ACCEPTED = 0
    REJECTED = 1
    RELEASED = 2
    MODIFIED = 3
    EXPIRED = 4
    DEAD_LETTERED = 5
    PURGED = 6
    DISCARDED = 7


RETURNING: Final = frozenset({Outcome.RELEASED, Outcome.MODIFIED})
"""Outcomes that leave the messages in the queue, with the attempts that the record carries."""


class QueueEvent(IntEnum):
    """What happened to a queue."""

    DECLARED = 1
    POLICY = 2
    DELETED = 3


@dataclass(slots=True)
class Settle:
    """Messages of one queue were settled (and are gone), or were returned with new attempts."""

    queue: int
    ranges: Sequence[tuple[int, int]]
    """Sequences (first, before last)."""
    outcome: int
    reason: str = ""
    attempts: int = 0
    """For RELEASED and MODIFIED: failed deliveries so far, and whether the messages are deferred
    (model/attempts.py)."""
    flags: int = 0


@dataclass(slots=True)
class Delivered:
    """Messages of a captured queue were given to a consumer; recovery passes over it."""

    queue: int
    consumer: int
    """boot << 32 | link of the frontend's link."""
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
    """Message-ids that came to a queue; what comes with one of them again is a duplicate."""

    queue: int
    until_ms: int
    """When they are forgotten."""
    digests: bytes
    """Of 16 bytes each, one after another (shard/queue/duplicates.py)."""
    flags: int = 0


@dataclass(slots=True)
class Taken:
    """Only the first `taken` messages of a producer's last batch have had their end.

    Those behind them were refused, or are still to be stored under the same number. The next Append of that
    producer takes this back.
    """

    producer: int
    number: int
    taken: int
    flags: int = 0


@dataclass(slots=True)
class Numbers:
    """A queue came from another shard: what it knew of producers, and how far sequences were given there."""

    queue: int
    next_sequence: int
    producers: Sequence[tuple[int, int, int]] = ()
    """(producer, number of its last batch, how many of its messages were taken; 0 for all); what is known
    here and newer stays."""
    flags: int = 0


class TransactionState(IntEnum):
    """What a shard knows of a transaction over several shards; the number is what the journal stores."""

    PREPARED = 1
    """Its work is in the record; another shard has the decision."""
    COMMITTED = 2
    """This shard decided so; others may ask."""
    ABORTED = 3
    """Another shard asked this one, which had not decided: from then on it can't be committed."""
    ENDED = 4
    """Nothing of it has to be known any more."""


@dataclass(slots=True)
class Transaction:
    """A step of a transaction over several shards; the newest one of an id counts."""

    id: bytes
    """16 bytes."""
    state: int
    shard: int = 0
    """Of one that is prepared: the shard that decides."""
    detail: str = "{}"
    """JSON: of one that is prepared, its work (shard/transactions/prepared.py); of one that is committed, the
    shards that have not ended it."""
    blob: bytes = b""
    """Of one that is prepared: the messages that it sends, as in the work."""
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes that are kept while it has not ended."""
        return len(self.detail) + len(self.blob)


@dataclass(slots=True)
class Seal:
    """This journal was given up in that epoch: another owner goes on with its queues."""

    epoch: int
    flags: int = 0


@dataclass(slots=True)
class Epoch:
    """From here on this journal's shard acts in that epoch."""

    epoch: int
    flags: int = 0


@dataclass(slots=True)
class QueueEntry:
    """A queue as the snapshot holds it."""

    queue: int
    name: str
    policy: str
    next_sequence: int = 0


@dataclass(slots=True)
class Snapshot:
    """The tables at the head of a segment: all that is not messages. Written by the journal itself."""

    epoch: int
    queues: list[QueueEntry] = field(default_factory=list)
    producers: dict[int, int] = field(default_factory=dict)
    """Last batch number by producer, the longest silent first."""
    parts: dict[int, int] = field(default_factory=dict)
    """By producer, of last batches that were not taken whole: how many messages were."""
    flags: int = 0


@dataclass(slots=True)
class Close:
    """The journal was closed in order: everything before is on disk. Written by the journal itself."""

    flags: int = 0


@dataclass(slots=True)
class Gap:
    """Records up to before `next_lsn` are lost; left by a repair in place of what was damaged."""

    next_lsn: int
    flags: int = 0
