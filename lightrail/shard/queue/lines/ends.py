"""Ends: when each lock under a key ends, by delivery number, and what counts if its link has ended before."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lightrail.model import limits


@dataclass(slots=True, eq=False, repr=False)
class Ends:
    """The ends of the locks of one consumer, in milliseconds since the epoch; 0 for a lock without an end.

    Deliveries are added in the order of their numbers. A number that is given again, as the first delivery
    under it was not sent to the client, has its new end alone.
    """

    _firsts: list[int] = field(default_factory=list)
    """Rising delivery numbers: from each on, up to the next one, the locks have one end."""
    _ends_ms: list[int] = field(default_factory=list)
    _thin_at: int = limits.STALE_ENTRIES_MIN

    def add(self, first: int, until_ms: int) -> None:
        """The deliveries from number `first` on are locked until this time."""
        self._cut(first)
        if not self._ends_ms or self._ends_ms[-1] != until_ms:
            self._firsts.append(first)
            self._ends_ms.append(until_ms)

    def _cut(self, first: int) -> None:
        index = bisect_left(self._firsts, first)
        del self._firsts[index:], self._ends_ms[index:]

    def of(self, number: int) -> int:
        """The end of one lock, unless that was renewed."""
        index = bisect_right(self._firsts, number) - 1
        return self._ends_ms[index] if index >= 0 else 0

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first number, number behind the last, end) of the parts of a range that have one end."""
        while first < last:
            index = bisect_right(self._firsts, first)
            stop = min(last, self._firsts[index]) if index < len(self._firsts) else last
            yield first, stop, self._ends_ms[index - 1] if index else 0
            first = stop

    @property
    def is_crowded(self) -> bool:
        """Whether entries have gathered, most of which may stand for settled deliveries."""
        return len(self._firsts) > self._thin_at

    def thin(self, holds: Callable[[int, int], bool]) -> None:
        """Drops entries without deliveries.

        Args:
            holds: whether any delivery from a number to before another one is in flight.
        """
        firsts = self._firsts
        last = len(firsts) - 1
        # The newest entry stays: deliveries that follow it may have the same end.
        kept = [index for index in range(last) if holds(firsts[index], firsts[index + 1])] + [last]
        self._firsts = [firsts[index] for index in kept]
        self._ends_ms = [self._ends_ms[index] for index in kept]
        self._thin_at = limits.STALE_ENTRIES_MIN + 2 * len(kept)


@dataclass(slots=True, eq=False, repr=False)
class Blame:
    """What the end of a consumer's link says about its locks, which outlive the link (ADR 68).

    A lock that ends by time counts as a failed delivery only if somebody could have settled: who renewed it
    since, or a client that failed while it worked on the oldest delivery (ADR 5).
    """

    oldest: int | None = None
    """The delivery that the client worked on when it failed; None if it did not fail."""
    renewed: set[int] | frozenset[int] = frozenset()
    """Deliveries whose locks were renewed since; a set from the first one on."""

    def renew(self, number: int) -> None:
        """Notes that a lock was renewed."""
        if isinstance(self.renewed, set):
            self.renewed.add(number)
        else:
            self.renewed = {number}

    def counts(self, number: int) -> bool:
        """Whether the end of a lock counts."""
        return number == self.oldest or number in self.renewed

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """(first number, number behind the last, whether their ends count) of a range whose locks have ended;
        the range is forgotten."""
        # Those that count are few, if any.
        numbers = self.renewed if self.oldest is None else {self.oldest, *self.renewed}
        mine = sorted(number for number in numbers if first <= number < last)
        if isinstance(self.renewed, set):
            self.renewed.difference_update(mine)
        for number in mine:
            if first < number:
                yield first, number, False
            yield number, number + 1, True
            first = number + 1
        if first < last:
            yield first, last, False
