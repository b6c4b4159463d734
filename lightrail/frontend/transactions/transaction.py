"""A transaction: the sends and settlements of a client until it is discharged (transactions 4.4).

The frontend collects them. None is sent to a shard before the commit, so nothing is left after the end of a
frontend or a client: messages were never sent, and deliveries return as those of any lost link.

The deliveries that a transaction has settled, by the ids of their sessions.

A client may give a delivery an outcome twice in one transaction, also after the broker has settled it. Of all
other deliveries that are not unsettled (any more), an outcome makes the transaction fail.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.amqp.performatives import TransactionalState
from lightrail.frontend.guard import Hold
from lightrail.model import conditions, limits
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.links.deliveries import ConsumerLink
    from lightrail.namespace.records import Name

_last = itemgetter(1)


@dataclass(slots=True, eq=False, repr=False)
class NamedDeliveries:
    """Ranges of delivery-ids of sessions, ends included, in order and apart."""

    _by_session: dict[object, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, session: object, first: int, last: int) -> None:
        """Adds a range."""
        ranges = self._by_session.setdefault(session, [])
        start = stop = bisect_left(ranges, first - 1, key=_last)
        while stop < len(ranges) and ranges[stop][0] <= last + 1:
            first, last = min(first, ranges[stop][0]), max(last, ranges[stop][1])
            stop += 1
        ranges[start:stop] = [(first, last)]

    def has(self, session: object, first: int, last: int) -> bool:
        """Whether all of a range were added."""
        start, end = self._next(session, first)
        return start <= first and last <= end

    def overlaps(self, session: object, first: int, last: int) -> bool:
        """Whether some of a range were added."""
        return self._next(session, first)[0] <= last

    def _next(self, session: object, first: int) -> tuple[int, int]:
        """The first range that ends at `first` or later; one beyond all ids where there is none."""
        ranges = self._by_session.get(session, [])
        index = bisect_left(ranges, first, key=_last)
        return ranges[index] if index < len(ranges) else (1 << 64, 0)


TRANSACTION_BYTES_MAX: Final[int] = 64 * 1024 * 1024
"""Bytes of the messages that one transaction sends."""
TRANSACTIONS_BYTES_MAX: Final[int] = 256 * 1024 * 1024
"""Memory of all open transactions of a frontend; those of one connection have at most what is left of it."""
TRANSACTION_OVERHEAD: Final[int] = 2_048
"""Bytes that a declared transaction counts for."""
TRANSACTION_PART_OVERHEAD: Final[int] = 512
"""Bytes that a batch of messages counts for besides them, and a range of deliveries that it settles."""
TRANSACTION_MESSAGE_OVERHEAD: Final[int] = 64
"""Bytes that a message counts for besides its own."""


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """Memory of the open transactions of one connection, in bytes; the process counts that of all."""

    _counts: FrontendCounts
    _bytes: int = 0

    def charge(self, size: int) -> bool:
        """Counts memory; a negative size frees it. Returns whether the account is overdrawn."""
        self._bytes += size
        self._counts.transaction_bytes += size
        return self._bytes > TRANSACTIONS_BYTES_MAX - self._counts.transaction_bytes

    @property
    def is_overdrawn(self) -> bool:
        """Whether the connection has more than the process has left: so no client can use up all of it."""
        return self._bytes > TRANSACTIONS_BYTES_MAX - self._counts.transaction_bytes


class Attributes(NamedTuple):
    """Common fields of a batch for the shard."""

    durable: bool
    priority: int
    expires_at_ms: int
    """0: the messages do not expire."""
    message_format: int


@dataclass(slots=True)
class Post:
    """Messages that were sent by one link, in their order."""

    name: str
    """Name of a queue or router; for a link without a target, the address in the messages."""
    is_address: bool
    payloads: list[bytes]
    attributes: Attributes
    container: str = ""
    """Container-id of the client, whose messages some subscriptions exclude."""
    may_delay: bool = False
    """Whether messages may request a delay, if the policy of their queue has no `delay` yet."""
    may_schedule: bool = False
    """Whether messages for a router may wait for their time in its queue of scheduled messages."""
    is_entity: bool = False
    """Whether the name in an address is that of an entity (FrontendHooks.names_entities)."""
    hold: Hold | None = None
    """The use of the name by the link that sent the messages; None for an address, and for a request."""
    sequence: int | None = None
    """Of the first message in the queue, which has given the messages their numbers before the commit."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of the messages."""
        return sum(map(len, self.payloads))

    def size(self, payload_bytes: int) -> int:
        """Its memory, in bytes, with messages of so many."""
        messages = len(self.payloads) * TRANSACTION_MESSAGE_OVERHEAD
        return payload_bytes + messages + TRANSACTION_PART_OVERHEAD


