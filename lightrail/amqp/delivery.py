"""Deliveries: their numbers, what is known of the unsettled ones, and the halves of those still under way.

Delivery-ids are RFC 1982 serial numbers of 32 bits on the wire. Inside, and in events, they are plain
integers that go on rising past 2**32 ("unwrapped"): the wire's number is the low 32 bits, and a number from
the wire means the integer nearest to the one that is expected. So ranges compare like integers everywhere
else.

Unsettled deliveries are kept as ranges, never one object each: a thousand deliveries in a row cost one range.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.amqp.link import Link

WIRE: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


def unwrap(wire: int, near: int) -> int:
    """The integer closest to `near` whose low 32 bits are `wire` (RFC 1982 with SERIAL_BITS 32)."""
    return near + ((wire - near + _HALF) & WIRE) - _HALF


def signed(wire_difference: int) -> int:
    """A difference of two serial numbers, below zero when the first is behind the second."""
    return ((wire_difference + _HALF) & WIRE) - _HALF


class Range:
    """Unsettled deliveries first..last of one link; `shift` turns a session's number into the link's own."""

    __slots__ = ("first", "last", "link", "second", "shift")

    def __init__(self, link: "Link", first: int, last: int, shift: int, second: bool) -> None:
        self.link = link
        self.first = first
        self.last = last
        self.shift = shift
        self.second = second
        """The receiver may not settle before the sender has (rcv-settle-mode second)."""

    def __repr__(self) -> str:
        return f"Range({self.link.name!r}, {self.first}..{self.last})"


def _last(unsettled: Range) -> int:
    return unsettled.last


class Unsettled:
    """The unsettled deliveries of a session in one direction, in the order of their ids."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[Range] = []

    def add(self, link: "Link", first: int, last: int, shift: int = 0, second: bool = False) -> None:
        """Remember first..last; joined to the newest range where it continues it."""
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

    def find(self, first: int, last: int) -> list[Range]:
        """Copies of what is unsettled between first and last, up to the end of a piece."""
        return self._overlap(first, last, None, False)

    def take(self, first: int, last: int, link: "Link | None" = None) -> list[Range]:
        """Forget what is unsettled between first and last (of one link if given) and return it as ranges.

        One call covers a piece at most: limits.SETTLED_RANGES_AT_ONCE ranges, or parts of them, with
        limits.SETTLED_AT_ONCE deliveries. Whoever may mean more asks again from behind the last one.
        """
        ranges = self.ranges
        if ranges and last - first < limits.SETTLED_AT_ONCE:
            oldest = ranges[0]
            if oldest.first == first and last < oldest.last and (link is None or link is oldest.link):
                oldest.first = last + 1
                return [Range(oldest.link, first, last, oldest.shift, oldest.second)]
        return self._overlap(first, last, link, True)

    def _overlap(self, first: int, last: int, link: "Link | None", forget: bool) -> list[Range]:
        ranges = self.ranges
        index = 0
        if len(ranges) > 8:
            index = bisect_left(ranges, first, key=_last)
        found: list[Range] = []
        kept: list[Range] = []
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
            # In one go: taking out one by one would move all others for each.
            ranges[start:index] = kept
        return found

    def take_numbered(self, link: "Link", first: int, last: int) -> list[Range]:
        """Forget a link's own numbers first..last and return them as ranges of the session's ids."""
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
        found: list[Range] = []
        for low, high in meant:
            while low <= high and (taken := self.take(low, high, link)):
                found += taken
                low = taken[-1].last + 1
        return found

    def drop(self, link: "Link") -> None:
        """Forget everything of a link that is gone."""
        if self.ranges:
            self.ranges = [kept for kept in self.ranges if kept.link is not link]

    def count(self) -> int:
        """Deliveries, not ranges."""
        return sum(kept.last - kept.first + 1 for kept in self.ranges)


class Assembly:
    """An incoming delivery of several frames whose last has not come yet (2.6.14)."""

    __slots__ = (
        "delivery_id",
        "held_bytes",
        "looked_at",
        "message_format",
        "parts",
        "resumed",
        "second",
        "settled",
        "size",
        "tag",
    )

    def __init__(self, delivery_id: int, tag: bytes, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = False
        self.second = False
        self.resumed = False
        self.parts: list[bytes | memoryview] = []
        """Its payload so far, frame by frame."""
        self.looked_at = 0
        """Parts before this one are bytes, or views that may stay."""
        self.size = 0
        self.held_bytes = 0
        """What the parts take in memory."""

    def copy_views(self) -> None:
        """The read that new parts are views of is over: it is kept in memory only where it is mostly theirs.

        So an unfinished message takes at most a third more than its parts have.
        """
        parts = self.parts
        first = self.looked_at
        while first < len(parts):
            view = parts[first]
            last = first + 1
            if type(view) is memoryview:
                read = view.obj
                size = len(view)
                while last < len(parts) and getattr(parts[last], "obj", None) is read:
                    size += len(parts[last])
                    last += 1
                if 4 * size < 3 * memoryview(read).nbytes:
                    parts[first:last] = [bytes(part) for part in parts[first:last]]
            first = last
        self.looked_at = first


class Backlog:
    """Outgoing messages of one send that wait for the session's window or for credit to come back."""

    __slots__ = (
        "base",
        "blob",
        "count",
        "delivery_id",
        "ends",
        "index",
        "message_format",
        "offset",
        "settled",
    )

    def __init__(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | memoryview,
        base: int,
        settled: bool,
        message_format: int,
    ) -> None:
        self.count = count
        self.ends = ends
        self.blob = blob
        self.base = base
        self.settled = settled
        self.message_format = message_format
        self.index = 0
        """The message that is sent next, or is being sent."""
        self.offset = 0
        """Bytes of it that have gone out in earlier frames."""
        self.delivery_id = 0
        """Its id, once its first frame has gone out."""
