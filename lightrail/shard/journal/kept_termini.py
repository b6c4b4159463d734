"""The termini of clients' links that a store keeps, as its records have them.

A terminus is in its records from the oldest one on, like a message and unlike a queue: a snapshot with the
tags of all of them would be too long to write at the head of each segment (ADR 47). The cleaner writes a
terminus again, as one record, before the segment with its oldest record is removed.
"""

from collections.abc import Container, Iterator
from typing import NamedTuple

from lightrail.journal.record import REWRITTEN
from lightrail.journal.terminus import Terminus, TerminusEvent
from lightrail.model import limits


class RecoveredTerminus(NamedTuple):
    """A terminus of a queue as it was when the store was last written."""

    link: bytes
    """16 bytes: the digits of the client's link."""
    durability: int
    suspended_ms: int
    tags: list[bytes]
    """In the order of storing."""


class KeptTerminus:
    """One terminus."""

    __slots__ = ("durability", "segment", "suspended_ms", "tags")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        """The segment with its oldest record that is still needed."""
        self.durability = 0
        self.suspended_ms = 0
        self.tags: dict[bytes, None] = {}
        """In the order of storing."""


class KeptTermini:
    """The termini of all queues, by queue."""

    __slots__ = ("_by_queue",)

    def __init__(self) -> None:
        self._by_queue: dict[int, dict[bytes, KeptTerminus]] = {}

    def apply(self, record: Terminus, segment: int) -> list[bytes]:
        """Applies a record; returns tags that were dropped, as the terminus had too many."""
        known = self._by_queue.get(record.queue, {})
        if record.event == TerminusEvent.ENDED:
            if known.pop(record.link, None) is not None and not known:
                del self._by_queue[record.queue]
            return []
        kept = known.get(record.link)
        if record.event == TerminusEvent.SETTLED:
            if kept is not None:
                for tag in record.tags:
                    kept.tags.pop(tag, None)
            return []
        if kept is None:
            kept = self._by_queue.setdefault(record.queue, {})[record.link] = KeptTerminus(segment)
        elif record.flags & REWRITTEN:
            kept.segment = segment
        kept.durability, kept.suspended_ms = record.durability, record.suspended_ms
        tags = kept.tags
        for tag in record.tags:
            tags.pop(tag, None)
            tags[tag] = None
        dropped: list[bytes] = []
        while len(tags) > limits.UNSETTLED_TAGS_MAX:
            dropped.append(next(iter(tags)))
            del tags[dropped[-1]]
        return dropped

    def forget(self, queue: int) -> None:
        """Removes the termini of a deleted queue."""
        self._by_queue.pop(queue, None)

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
            RecoveredTerminus(link, kept.durability, kept.suspended_ms, [*kept.tags])
            for link, kept in self._by_queue.get(queue, {}).items()
        ]


def _whole(queue: int, link: bytes, kept: KeptTerminus) -> Terminus:
    return Terminus(
        queue, link, TerminusEvent.BEGUN, kept.durability, kept.suspended_ms, [*kept.tags], REWRITTEN
    )
