"""Kept links: what a store keeps of clients' links that may be resumed, as the records have it.

Of a link on which the client sends it is the terminus, with the delivery-tags of stored messages; of one on
which the client receives, the receiver with its unsettled deliveries. Each is in its records from the oldest
one on, like a message and unlike a queue: a snapshot with the state of all of them would be too long to write
at the head of each segment (ADR 47). The cleaner writes it again, as one record, before the segment with its
oldest record is removed.
"""

from abc import abstractmethod
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from lightrail.journal.record import (
    DELIVERY_RUN,
    RECEIVER_FIXED,
    REWRITTEN,
    TERMINUS_FIXED,
    DeliveryRun,
    ReceiverChange,
    ReceiverEvent,
    Terminus,
    TerminusEvent,
)
from lightrail.model import limits


class KeptState(Protocol):
    """One kept link."""

    segment: int
    """The segment with its oldest record that is still needed: all of its bytes count as live there."""

    @property
    def size(self) -> int:
        """Bytes of one record with all of it."""


KeptLink = TypeVar("KeptLink", bound=KeptState)
Record = TypeVar("Record", Terminus, ReceiverChange)


@dataclass(slots=True, eq=False, repr=False)
class KeptLinks(Generic[KeptLink, Record]):
    """The kept links of all queues, by queue and by the digits of the client's link."""

    _by_queue: dict[int, dict[bytes, KeptLink]] = field(default_factory=dict)

    def forget(self, queue: int) -> list[tuple[int, int]]:
        """Removes the links of a deleted queue; returns (segment, bytes) by which live bytes change."""
        return [(kept.segment, -kept.size) for kept in self._by_queue.pop(queue, {}).values()]

    def keep_only(self, queues: Container[int]) -> None:
        """Removes the links of all other queues."""
        self._by_queue = {queue: known for queue, known in self._by_queue.items() if queue in queues}

    def forget_before(self, segment: int) -> None:
        """Removes the links that are in lower segments."""
        for queue, known in [*self._by_queue.items()]:
            for link in [link for link, kept in known.items() if kept.segment < segment]:
                self._drop(queue, link)

    @property
    def live(self) -> Iterator[tuple[int, int]]:
        """(segment, bytes) of each link."""
        for known in self._by_queue.values():
            for kept in known.values():
                yield kept.segment, kept.size

    def in_segment(self, segment: int) -> Iterator[Record]:
        """Links with their oldest record in this segment, each as the record to append in its place."""
        for queue, known in self._by_queue.items():
            for link, kept in known.items():
                if kept.segment == segment:
                    yield self._whole(queue, link, kept)

    def whole(self, queue: int, link: bytes) -> Record | None:
        """A link as one record; None if nothing of it is kept."""
        kept = self._by_queue.get(queue, {}).get(link)
        return None if kept is None else self._whole(queue, link, kept)

    @abstractmethod
    def _whole(self, queue: int, link: bytes, kept: KeptLink) -> Record: ...

    def _drop(self, queue: int, link: bytes) -> None:
        known = self._by_queue[queue]
        del known[link]
        if not known:
            del self._by_queue[queue]


# --- links on which clients send ---------------------------------------------------------------------------


class RecoveredTerminus(NamedTuple):
    """A terminus of a queue as it was when the store was last written."""

    link: bytes
    """16 bytes: the digits of the client's link."""
    durability: int
    suspended_ms: int
    tags: list[bytes]
    """In the order of storing."""
    user: str = ""
    """Towards whose share it counts."""


class Applied(NamedTuple):
    """The effects of a record."""

    dropped: list[bytes] = []
    """Tags of which the terminus had too many."""
    live: list[tuple[int, int]] = []
    """(segment, bytes): by how much the live bytes of segments have changed."""
    user: str = ""
    """Of the terminus."""


class KeptTerminus:
    """One terminus."""

    __slots__ = ("durability", "segment", "size", "suspended_ms", "tags", "user")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.size = TERMINUS_FIXED.size
        """Bytes of one record with all of it."""
        self.user = ""
        self.durability = 0
        self.suspended_ms = 0
        self.tags: dict[bytes, None] = {}
        """In the order of storing."""

    def store(self, tags: Sequence[bytes]) -> None:
        """Adds tags; a tag that is already stored moves to the end."""
        for tag in tags:
            if tag in self.tags:
                del self.tags[tag]
            else:
                self.size += 1 + len(tag)
            self.tags[tag] = None

    def settle(self, tags: Sequence[bytes]) -> None:
        """Removes tags."""
        for tag in tags:
            if tag in self.tags:
                del self.tags[tag]
                self.size -= 1 + len(tag)

    def belong(self, user: str) -> None:
        """Sets the user."""
        self.size += len(user.encode()) - len(self.user.encode())
        self.user = user


