"""Arrivals per sender, with one byte per sequence number, to find loss, duplicates and disorder.

A link notes runs of consecutive sequence numbers, so that the cost is per run and not per message. A message
that the broker marks as redelivered may have arrived before; it is counted separately.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

FRESH: Final = 1
REDELIVERED: Final = 2
_GROWTH: Final = 65_536
_ANY: Final = bytes([0]) + bytes([1]) * 255
_ONLY_FRESH: Final = bytes([0, 1]) + bytes(254)
EXAMPLES_MAX: Final = 10

Ranges = list[tuple[int, int]]
"""Sequence numbers as (first, last), both included."""


@dataclass(slots=True)
class Arrivals:
    """Messages that arrived at the receivers of one process, or of all."""

    ordered: bool = True
    """Whether the messages of one sender are expected in their order."""
    seen: dict[int, bytearray] = field(default_factory=dict)
    """By origin: at each sequence number 0, FRESH or REDELIVERED."""
    duplicates: int = 0
    """Messages that arrived again without the mark of a redelivery."""
    redelivered: int = 0
    """Messages marked as redelivered."""
    redelivered_duplicates: int = 0
    """Messages that arrived twice, once of them marked."""
    disordered: int = 0
    """Fresh messages that arrived after a later one of the same sender on the same link."""
    misdirected: int = 0
    """Replies to another requester, or with the correlation-id of another request."""
    examples: list[str] = field(default_factory=list)
    """Texts of the first few faults."""

    def note(self, last_of: dict[int, int], origin: int, first: int, end: int) -> None:
        """Count the fresh messages ``first`` to ``end`` (exclusive) of a sender on one link.

        ``last_of`` has the highest sequence number on this link per origin.
        """
        seen = self._of(origin, end)
        again = seen.count(FRESH, first, end)
        if again:
            self.duplicates += again
            self._example(f"duplicate: {again} of the messages {first} to {end - 1} of {origin:#x}")
        again_marked = seen.count(REDELIVERED, first, end)
        self.redelivered_duplicates += again_marked
        last = last_of.get(origin, -1)
        if first <= last and self.ordered:
            late = end - first - again - again_marked
            if late > 0:
                self.disordered += late
                self._example(f"out of order: {first} to {end - 1} of {origin:#x} after {last}")
        seen[first:end] = b"\x01" * (end - first)
        if end - 1 > last:
            last_of[origin] = end - 1

    def note_redelivered(self, origin: int, sequence: int) -> None:
        """Count one message that the broker marked as redelivered; it may be late or a duplicate."""
        seen = self._of(origin, sequence + 1)
        self.redelivered += 1
        if seen[sequence]:
            self.redelivered_duplicates += 1
        seen[sequence] = REDELIVERED

    def note_misdirected(self, requester: int, origin: int, sequence: int) -> None:
        """Count a reply that is not for the requester that received it; both are origins."""
        self.misdirected += 1
        self._example(f"misdirected: reply {sequence} of {origin:#x} went to {requester:#x}")

    def merge(self, other: "Arrivals") -> None:
        """Add the arrivals of another process."""
        self.duplicates += other.duplicates
        self.redelivered += other.redelivered
        self.redelivered_duplicates += other.redelivered_duplicates
        self.disordered += other.disordered
        self.misdirected += other.misdirected
        self.examples = (self.examples + other.examples)[:EXAMPLES_MAX]
        for origin, theirs in other.seen.items():
            ours = self.seen.get(origin)
            if ours is None:
                self.seen[origin] = theirs
                continue
            ours.extend(bytes(max(0, len(theirs) - len(ours))))
            both = _as_number(ours, _ANY) & _as_number(theirs, _ANY)
            fresh = _as_number(ours, _ONLY_FRESH) & _as_number(theirs, _ONLY_FRESH)
            if fresh:
                self.duplicates += fresh.bit_count()
                self._example(f"duplicate: {fresh.bit_count()} of {origin:#x} went to two receivers")
            self.redelivered_duplicates += both.bit_count() - fresh.bit_count()
            union = int.from_bytes(ours, "little") | int.from_bytes(theirs, "little")
            self.seen[origin] = bytearray(union.to_bytes(len(ours), "little"))

    def missing(self, origin: int, count: int, excused: Iterable[tuple[int, int]] = ()) -> Ranges:
        """Ranges of the sequence numbers below ``count`` that did not arrive and are not excused."""
        seen = bytearray(self.seen.get(origin, b""))
        seen.extend(bytes(max(0, count - len(seen))))
        for first, last in excused:
            seen[first : last + 1] = b"\x01" * (last + 1 - first)
        return list(_zeros(seen, 0, count))

    def gaps(self, origin: int) -> Ranges:
        """Ranges between the first and the last that arrived."""
        seen = self.seen[origin].translate(_ANY)
        return list(_zeros(seen, seen.find(1), seen.rfind(1) + 1))

    def _of(self, origin: int, end: int) -> bytearray:
        seen = self.seen.get(origin)
        if seen is None:
            seen = self.seen[origin] = bytearray()
        if len(seen) < end:
            seen.extend(bytes(end - len(seen) + _GROWTH))
        return seen

    def _example(self, text: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def total(ranges: Iterable[tuple[int, int]]) -> int:
    """How many sequence numbers are in the ranges."""
    return sum(last - first + 1 for first, last in ranges)


def _as_number(seen: bytearray, table: bytes) -> int:
    return int.from_bytes(seen.translate(table), "little")


def _zeros(seen: bytearray, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of zero bytes."""
    marked = seen.translate(_ANY)
    while start < end:
        first = marked.find(0, start, end)
        if first < 0:
            return
        next_seen = marked.find(1, first, end)
        last = (end if next_seen < 0 else next_seen) - 1
        yield first, last
        start = last + 1