@dataclass(slots=True, eq=False)
class Retirement:
    """Deliveries of one receiving link, with their outcome."""

    consumer: "ConsumerLink"
    first: int
    last: int
    """Delivery numbers, including `last`."""
    outcome: Any
    settled: bool
    """Whether the client has settled; otherwise it waits for the broker to settle."""


class LockRetirement(NamedTuple):
    """A message that a request settles by its lock, with its outcome."""

    queue: str
    key: str
    number: int
    """Of the delivery; of a deferred message that was received by its sequence, that sequence."""
    outcome: Any


class Acquisition:
    """Deliveries of one receiving link that are acquired in a transaction (transactions 4.4.3)."""

    __slots__ = ("_last", "consumer", "first", "link", "state")

    def __init__(self, txn_id: bytes, link: "Link", consumer: "ConsumerLink") -> None:
        self.link = link
        self.consumer = consumer
        self.state = TransactionalState(txn_id=txn_id)
        """Of the transfers."""
        self.first = consumer.delivered()
        """The first delivery number."""
        self._last: int | None = None

    @property
    def last(self) -> int:
        """The last delivery number so far; below the first one if there is none."""
        return self.consumer.delivered() - 1 if self._last is None else self._last

    @property
    def is_open(self) -> bool:
        """Whether further deliveries of the link are acquired."""
        return self._last is None

    def end(self) -> None:
        """Acquires no more deliveries; those of which no frame is sent yet are in no transaction."""
        if self._last is None:
            self.link.forget_state(self.state)
            self._last = self.consumer.delivered() - self.link.backlog - 1

    def overlaps(self, first: int, last: int) -> bool:
        """Whether some of these deliveries are acquired by it."""
        return self.first <= last and first <= self.last


