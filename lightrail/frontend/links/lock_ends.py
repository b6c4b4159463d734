"""Ends of the locks of one link's deliveries, as far as a frontend knows them."""

from collections import deque

from lightrail.model import limits


class LockEnds:
    """Separates deliveries whose locks have certainly not ended from those of which only the shard knows.

    A renewal is not noted: a delivery whose lock was renewed is of the second kind near its first end.
    """

    __slots__ = ("_doubtful", "_ends", "_next")

    def __init__(self) -> None:
        self._doubtful = 0
        self._next = 0
        """The number of the next delivery."""
        self._ends: deque[tuple[int, int]] = deque()
        """Rising: a delivery number, and the earliest end of the locks from there to the next entry."""

    def add(self, first: int, count: int, until_ms: int) -> None:
        """The deliveries numbered first .. first+count-1, the latest, are locked until `until_ms`."""
        self._next = first + count
        ends = self._ends
        while ends and ends[-1][1] > until_ms:
            # Locks became shorter meanwhile.
            first, _ = ends.pop()
        if ends and (until_ms - ends[-1][1] < limits.LOCK_ENDS_APART_MS or len(ends) == limits.LOCK_ENDS_MAX):
            return
        ends.append((first, until_ms))

    def doubtful(self, now_ms: int) -> int:
        """The number below which the lock of a delivery may have ended; all others have not."""
        ends = self._ends
        while ends and ends[0][1] - limits.LOCK_DOUBT_MS <= now_ms:
            ends.popleft()
            self._doubtful = ends[0][0] if ends else self._next
        return self._doubtful
