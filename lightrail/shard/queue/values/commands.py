"""Commands: the requests to a queue, as values.

Ranges of delivery numbers and sequences are half-open: `last` is the first one after the range.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queue.values.schedules import ScheduleCommand

UNBOUNDED: Final = 1 << 62
"""Bytes of a credit that limits only the number of messages."""


class OutcomeKind(IntEnum):
    """Terminal states of a delivery (messaging 3.4)."""

    ACCEPTED = 0
    REJECTED = 1
    RELEASED = 2
    MODIFIED = 3


class Outcome(NamedTuple):
    """The outcome of a delivery, with the fields of rejected and modified."""

    kind: OutcomeKind
    condition: str = ""
    """rejected: the error condition, or empty."""
    description: str = ""
    delivery_failed: bool = False
    """modified: counts as an attempt."""
    undeliverable_here: bool = False
    """modified: this consumer must not get the message again."""
    annotations: Any = None
    """modified: annotations that the machine's `annotate` merges into the messages; rejected: annotations of
    the dead letters; None or empty for none."""
    defers: bool = False
    """modified: the messages are deferred, for requests that name their sequences."""


ACCEPTED: Final = Outcome(OutcomeKind.ACCEPTED)
RELEASED: Final = Outcome(OutcomeKind.RELEASED)
FAILED: Final = Outcome(OutcomeKind.MODIFIED, delivery_failed=True)
"""Modified with delivery-failed: the outcome of expired locks, and of the oldest delivery of a client that
failed."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options of a consumer."""

    browse: bool = False
    """Distribution-mode copy: it gets copies, and its outcomes change nothing (messaging 3.5.3)."""
    presettled: bool = False
    """Its deliveries are accepted at once."""
    exclusive: bool = False
    """It is refused if there are other consumers, and it excludes others; browsers don't count."""
    priority: int = 0
    """Priority: while a consumer of a higher one has credit, it gets all messages."""
    default_outcome: Outcome = FAILED
    """Default-outcome of its source: of its deliveries that are in flight when the client detaches in order,
    if it is accepted or rejected."""
    first: int = 0
    """Its first delivery number; not 0 for a consumer that continues after a restart of the shard."""
    selects: Callable[[bytes], bool | None] | None = None
    """Selects its messages; must not raise. None to get all messages.

    It returns None if no more messages may be read in this step: the next dispatch calls it again."""
    selector_bytes: int = 0
    """Bytes of memory of `selects`."""
    lock_ms: int = 0
    """How long a delivery is locked before it returns as failed; 0 for the policy's time."""
    lock_key: str = ""
    """Name of its locks: with a key they outlive the consumer and are settled or renewed by key and
    number."""
    lock_ends: LockEnding = LockEnding.ALWAYS_BY_TIME
    """What ends its locks, if they have a key."""
    session: str | None = None
    """The group-id of its session: it gets the messages of this group, and no other consumer does."""
    any_session: bool = False
    """Its session is the next one with a ready message and without an owner; `session` is set then."""
    user: str = ""
    """The user towards whose share of the shard's memory it counts."""

    @property
    def is_session(self) -> bool:
        """Whether it receives the messages of one session (sessions.py)."""
        return self.any_session or self.session is not None


class Enqueue(NamedTuple):
    batch: Batch


class Attach(NamedTuple):
    consumer: int
    """Number of the consumer; never used twice by a machine."""
    options: ConsumerOptions = ConsumerOptions()


class Detach(NamedTuple):
    """The consumer ends: its deliveries return, unless they are locked under a key (ADR 5)."""

    consumer: int
    ending: Ending = Ending.BY_CLIENT


class Suspend(NamedTuple):
    """The consumer's link has ended and may be resumed: it keeps its deliveries, and gets no others."""

    consumer: int


class Resume(NamedTuple):
    """The consumer has a link again, without credit."""

    consumer: int


class Credit(NamedTuple):
    """The consumer may be sent the delivery numbers below `limit`, and gets no more turns once it was sent
    `size` bytes; with `exact`, also no message that is larger than the rest of them."""

    consumer: int
    limit: int
    drain: bool = False
    size: int = UNBOUNDED
    exact: bool = False


class Settle(NamedTuple):
    consumer: int
    first: int
    last: int
    outcome: Outcome = ACCEPTED


class SettleDeliveries(NamedTuple):
    """Settles single deliveries of an attached consumer; answered by SettledDeliveries."""

    consumer: int
    numbers: Sequence[int]
    outcome: Outcome


class SettleDetached(NamedTuple):
    """Settles deliveries that are locked under a key, with a link or without, in a transaction."""

    key: str
    first: int
    last: int
    outcome: Outcome


class Reserve(NamedTuple):
    """Assigns deliveries of a consumer, all of which must exist, to a prepared transaction.

    A consumer with a key is found by the key. No settlement, end of a lock or end of it changes them then.
    """

    holder: int
    """Number of the reservation, below those of internal consumers; never used twice by a machine."""
    consumer: int
    first: int
    last: int
    key: str = ""


class Conclude(NamedTuple):
    """Applies the decision of a transaction: its deliveries get this outcome."""

    holder: int
    outcome: Outcome


class Return(NamedTuple):
    """Ends a reservation without a decision: its consumer has the deliveries again; detached, they failed."""

    holder: int


class SettleLocked(NamedTuple):
    """Settles one delivery by the key of its consumer, attached or not; answered by LockAnswer."""

    key: str
    number: int
    outcome: Outcome = ACCEPTED
    sequence: int | None = None
    """Sequence of the message, if the request has it; then only this message is found."""