class KeptTermini(KeptLinks[KeptTerminus, Terminus]):
    """The termini of all queues."""

    __slots__ = ()

    def apply(self, record: Terminus, segment: int) -> Applied:
        """Applies a record, which is in this segment."""
        kept = self._by_queue.get(record.queue, {}).get(record.link)
        if record.event in (TerminusEvent.SETTLED, TerminusEvent.ENDED):
            if kept is None:
                return Applied()
            before = kept.size
            if record.event == TerminusEvent.SETTLED:
                kept.settle(record.tags)
                return Applied([], [(kept.segment, kept.size - before)])
            self._drop(record.queue, record.link)
            return Applied([], [(kept.segment, -before)])
        live: list[tuple[int, int]] = []
        if kept is None:
            kept = self._by_queue.setdefault(record.queue, {})[record.link] = KeptTerminus(segment)
        else:
            live.append((kept.segment, -kept.size))
            if record.flags & REWRITTEN:
                kept.segment = segment
        kept.durability, kept.suspended_ms = record.durability, record.suspended_ms
        if record.event == TerminusEvent.BEGUN:
            kept.belong(record.user)
        kept.store(record.tags)
        dropped = [*islice(kept.tags, max(0, len(kept.tags) - limits.UNSETTLED_TAGS_MAX))]
        kept.settle(dropped)
        live.append((kept.segment, kept.size))
        return Applied(dropped, live, kept.user)

    def of(self, queue: int) -> list[RecoveredTerminus]:
        """The termini of a queue."""
        return [
            RecoveredTerminus(link, kept.durability, kept.suspended_ms, [*kept.tags], kept.user)
            for link, kept in self._by_queue.get(queue, {}).items()
        ]

    def _whole(self, queue: int, link: bytes, kept: KeptTerminus) -> Terminus:
        return Terminus(
            queue,
            link,
            TerminusEvent.BEGUN,
            kept.durability,
            kept.suspended_ms,
            [*kept.tags],
            REWRITTEN,
            kept.user,
        )


# --- links on which clients receive ------------------------------------------------------------------------


class RecoveredReceiver(NamedTuple):
    """A receiver of a queue as it was when the store was last written."""

    link: bytes
    """16 bytes: the digits of the client's link."""
    next: int
    """Its next delivery number."""
    opening: bytes
    """The body of its CONSUMER_OPEN."""
    runs: list[DeliveryRun]
    """Its unsettled deliveries, by number. Some of the messages may have left the queue."""


@dataclass(slots=True, eq=False, repr=False)
class KeptReceiver:
    """One receiver."""

    segment: int
    next: int = 0
    opening: bytes = b""
    runs: list[DeliveryRun] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of one record with all of it."""
        return RECEIVER_FIXED.size + len(self.opening) + DELIVERY_RUN.size * len(self.runs)


class KeptReceivers(KeptLinks[KeptReceiver, ReceiverChange]):
    """The receivers of all queues."""

    __slots__ = ()

    def apply(self, record: ReceiverChange, segment: int) -> list[tuple[int, int]]:
        """Applies a record, which is in this segment.

        Returns:
            (segment, bytes): by how much the live bytes of segments change.
        """
        kept = self._by_queue.get(record.queue, {}).get(record.link)
        live = [] if kept is None else [(kept.segment, -kept.size)]
        if record.event == ReceiverEvent.ENDED:
            if kept is not None:
                self._drop(record.queue, record.link)
            return live
        if kept is None:
            if record.event != ReceiverEvent.BEGUN:
                # Its beginning is lost.
                return []
            kept = self._by_queue.setdefault(record.queue, {})[record.link] = KeptReceiver(segment)
        elif record.flags & REWRITTEN:
            kept.segment = segment
        if record.event == ReceiverEvent.BEGUN:
            kept.opening = record.opening
        kept.next = max(kept.next, record.next)
        kept.runs = without(kept.runs, record.runs)
        if record.event != ReceiverEvent.SETTLED:
            kept.runs = joined([*kept.runs, *record.runs])
        live.append((kept.segment, kept.size))
        return live

    def of(self, queue: int) -> list[RecoveredReceiver]:
        """The receivers of a queue."""
        return [
            RecoveredReceiver(link, kept.next, kept.opening, kept.runs)
            for link, kept in self._by_queue.get(queue, {}).items()
        ]

    def _whole(self, queue: int, link: bytes, kept: KeptReceiver) -> ReceiverChange:
        return ReceiverChange(queue, link, ReceiverEvent.BEGUN, kept.next, kept.opening, kept.runs, REWRITTEN)


def joined(runs: list[DeliveryRun]) -> list[DeliveryRun]:
    """Runs in the order of their numbers; neighbours that are consecutive in both become one."""
    found: list[DeliveryRun] = []
    for number, sequence, count in sorted(runs):
        if found:
            before, at, length = found[-1]
            if (before + length, at + length) == (number, sequence):
                found[-1] = (before, at, length + count)
                continue
        found.append((number, sequence, count))
    return found


def without(runs: list[DeliveryRun], removed: Sequence[DeliveryRun]) -> list[DeliveryRun]:
    """The parts of runs whose delivery numbers are in none of `removed`; both are in order."""
    if not removed:
        return runs
    left: list[DeliveryRun] = []
    index = 0
    for number, sequence, count in runs:
        first, end = number, number + count
        while index < len(removed) and removed[index][0] + removed[index][2] <= first:
            index += 1
        at = index
        while first < end:
            if at == len(removed) or removed[at][0] >= end:
                left.append((first, sequence + first - number, end - first))
                break
            start, stop = removed[at][0], removed[at][0] + removed[at][2]
            if start > first:
                left.append((first, sequence + first - number, start - first))
            first = max(first, stop)
            at += 1
    return left
