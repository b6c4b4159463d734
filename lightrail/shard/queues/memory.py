"""How the memory of a shard is shared: which queues are spilled above the memory mark, and how much.

The formula: while the messages in memory exceed the mark, the queue with most of them spills what is beyond
its fair share, the mark divided by the number of queues with more than that, and at least an eighth of
its messages, until nine tenths of the mark are reached. A queue always keeps `limits.RESIDENT_HEAD_BYTES` at
its head, so that consumers do not wait for the disk, or less if all heads would exceed half of the mark.
Messages that several queues share count once for each of them: the memory in use may be less than the sum,
never more. Indexes of queues count as well, by their measured sizes.

Messages in flight are spilled as well, after those that wait (ADR 29). Not all memory can be spilled: indexes
of queues that read their messages stay, parked batches, and prepared transactions (ADR 38). When the indexes
reach their share of the mark, senders to queues with much of them wait; when all that stays is above the
mark, all senders do (ADR 20). Of each unsettled delivery something stays as well: at its share, consumers
with many of them get no more until they have settled some. Message-ids beyond theirs are forgotten (ADR 54).

Users share what a shard has for all clients together (`UserShares`). A user may have as much as is free
besides: the first one a half, each of two a third, so that there is always room for one more. Clients with
one user, as with anonymous access, have one share.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.shard.queue.footprint import NO_SIZES, Sizes
from lightrail.shard.queue.values.counters import NO_BOUND

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Queue


@dataclass(slots=True, eq=False, repr=False)
class UserShares:
    """What each user has of one thing, in the unit of the thing: bytes, tags, links.

    Links that belong to no user, and those of frontends of former versions, have the user "".
    """

    _by_user: dict[str, int] = field(default_factory=dict)
    total: int = 0
    """What all users have together."""

    def add(self, user: str, amount: int) -> None:
        """Adds to what a user has; a negative amount if it has less."""
        self.total += amount
        found = self._by_user.get(user, 0) + amount
        if found:
            self._by_user[user] = found
        else:
            self._by_user.pop(user, None)

    def of(self, user: str) -> int:
        """What a user has."""
        return self._by_user.get(user, 0)

    def share(self, user: str, most: int) -> int:
        """What a user may have if there is `most` for all: a half of what the others leave."""
        return (most - self.total + self.of(user)) // 2

    def has_room(self, user: str, most: int, amount: int = 0) -> bool:
        """Whether a user has no more than its share, also with an `amount` more."""
        return self.of(user) + amount <= self.share(user, most)


TRANSACTIONS_PREPARED_BYTES_MIN: Final[int] = 64 * 1024
"""They may have so much whatever the mark is."""
MEMORY_LOW_WATER: Final[float] = 0.9
"""Spilling continues down to this part of the mark, so that it is not needed again at once."""
INDEX_BYTES_MIN: Final[int] = 64 * 1024
"""Bytes that the indexes may always take."""
INDEX_SLACK: Final[float] = 1.5
"""Beyond their share, indexes grow by this factor for queues that have less than an equal part of it."""
INDEX_REPORTED_EVERY_MS: Final[int] = 60_000
"""Least time between two lines of the log about senders that wait for smaller indexes."""
IDS_SHARE: Final[int] = 4
"""The message-ids in the windows of duplicates may take the memory mark divided by this; beyond, the queues
with most of them forget their oldest early."""
LINKS_BYTES_MIN: Final[int] = 4 * 1024 * 1024
"""They may have so much whatever the mark is."""
UNSETTLED_SHARE: Final[int] = 4
"""What stays in memory of unsettled deliveries may take the memory mark divided by this; beyond, consumers
with many of them get no more until they have settled some."""
UNSETTLED_RUNS_MIN: Final[int] = 16
"""Runs that each consumer may have unsettled whatever others have."""
UNSPILLABLE_SLACK_BYTES: Final[int] = 1024 * 1024
"""Bytes beyond the memory mark that can't be spilled, from which no sender is answered."""
PARKED_BYTES_MAX: Final[int] = 256 * 1024 * 1024
"""Bytes of batches that wait in a shard for room in their queues, at most half of its memory mark; batches
beyond are refused."""
QUEUE_BYTES: Final[int] = 4_340
"""Bytes of a queue at its shard without any message or link; measured."""
QUEUES_SHARE: Final[int] = 2
"""Queues may take the memory mark of their shard divided by this; beyond, no further one is created there."""
QUEUES_BYTES_MIN: Final[int] = 4 * 1024 * 1024
"""They may take so much whatever the mark is."""


