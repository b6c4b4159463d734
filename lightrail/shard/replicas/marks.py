"""Marks: how far each member of a shard has synced the journal, and which commits are accepted.

A commit is accepted when the owner and every other member of the required set have synced it in the owner's
epoch. Acceptance never goes back: a member that is required from now on, and has less, stops later commits.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from lightrail.cluster.replica_sets import ReplicaSet


_Commit = TypeVar("_Commit")
MISSING: Final = ""
"""Required while fewer members than the minimum are in sync: a member that never acknowledges."""


def required(found: "ReplicaSet", *others: str) -> frozenset[str]:
    """The members that are required beside the owner, those of a change under way included."""
    missing = {MISSING} if len(found.in_sync) < found.min_in_sync else set()
    return (found.in_sync | missing | set(others)) - {found.owner}


@dataclass(slots=True, eq=False, repr=False)
class Marks(Generic[_Commit]):
    """The marks of one owner; a mark is the number of the last record that a member has synced."""

    others: frozenset[str] = frozenset()
    """Members that are required beside the owner."""
    _synced: dict[str, int] = field(default_factory=dict)
    """By member, required or not."""
    _waiting: deque[tuple[int, _Commit]] = field(default_factory=deque)
    """Commits that the owner has synced and other members have not, with the mark at their end; their bytes
    are bounded by what the owner keeps for a member before it no longer requires the member."""

    def require(self, *sets: Iterable[str]) -> None:
        """Requires the other members of a set; of two sets while it is unknown which of them is in force."""
        self.others = frozenset().union(*sets)

    def synced(self, member: str, lsn: int) -> None:
        """Sets the mark of another member: lower than before if its disk was set back."""
        self._synced[member] = lsn

    def mark(self, member: str) -> int:
        """The mark of another member; 0 for one that has not acknowledged anything."""
        return self._synced.get(member, 0)

    @property
    def waits(self) -> bool:
        """Whether commits that the owner has synced wait for other members."""
        return bool(self._waiting)

    def ended(self, lsn: int, commit: _Commit) -> None:
        """Adds a commit that the owner has synced, and whose last record ends a group: recovery cuts a group
        without its end, so there is no mark within one."""
        self._waiting.append((lsn, commit))

    def take_accepted(self) -> list[_Commit]:
        """Removes and returns the commits that are accepted since the last call, in their order."""
        waiting, accepted = self._waiting, []
        marks = [self._synced.get(member, 0) for member in self.others]
        while waiting and all(waiting[0][0] <= mark for mark in marks):
            accepted.append(waiting.popleft()[1])
        return accepted
