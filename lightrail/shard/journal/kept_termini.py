"""The termini of clients' links that a store keeps, as its records have them.

A terminus is in its records from the oldest one on, like a message and unlike a queue: a snapshot with the
tags of all of them would be too long to write at the head of each segment (ADR 47). The cleaner writes a
terminus again, as one record, before the segment with its oldest record is removed.
"""

from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from lightrail.journal.record import REWRITTEN
from lightrail.journal.terminus import TERMINUS_FIXED, Terminus, TerminusEvent
from lightrail.model import limits


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
        """The segment with its oldest record that is still needed: all of its bytes count as live there."""
        self.size = TERMINUS_FIXED.size
        """Bytes of one record with all of it."""
        self.user = ""
        self.durability = 0
        self.suspended_ms = 0
        self.tags: dict[bytes, None] = {}
        """In the order of storing."""

    def store(self, tags: Sequence[bytes]) -> None:
        """Adds tags; those that it had become the last ones."""
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


class KeptTermini:
    """The termini of all queues, by queue."""

    __slots__ = ("_by_queue",)

    def __init__(self) -> None:
        self._by_queue: dict[int, dict[bytes, KeptTerminus]] = {}

    def apply(self, record: Terminus, segment: int) -> Applied:
        """Applies a record, which is in this segment."""
        known = self._by_queue.get(record.queue, {})
        kept = known.get(record.link)
        if record.event in (TerminusEvent.SETTLED, TerminusEvent.ENDED):
            if kept is None:
                return Applied()
            before = kept.size
            if record.event == TerminusEvent.SETTLED:
                kept.settle(record.tags)
                return Applied([], [(kept.segment, kept.size - before)])
            del known[record.link]
            if not known:
                del self._by_queue[record.queue]
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

    def forget(self, queue: int) -> list[tuple[int, int]]:
        """Removes the termini of a deleted queue; returns (segment, bytes) by which live bytes change."""
        return [(kept.segment, -kept.size) for kept in self._by_queue.pop(queue, {}).values()]

    @property
    def live(self) -> Iterator[tuple[int, int]]:
        """(segment, bytes) of each terminus."""
        for known in self._by_queue.values():
            for kept in known.values():
                yield kept.segment, kept.size

    def keep_only(self, queues: Container[int]) -> None:
        """Removes the termini of all other queues."""
        self._by_queue = {queue: known for queue, known in self._by_queue.items() if queue in queues}

    def in_segment(self, segment: int) -> Iterator[Terminus]:
        """Termini with their oldest record in this segment, each as the record to append in its place."""
        for queue, known in self._by_queue.items():
            for link, kept in known.items():
                if kept.segment == segment:
                    yield _whole(queue, link, kept)

    def of(self, queue: int) -> list[RecoveredTerminus]:
        """The termini of a queue."""
        return [
            RecoveredTerminus(link, kept.durability, kept.suspended_ms, [*kept.tags], kept.user)
            for link, kept in self._by_queue.get(queue, {}).items()
        ]


def _whole(queue: int, link: bytes, kept: KeptTerminus) -> Terminus:
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