@dataclass(slots=True, eq=False, repr=False)
class Memory:
    """Bytes of messages in memory: in queues, and in batches that wait for room in a queue."""

    mark: int
    resident: int = 0
    """Bytes of all messages in memory."""
    flowing: int = 0
    """Further bytes that are being spilled, and stay in memory until their commit has ended."""
    _committing: int = 0
    """Of `flowing`, the bytes that the commit under way writes."""
    index: int = 0
    """Bytes of `resident` for the indexes of queues, over messages in memory and on disk."""
    _indexed: int = 0
    """Number of queues with an index."""
    _index_reported_ms: int = -INDEX_REPORTED_EVERY_MS
    """When it was last logged that senders wait."""
    ids: int = 0
    """Number of message-ids in the windows of duplicates of all queues."""
    waiting: "dict[Queue, None]" = field(default_factory=dict)
    """Queues with batches that wait until the indexes are smaller."""
    parked: int = 0
    """Bytes of batches that wait for room in their queue: they are not accepted and can't be spilled."""
    prepared: int = 0
    """Bytes of prepared transactions, which can't be spilled either."""
    unsettled: int = 0
    """Bytes of unsettled deliveries that stay in memory when their messages are on disk."""
    links: int = 0
    """Bytes of the consumers of all queues, without their deliveries; they are no part of `resident`."""
    consumers: UserShares = field(default_factory=UserShares)
    """Bytes of attached consumers, which `links` has as well."""
    paused: "dict[Queue, None]" = field(default_factory=dict)
    """Queues with consumers that get no more until they have settled some, or fewer are unsettled."""
    _queues: "dict[Queue, None]" = field(default_factory=dict)
    asked: "dict[Queue, tuple[int, int]]" = field(default_factory=dict)
    """By queue that has spilled all it can: its bytes in memory then, and the bits of `head_bytes`."""
    index_max: int = field(init=False)
    ids_max: int = field(init=False)
    """Beyond, the queues with most of them forget their oldest."""
    unsettled_max: int = field(init=False)
    """Beyond, consumers with many unsettled deliveries get no more."""
    links_max: int = field(init=False)
    """What users share: beyond the share of a user, none of its consumers is attached."""

    def __post_init__(self) -> None:
        self.index_max = max(self.mark // limits.INDEX_SHARE, INDEX_BYTES_MIN)
        self.ids_max = max(self.mark // IDS_SHARE, INDEX_BYTES_MIN) // limits.REMEMBERED_ID_BYTES
        self.unsettled_max = max(self.mark // UNSETTLED_SHARE, INDEX_BYTES_MIN)
        self.links_max = max(self.mark // limits.LINKS_SHARE, LINKS_BYTES_MIN)

    @property
    def above_mark(self) -> bool:
        return self.resident + self.flowing > self.mark

    @property
    def far_above_mark(self) -> bool:
        return self.resident > 2 * self.mark

    @property
    def index_is_full(self) -> bool:
        """Whether queues with an index may store no more."""
        return self.index > self.index_max

    def must_wait(self, queue: "Queue") -> bool:
        """Whether senders to a queue wait: the indexes are full, and its own has its part of them.

        One backlog does not stop the other queues: each that reads its messages may have an equal part of the
        share, until all indexes have INDEX_SLACK times the share.
        """
        if not self.index_is_full:
            return False
        own = queue.sizes[1][0]
        if own * self._indexed >= self.index:
            return True
        if not queue.view.reads_messages:
            return False
        return self.index > INDEX_SLACK * self.index_max or own * (self._indexed + 1) >= self.index_max

    def index_reports(self, now_ms: int) -> bool:
        """Whether the log should say now that senders wait as the indexes are full: once a minute."""
        if 0 <= now_ms - self._index_reported_ms < INDEX_REPORTED_EVERY_MS:
            return False
        self._index_reported_ms = now_ms
        return True

    def may_index(self) -> list["Queue"]:
        """Removes and returns the queues whose batches waited for smaller indexes and may be stored now."""
        found = [queue for queue in self.waiting if not self.must_wait(queue)]
        for queue in found:
            del self.waiting[queue]
        return found

    @property
    def is_stuck(self) -> bool:
        """Whether indexes, parked batches and prepared transactions exceed the mark, so that no sender may
        send more.

        Messages in flight are not counted: they can be spilled.
        """
        return self.index + self.parked + self.prepared > self.mark + UNSPILLABLE_SLACK_BYTES

    def unsettled_runs_max(self, consumers: int) -> int:
        """Unsettled runs from which one of so many consumers gets no more; unbounded while there is room."""
        if self.unsettled <= self.unsettled_max:
            return NO_BOUND
        runs = self.unsettled_max // limits.RUN_ON_DISK_BYTES
        return max(UNSETTLED_RUNS_MIN, runs // max(1, consumers))

    @property
    def may_resume(self) -> bool:
        """Whether paused consumers may get more."""
        return bool(self.paused) and self.unsettled <= self.unsettled_max

    def resumed(self) -> dict["Queue", None]:
        """Removes and returns the queues with consumers that may get more; none while memory is short."""
        resumed: dict[Queue, None] = {}
        if self.may_resume:
            resumed, self.paused = self.paused, resumed
        return resumed

    def consumers_share(self, user: str) -> int:
        """Bytes that the consumers of a user may have.

        Consumers that have detached and have locked deliveries are nobody's, and leave less for all.
        """
        departed = self.links - self.consumers.total
        return self.consumers.share(user, self.links_max - departed)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are in flight and in memory; computed only when memory is short."""
        return sum(queue.footprint.in_flight_bytes for queue in self._queues)

    @property
    def head_bytes(self) -> int:
        """Bytes that each queue keeps at its head while memory is short, so that all use half the mark."""
        return max(1, min(limits.RESIDENT_HEAD_BYTES, self.mark // (2 * max(1, len(self._queues)))))

    @property
    def parked_max(self) -> int:
        """Maximum bytes of parked batches: half of the mark is left for messages in queues."""
        return min(PARKED_BYTES_MAX, self.mark // 2)

    @property
    def prepared_max(self) -> int:
        """Maximum bytes of prepared transactions."""
        return max(self.mark // limits.TRANSACTIONS_PREPARED_SHARE, TRANSACTIONS_PREPARED_BYTES_MIN)

    def commit_begun(self) -> None:
        """Notes that a commit with all spilled bytes has begun."""
        self._committing = self.flowing

    def commit_ended(self) -> None:
        """Notes that the commit is on disk."""
        self.flowing -= self._committing
        self._committing = 0

    def park(self, size: int) -> None:
        """Adds `size` parked bytes; negative if they are no longer parked."""
        self.parked += size
        self.resident += size

    def prepare(self, size: int) -> None:
        """Adds `size` bytes of prepared transactions; negative for one that is concluded."""
        self.prepared += size
        self.resident += size

    def update(self, queue: "Queue") -> None:
        """Updates the counts after a change of the queue."""
        footprint = queue.footprint
        sizes = footprint.sizes()
        if sizes != queue.sizes:
            self._count(queue, sizes)
        if queue.view.deliveries.paused:
            self.paused[queue] = None
        if footprint.consumers.changed:
            self._count_users(footprint.take_changed_users() or {})

    def _count(self, queue: "Queue", sizes: Sizes) -> None:
        resident, others = sizes
        resident_before, others_before = queue.sizes
        queue.sizes = sizes
        self.resident += resident - resident_before
        if not resident:
            if resident_before:
                del self._queues[queue]
                self.asked.pop(queue, None)
        elif not resident_before:
            self._queues[queue] = None
        if others != others_before:
            index, unsettled, links, ids = others
            index_before, unsettled_before, links_before, ids_before = others_before
            self._indexed += (index > 0) - (index_before > 0)
            self.index += index - index_before
            self.unsettled += unsettled - unsettled_before
            self.links += links - links_before
            self.ids += ids - ids_before

    def _count_users(self, changed: dict[str, int]) -> None:
        for user, size in changed.items():
            self.consumers.add(user, size)

    def remove(self, queue: "Queue") -> None:
        """Removes a deleted queue from the counts."""
        self._count(queue, NO_SIZES)
        self._count_users(queue.footprint.take_changed_users() or {})
        for user, size in queue.footprint.users:
            self.consumers.add(user, -size)
        self.waiting.pop(queue, None)
        self.paused.pop(queue, None)

    def parted(self) -> list["Queue"]:
        """Queues with messages that keep more of their batches in memory, as far as that is known."""
        return [queue for queue in self._queues if queue.footprint.is_parted]

    def plan(self) -> list[tuple["Queue", int]]:
        """(queue, bytes to spill), the largest queue first."""
        return _shared([(queue.resident, queue) for queue in self._queues], self.resident, self.mark)

    def others(self, planned: Container["Queue"]) -> Iterator["Queue"]:
        """Queues beside the planned ones, the largest first, while the messages in memory exceed the mark.

        The planned ones may have freed less than they were asked for, such as one that is mostly an index.
        Queues that had nothing to spill are left out until they change, or half as much may stay at their
        heads: each step would ask all of them.
        """
        if self.resident > self.mark:
            asked, head_bits = self.asked, self.head_bytes.bit_length()
            found = [queue for queue in self._queues if asked.get(queue) != (queue.resident, head_bits)]
            yield from self._while_above([queue for queue in found if queue not in planned])

    def with_large_heads(self) -> Iterator["Queue"]:
        """Queues whose head may be spilled, the largest first, while the messages exceed the mark."""
        if self.resident > self.mark:
            found = [queue for queue in self._queues if queue.resident > limits.HEAD_BYTES_MIN]
            yield from self._while_above(found)

    def _while_above(self, queues: Iterable["Queue"]) -> Iterator["Queue"]:
        for queue in sorted(queues, key=_resident, reverse=True):
            if self.resident <= self.mark:
                break
            yield queue

    def forgetting(self) -> list[tuple["Queue", int]]:
        """(queue, message-ids to forget), that with most of them first."""
        return _shared(
            [(ids, queue) for queue in self._queues if (ids := queue.sizes[1][3])], self.ids, self.ids_max
        )


def queues_max(mark: int) -> int:
    """Number of queues from which a shard with this mark creates no further one (ADR 54)."""
    size = max(mark // QUEUES_SHARE, QUEUES_BYTES_MIN)
    return min(size // QUEUE_BYTES, limits.QUEUES_MAX)


def _resident(queue: "Queue") -> int:
    return queue.resident


def _shared(sizes: list[tuple[int, "Queue"]], total: int, most: int) -> list[tuple["Queue", int]]:
    """What each queue frees so that the total is somewhat below `most`, the largest first."""
    surplus = total - int(most * MEMORY_LOW_WATER)
    share = most // max(1, len(sizes))
    plan: list[tuple[Queue, int]] = []
    for size, queue in sorted(sizes, key=itemgetter(0), reverse=True):
        if surplus <= 0:
            break
        wanted = min(surplus, max(size - share, size // 8))
        plan.append((queue, wanted))
        surplus -= wanted
    return plan
