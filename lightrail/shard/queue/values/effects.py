"""Effects: the results of commands, as values that the performer executes in their order.

Sequences are half-open: `last_sequence` is the first one after the range.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from lightrail.shard.queue.values.runs import Batch, Run


class Reason(StrEnum):
    """Why messages left the queue."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_DELIVERY_COUNT = "max-delivery-count"
    PURGED = "purged"
    REPLACED = "replaced"
    """A newer message with its key was enqueued, in a queue of last values."""
    CANCELLED = "cancelled"
    """It was delayed, and cancelled before its time."""
    QUEUE_FULL = "queue-full"
    """The oldest messages were removed for new ones, and the policy dead-letters them."""
    DUE = "due"
    """It was scheduled, and is in the queue with another sequence since it was due."""
    DISCARDED = "discarded"
    """The same, if the policy does not dead-letter them."""
    LOST = "lost"
    """The messages could not be read back from the journal."""


class PeekedState(StrEnum):
    """The state of a message in the answer to a Peek."""

    READY = "ready"
    DELAYED = "delayed"
    DEFERRED = "deferred"


class Stored(NamedTuple):
    """A batch has got its sequences. The engine journals it (if durable) and sets `run.batch.location`."""

    run: Run


class Deliver(NamedTuple):
    """Send these messages to the consumer with delivery numbers from `first_number`."""

    consumer: int
    first_number: int
    run: Run


class Drained(NamedTuple):
    """The consumer's credit was drained.

    Every delivery number below `number` was delivered; its limit is now `number`.
    """

    consumer: int
    number: int


class Larger(NamedTuple):
    """The consumer's next message has `size` bytes, more than the rest of its exact credit.

    Its credit is used up by that: its limit is now `number`, its next delivery number.
    """

    consumer: int
    number: int
    size: int


class Removed(NamedTuple):
    """Messages were removed: release their locations, and settle durable ones in the journal."""

    batch: Batch
    first_sequence: int
    last_sequence: int
    size: int
    reason: Reason


class Purged(NamedTuple):
    """More messages were purged than one turn can settle; each run must be handled as Removed."""

    runs: list[Run]


class Returned(NamedTuple):
    """Runs that returned to the queue with one more attempt; recovery needs the new number.

    A captured queue has this effect for every modified message, also if the number is the same.
    """

    runs: list[Run]


class Released(NamedTuple):
    """Runs that were released; an effect of captured queues only."""

    runs: list[Run]


class Replaced(NamedTuple):
    """The same messages with other bytes (annotations were merged): append `run`, release `old`."""

    run: Run
    old: Run


class DeadLetter(NamedTuple):
    """Messages left this queue for its dead-letter queue; the removal is part of this effect.

    `run` is in memory and has the attempts that the copies should carry.
    """

    run: Run
    reason: Reason
    condition: str = ""
    description: str = ""
    annotations: Any = None
    """Annotations for the copies from the receiver that rejected the messages; None for none."""


class Due(NamedTuple):
    """A scheduled message is due and has left the queue, which it enters again as a new message.

    It gets a new sequence, and its time of arrival and time to live begin. The removal is part of this
    effect.
    """

    run: Run


class Fetch(NamedTuple):
    """Read this run from its location and answer with Fetched; there is one Fetch per run."""

    run: Run


class Refused(NamedTuple):
    """The consumer may not attach."""

    consumer: int | None
    condition: str
    description: str


class LockAnswer(NamedTuple):
    """The answer to a SettleLocked or RenewLock."""

    found: bool
    """False if the lock expired, the delivery was settled, or the key is unknown."""
    until_ms: int
    """The new end of a renewed lock; else 0."""


class LockedDeferred(NamedTuple):
    """The answer to a LockDeferred."""

    runs: list[Run]
    """The messages, one per run, by sequence; empty if any is not deferred, or is locked already."""
    until_ms: int
    """The end of their locks."""


class Renewed(NamedTuple):
    """The answer to a RenewDeliveries, delivery by delivery."""

    locked_ms: list[int | None]
    """Milliseconds for which each is locked from now on; 0 if its lock expired or it was settled, None if its
    lock has no time limit."""


class SessionAccepted(NamedTuple):
    """The consumer owns a session from now on."""

    consumer: int
    session: str
    locked_ms: int
    """Milliseconds for which the session is locked; 0 as long as the consumer is attached."""


class SessionLost(NamedTuple):
    """The lock of the consumer's session has ended, or the queue has no sessions any more.

    The consumer is detached, and its deliveries are settled with its default outcome.
    """

    consumer: int


class SessionRenewed(NamedTuple):
    """The answer to a RenewSession."""

    locked_ms: int | None
    """As in SessionAccepted; None if the consumer owns no session."""


class SettledDeliveries(NamedTuple):
    """The answer to a SettleDeliveries, delivery by delivery."""

    found: list[bool]
    """Whether each was in flight, and has its outcome now."""


class Peeked(NamedTuple):
    """The answer to a Peek; some of the runs may be evicted, the engine reads those from their locations."""

    runs: list[Run]
    states: Sequence[PeekedState] = ()
    """The state of each run."""


Effect = (
    Stored
    | Deliver
    | Drained
    | Larger
    | Removed
    | Purged
    | Returned
    | Released
    | Replaced
    | DeadLetter
    | Due
    | Fetch
    | Refused
    | LockAnswer
    | LockedDeferred
    | Renewed
    | SessionAccepted
    | SessionLost
    | SessionRenewed
    | SettledDeliveries
    | Peeked
)
