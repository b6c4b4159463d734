"""The deliveries that a transaction has settled, by the ids of their sessions.

A client may give a delivery an outcome twice in one transaction, also after the broker has settled it. Of all
other deliveries that are not unsettled (any more), an outcome makes the transaction fail.
"""

from bisect import bisect_left
from operator import itemgetter

_last = itemgetter(1)


class NamedDeliveries:
    """Ranges of delivery-ids of sessions, ends included, in order and apart."""

    __slots__ = ("_by_session",)

    def __init__(self) -> None:
        self._by_session: dict[object, list[tuple[int, int]]] = {}

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
