"""Unsettled deliveries of a session in one direction, as ranges of their unwrapped ids.

A thousand deliveries in a row cost one range, not an object each.

Delivery-ids: serial numbers of 32 bits on the wire (RFC 1982), rising integers inside.

Inside, and in events, a number goes on rising past 2**32 ("unwrapped"): the wire's number is its low 32 bits,
and a number from the wire means the integer nearest to the expected one. So ranges compare like integers.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from lightrail.amqp.link import Link
from lightrail.model import limits

WIRE: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


def unwrap(wire: int, near: int) -> int:
    """The integer closest to `near` whose low 32 bits are `wire` (RFC 1982 with SERIAL_BITS 32)."""
    return near + ((wire - near + _HALF) & WIRE) - _HALF


def signed(wire_difference: int) -> int:
    """A difference of two serial numbers, below zero when the first is behind the second."""
    return ((wire_difference + _HALF) & WIRE) - _HALF


L = TypeVar("L", bound=Link)


@dataclass(slots=True, eq=False, repr=False)
class Range(Generic[L]):
    """Unsettled deliveries first..last of one link; ids less `shift` are its own numbers, or its tags'."""

    link: L
    first: int
    last: int
    shift: int
    second: bool
    """The receiver may not settle before the sender has (rcv-settle-mode second)."""

    def __repr__(self) -> str:
        return f"Range({self.link.name!r}, {self.first}..{self.last})"


def _last(unsettled: Range[Any]) -> int:
    return unsettled.last


@dataclass(slots=True, eq=False, repr=False)
class Unsettled(Generic[L]):
    """The unsettled deliveries of a session in one direction, in the order of their ids."""

    ranges: list[Range[L]] = field(default_factory=list)

    def add(self, link: L, first: int, last: int, shift: int = 0, second: bool = False) -> None:
        """Add first..last, to the newest range where they continue it."""
        ranges = self.ranges
        if ranges:
            newest = ranges[-1]
            if newest.last >= first:
                # Deliveries of several frames, interleaved over links, complete out of order.
                ranges.insert(bisect_left(ranges, first, key=_last), Range(link, first, last, shift, second))
                return
            if (
                newest.last + 1 == first
                and newest.link is link
                and newest.shift == shift
                and newest.second is second
            ):
                newest.last = last
                return
        ranges.append(Range(link, first, last, shift, second))

    def has(self, link: L, delivery_id: int) -> bool:
        """Whether this delivery of the link is unsettled."""
        index = bisect_left(self.ranges, delivery_id, key=_last)
        if index == len(self.ranges):
            return False
        found = self.ranges[index]
        return found.link is link and found.first <= delivery_id

    def find(self, first: int, last: int) -> list[Range[L]]:
        """Copies of the ranges between first and last that are unsettled, as many as `take` returns."""
        return self._overlap(first, last, None, False)

    def take(self, first: int, last: int, link: L | None = None) -> list[Range[L]]:
        """Remove unsettled deliveries between first and last (of one link if given) and return their ranges.

        One call removes at most limits.SETTLED_RANGES_AT_ONCE ranges, or parts of them, with
        limits.SETTLED_AT_ONCE deliveries; the caller repeats it from behind the last one for more.
        """
        ranges = self.ranges
        if ranges and last - first < limits.SETTLED_AT_ONCE:
            # Most settle from the oldest on: then one range becomes shorter, without a search.
            oldest = ranges[0]
            if oldest.first == first and last < oldest.last and (link is None or link is oldest.link):
                oldest.first = last + 1
                return [Range(oldest.link, first, last, oldest.shift, oldest.second)]
        return self._overlap(first, last, link, True)

    def _overlap(self, first: int, last: int, link: L | None, forget: bool) -> list[Range[L]]:
        ranges = self.ranges
        index = 0
        # Few ranges are walked faster than a search calls its key.
        if len(ranges) > 8:
            index = bisect_left(ranges, first, key=_last)
        found: list[Range[L]] = []
        kept: list[Range[L]] = []
        start = index
        room = limits.SETTLED_AT_ONCE
        most = limits.SETTLED_RANGES_AT_ONCE
        while index < len(ranges) and room > 0 and len(found) < most:
            here = ranges[index]
            if here.first > last:
                break
            index += 1
            if here.last < first or (link is not None and here.link is not link):
                kept.append(here)
                continue
            low = here.first if here.first > first else first
            high = here.last if here.last < last else last
            if high - low >= room:
                high = low + room - 1
            room -= high - low + 1
            found.append(Range(here.link, low, high, here.shift, here.second))
            if not forget:
                continue
            if low > here.first:
                if high < here.last:
                    kept.append(Range(here.link, here.first, low - 1, here.shift, here.second))
                    here.first = high + 1
                else:
                    here.last = low - 1
                kept.append(here)
            elif high < here.last:
                here.first = high + 1
                kept.append(here)
        if forget and found:
            # At once: each removal of one range would move all later ones.
            ranges[start:index] = kept
        return found

    def take_numbered(self, link: L, first: int, last: int) -> list[Range[L]]:
        """Remove a link's own numbers first..last and return them as ranges of the session's ids."""
        meant: list[tuple[int, int]] = []
        for here in self.ranges:
            if here.link is not link:
                continue
            if here.first - here.shift > last:
                # A link's own numbers rise with the session's.
                break
            low = max(first + here.shift, here.first)
            high = min(last + here.shift, here.last)
            if low <= high:
                meant.append((low, high))
        found: list[Range[L]] = []
        for low, high in meant:
            while low <= high and (removed := self.take(low, high, link)):
                found += removed
                low = removed[-1].last + 1
        return found

    def count_numbered(self, link: object, first: int, last: int) -> int:
        """How many of a link's own numbers first..last are unsettled."""
        return sum(
            max(0, min(last, here.last - here.shift) - max(first, here.first - here.shift) + 1)
            for here in self.ranges
            if here.link is link
        )

    def drop(self, link: L) -> None:
        """Remove all deliveries of a link that ended."""
        if self.ranges:
            self.ranges = [kept for kept in self.ranges if kept.link is not link]

    def count(self) -> int:
        """Deliveries, not ranges."""
        return sum(kept.last - kept.first + 1 for kept in self.ranges)
