"""Outcomes that the broker has to settle (receiver-settle-mode second), until they are on disk."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

UNCONFIRMED: Final = (
    "expected the queue's shard to store your outcomes before they are settled here, found that it was "
    "restarted or had no room; attach again: deliveries without a stored outcome are delivered again"
)
"""Error for a client whose outcomes can't be confirmed."""

Range = tuple[int, int, Any]
"""First and last delivery number, and the state that the client sent for all of them."""


class Unconfirmed:
    """The outcomes of one link, by delivery number."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, number: int) -> bool:
        return number in self._states

    def add(self, first: int, last: int, state: Any) -> list[Range]:
        """Adds outcomes that the client waits for. Returns the new ones: the first state counts."""
        new = self._others(first, last, state)
        for number in range(first, last + 1):
            self._states.setdefault(number, state)
        return new

    def drop(self, first: int, last: int, state: Any) -> list[Range]:
        """Removes outcomes that the client settles. Returns those that were not sent to the shard yet."""
        others = self._others(first, last, state)
        for number in range(first, last + 1):
            self._states.pop(number, None)
        return others

    def take(self, first: int, count: int) -> list[Range]:
        """Removes outcomes that the shard has stored. Returns those that the client waits for."""
        states = self._states
        there = (number for number in range(first, first + count) if number in states)
        return list(_ranges((number, states.pop(number)) for number in there))

    def all(self) -> list[Range]:
        """All outcomes that the shard has not answered."""
        return list(_ranges(sorted(self._states.items(), key=lambda each: each[0])))

    def clear(self) -> None:
        self._states.clear()

    def _others(self, first: int, last: int, state: Any) -> list[Range]:
        others = (number for number in range(first, last + 1) if number not in self._states)
        return list(_ranges((number, state) for number in others))


def _ranges(outcomes: Iterable[tuple[int, Any]]) -> Iterator[Range]:
    """Ranges of consecutive numbers with one state, of (number, state) in rising order."""
    first = last = -1
    newest: Any = None
    for number, state in outcomes:
        if first >= 0 and number == last + 1 and state is newest:
            last = number
            continue
        if first >= 0:
            yield first, last, newest
        first = last = number
        newest = state
    if first >= 0:
        yield first, last, newest
