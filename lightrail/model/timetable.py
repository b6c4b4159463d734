"""Timetable: things by the time at which each of them is due.

A change, and a look at what is due, cost the same among many things as among few.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)
STALE_MIN: Final = 64
"""Entries of things that were dropped or have another time, beyond those with a time, that may remain."""


class Timetable(Generic[T]):
    """Things, each with one time in milliseconds."""

    __slots__ = ("_heap", "_order", "_times")

    def __init__(self) -> None:
        self._times: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        """(time, order, thing); an entry counts only while the thing has this time."""
        self._order = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, thing: T, time_ms: int) -> None:
        """Adds a thing, or changes its time."""
        self._times[thing] = time_ms
        self._order += 1
        heappush(self._heap, (time_ms, self._order, thing))
        if len(self._heap) > 2 * len(self._times) + STALE_MIN:
            self._heap = [(at_ms, order, each) for order, (each, at_ms) in enumerate(self._times.items())]
            self._order = len(self._heap)
            heapify(self._heap)

    def drop(self, thing: T) -> None:
        """Removes a thing, which need not be there."""
        self._times.pop(thing, None)

    def take_due(self, now_ms: int) -> list[T]:
        """Removes and returns the things whose time has come, the earliest first."""
        found: list[T] = []
        heap, times = self._heap, self._times
        while heap and heap[0][0] <= now_ms:
            time_ms, _, thing = heappop(heap)
            if times.get(thing) == time_ms:
                del times[thing]
                found.append(thing)
        return found