class LockDeferred(NamedTuple):
    """Locks deferred messages, all or none of them; answered by LockedDeferred.

    Each message is one delivery, whose number is its sequence. A repeated command with the same key finds
    them again.
    """

    holder: int
    """Number of a consumer that is never attached; never used twice by a machine."""
    key: str
    """Key of the locks for SettleLocked and RenewLock."""
    sequences: Sequence[int]
    lock_ms: int
    """The lock time if the policy has none."""
    session_of: int | None = None
    """The consumer to whose session they belong: then the session's lock is theirs."""


class RenewLock(NamedTuple):
    """Renews the lock of one delivery from now on; answered by LockAnswer."""

    key: str
    number: int
    sequence: int | None = None
    """See SettleLocked."""


class RenewByKeys(NamedTuple):
    """Renews locks by key and number from now on; answered by Renewed."""

    locks: Sequence[tuple[str, int]]


class RenewDeliveries(NamedTuple):
    """Renews the locks of deliveries of an attached consumer from now on; answered by Renewed."""

    consumer: int
    numbers: Sequence[int]


class RenewSession(NamedTuple):
    """Renews the lock of a consumer's session from now on; answered by SessionRenewed."""

    consumer: int


class SetState(NamedTuple):
    """Sets the state of a session, whose id is the group-id of the batch's only message.

    The message is the next one of the queue, and on disk already if it is durable.
    """

    session: str
    batch: Batch | None
    """None to remove the state."""


class Tick(NamedTuple):
    """Time has passed: expires messages and locks that are due. `next_deadline_ms` is when to send it."""


class Purge(NamedTuple):
    """Removes every message that is ready, delayed or deferred; those in flight stay with their consumers."""


class Delete(NamedTuple):
    """Removes those messages with sequences from `first` to before `last` that are ready."""

    first: int
    last: int


class Cancel(NamedTuple):
    """Removes a delayed message before its time; does nothing if it is not, or no longer, delayed."""

    sequence: int


class Past(NamedTuple):
    """State of a special queue at its former owner that can't be read from its messages."""

    owners: Mapping[int, int] | None = None
    """For a queue of groups: the owner of each group that has one, by the sequence of one of its messages."""
    newest: Mapping[int, int] | None = None
    """For a queue of last values: the newest sequence of the key of each in-flight or delayed message, by the
    message's sequence."""


class Change(NamedTuple):
    """Sets another, checked policy; messages in flight stay with their consumers."""

    policy: Policy


@dataclass(slots=True)
class Holder:
    """A consumer of a queue that moves to this shard, and its deliveries."""

    consumer: int
    options: ConsumerOptions
    next: int
    deliveries: Sequence[tuple[int, int, int]] = ()
    """(delivery number, sequence, length of the run that is consecutive in both), by number."""
    lock_ms: int = 0
    lock_ms_before: int = 0
    renewed: dict[int, int] = field(default_factory=dict)
    """The ends of locks that were renewed, by delivery number."""
    cursor: int = 0
    """For browsers: copies of messages with lower sequences were sent."""
    departed: bool = False
    blame: tuple[int | None, Sequence[int]] | None = None
    """See lines/ends.py: the oldest delivery, and those that were renewed since the end of the link."""
    session_of: int | None = None
    """The consumer whose session's lock is that of its deliveries."""
    active: bool = False
    """Whether it is the single active consumer."""


class Open(NamedTuple):
    """A copy of a queue becomes the queue, with its consumers' deliveries. A dispatch should follow."""

    policy: Policy
    holders: Sequence[Holder] = ()
    """Consumers in the order of their attaches."""
    locks: Sequence[tuple[int, int, int, int]] = ()
    """(milliseconds since the epoch, consumer, first and last delivery number)."""
    past: Past = Past()
    seen_to: int = 0
    """Messages with lower sequences were delivered at least once."""
    ids: Sequence[tuple[int, bytes]] = ()
    """As in Restore."""


@dataclass(frozen=True, slots=True)
class Peek:
    """Looks at up to `count` ready, delayed or deferred messages from a sequence on; nothing is locked."""

    from_sequence: int
    count: int


class Fetched(NamedTuple):
    """The answer to a Fetch: the messages of the run that begins at `sequence`, in memory.

    `runs` may have more messages than requested. Missing messages are requested again a little later, unless
    `damaged`: then they are lost.
    """

    sequence: int
    runs: Sequence[Run]
    damaged: bool = False


class Restore(NamedTuple):
    """Adds recovered messages to an empty machine: sequences rising, some of the runs evicted."""

    runs: Sequence[Run]
    next_sequence: int
    ids: Sequence[tuple[int, bytes]] = ()
    """Message-ids inside the window of duplicates: (end of their window, concatenated digests)."""
    reserved: Mapping[int, Sequence[tuple[int, int]]] = {}
    """Sequences (first, before last) of messages of prepared transactions, by holder; see Reserve."""
    joins: bool = True
    """Whether neighbours may share the earliest time of arrival; not if delays need the time of each."""
    is_copy: bool = False
    """Whether it is a copy: all messages, also deferred ones, are in the ready line until it is opened."""
    seen_to: int = 0
    """The sequence below which messages may have been delivered."""
    withheld: Sequence[int] = ()
    """Sequences of delayed messages that prepared transactions cancel; see Withhold."""


Command = (
    Enqueue
    | Attach
    | Detach
    | Suspend
    | Resume
    | Credit
    | Settle
    | SettleDetached
    | Reserve
    | Conclude
    | Return
    | SettleLocked
    | LockDeferred
    | RenewLock
    | RenewByKeys
    | RenewDeliveries
    | RenewSession
    | SetState
    | SettleDeliveries
    | ScheduleCommand
    | Tick
    | Purge
    | Cancel
    | Delete
    | Change
    | Open
    | Peek
    | Fetched
    | Restore
)