@dataclass(slots=True, eq=False, repr=False)
class Transaction:
    """One transaction, from its declare to its discharge."""

    id: bytes
    control: "Link | None" = None
    """The link on which it was declared."""
    _account: Account | None = None
    declared_ms: int = 0
    acquisitions: dict[Acquisition, None] = field(default_factory=dict)
    """In their order."""
    posts: list[Post] = field(default_factory=list)
    partial: "dict[Link, None]" = field(default_factory=dict)
    """Links on which a message of several frames is sent in it, until the last frame."""
    retirements: list[Retirement] = field(default_factory=list)
    named: NamedDeliveries = field(default_factory=NamedDeliveries)
    """All deliveries that have an outcome in it, by their sessions."""
    locks: dict[tuple[str, int], LockRetirement] = field(default_factory=dict)
    """By the key and the number of the lock."""
    cancellations: dict[tuple[str, int], None] = field(default_factory=dict)
    """Scheduled messages that it cancels: queue and sequence."""
    senders: dict[str, "Name"] = field(default_factory=dict)
    """By name: what requests schedule or cancel messages at; the commit checks the right again."""
    requests: int = 0
    """Number of its requests to nodes that are not executed yet."""
    messages: int = 0
    _payload_bytes: int = 0
    """Bytes of the messages."""
    failure: Refusal | None = None
    """Reason why it can only be rolled back."""
    is_ending: bool = False
    """Whether it is discharged, and accepts no more work."""
    is_timed_out: bool = False
    work_began_ms: int = 0
    """Time of the first work, in ms since 1970; 0 before."""
    timer: asyncio.TimerHandle | None = None
    """Ends its time."""
    size: int = TRANSACTION_OVERHEAD
    """Its memory, in bytes."""

    def __post_init__(self) -> None:
        if self._account is not None:
            self._account.charge(self.size)

    def _charge(self, size: int) -> None:
        """Counts memory, and fails if the connection has too much; a negative size frees it."""
        self.size += size
        if self._account is not None and self._account.charge(size) and size > 0:
            self.fail(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                "the open transactions of this connection have more memory than is left for those of others, "
                f"of {TRANSACTIONS_BYTES_MAX} bytes in this process; discharge some and try again",
            )

    def fail(self, condition: str, description: str) -> None:
        """Marks it as failed, so that it can only be rolled back; the first reason counts."""
        if self.failure is None:
            self.failure = Refusal(condition, description)
            self._charge(-sum(post.size(post.payload_bytes) for post in self.posts))
            self.posts.clear()

    def forget(self) -> None:
        """It has ended."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for each in self.retirements:
            each.consumer.settlements.release(each)
        self._charge(-self.size)
        self.posts.clear()
        self.retirements.clear()
        self.locks.clear()
        self.cancellations.clear()
        self.acquisitions.clear()

    def post(self, post: Post) -> None:
        """Adds sent messages. It fails if they exceed the bounds."""
        self.messages += len(post.payloads)
        payload_bytes = post.payload_bytes
        self._payload_bytes += payload_bytes
        if (
            self.messages > limits.TRANSACTION_MESSAGES_MAX
            or self._payload_bytes > TRANSACTION_BYTES_MAX
            or len(self.posts) >= limits.TRANSACTION_PARTS_MAX
        ):
            self.fail(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected a transaction of at most {limits.TRANSACTION_MESSAGES_MAX} messages and "
                f"{TRANSACTION_BYTES_MAX} bytes, found more",
            )
        if self.failure is None:
            self.posts.append(post)
            self._charge(post.size(payload_bytes))

    def retire(self, retirement: Retirement) -> None:
        """Adds settlements; consecutive deliveries with the same outcome are one entry."""
        if self.retirements:
            newest = self.retirements[-1]
            if (
                newest.consumer is retirement.consumer
                and newest.last + 1 == retirement.first
                and newest.outcome == retirement.outcome
                and newest.settled == retirement.settled
            ):
                newest.last = retirement.last
                return
        self._check_settlements()
        settlements = retirement.consumer.settlements
        if self.failure is None:
            self.retirements.append(retirement)
            settlements.hold(retirement)
            self._charge(TRANSACTION_PART_OVERHEAD)
        elif retirement.settled:
            settlements.give_back(retirement.first, retirement.last)

    def replace(self, consumer: "ConsumerLink", first: int, last: int) -> None:
        """The client changes the outcome of deliveries: removes the former one."""
        for each in [each for each in self.retirements if each.consumer is consumer]:
            if each.last < first or last < each.first:
                continue
            self.retirements.remove(each)
            consumer.settlements.release(each)
            self._charge(-TRANSACTION_PART_OVERHEAD)
            for part in (replace(each, last=first - 1), replace(each, first=last + 1)):
                if part.first <= part.last:
                    self.retire(part)

    def _check_settlements(self) -> None:
        parts = len(self.retirements) + len(self.locks) + len(self.cancellations)
        if parts >= limits.TRANSACTION_PARTS_MAX:
            self.fail(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected a transaction that settles at most {limits.TRANSACTION_PARTS_MAX} ranges of "
                "deliveries, or scheduled messages that it cancels, found more",
            )

    # --- by requests (links/bound.py) -------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why it accepts no more work; empty if it does."""
        if self.failure is not None:
            return self.failure.description
        return "the transaction is discharged" if self.is_ending else ""

    def begin_request(self) -> None:
        """A request is part of it, and can't be answered yet."""
        self.requests += 1

    def end_request(self) -> None:
        """That request is executed."""
        self.requests -= 1

    def retire_lock(self, queue: str, key: str, number: int, outcome: Any) -> None:
        """Adds a message that is locked under a key, with its outcome."""
        self._check_settlements()
        if self.failure is None:
            self.locks[key, number] = LockRetirement(queue, key, number, outcome)
            self._charge(TRANSACTION_PART_OVERHEAD)

    def cancel(self, queue: str, sequences: Iterable[int]) -> None:
        """Adds scheduled messages of a queue that it cancels."""
        for sequence in sequences:
            self._check_settlements()
            if self.failure is None:
                self.cancellations[queue, sequence] = None
                self._charge(TRANSACTION_PART_OVERHEAD)

    def has_lock(self, key: str, number: int) -> bool:
        """Whether it settles the message with this lock already."""
        return (key, number) in self.locks
