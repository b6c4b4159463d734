"""Candidate: whether a member of a shard takes over, and after which time of the owner's silence.

    follow   another member owns, and is heard
    look     the owner is silent: ask the other members in sync how far they reach
    claim    nobody who answered reaches further: become the owner by one guarded write
    yield_   another member reaches further, or knows a newer epoch: let it go first
    out      this member is not in sync, so it may lack accepted records: it can only wait

An entry that was set back with etcd does not say who has everything; the journals do, if enough of them are
compared (`Candidate.is_unknown`, `compared_min`); see ADR 73.

The module is pure: time is an argument. What keeps the shard right is the guarded write alone; ranks and
times only keep members from claiming at once.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from lightrail.wire.replication import Reach

if TYPE_CHECKING:
    from lightrail.cluster.replica_sets import ReplicaSet


SILENCE_NS: Final[int] = 2_500_000_000
"""Silence of an owner after which a member in sync looks around: five beats."""
RANK_NS: Final[int] = 400_000_000
"""How much longer each further member waits: the one before it has looked around and claimed by then."""
LOOK_NS: Final[int] = 300_000_000
"""How long a candidate waits for the answers of other members."""
ENDED_NS: Final[int] = 100_000_000
"""How long it waits for a member whose process has probably ended; a lost connection alone is there again."""
YIELD_NS: Final[int] = 1_000_000_000
"""How long a member lets one that reaches further go first, before it looks around again."""


class Choice(Enum):
    """What a member does next; see the module."""

    FOLLOW = "follow"
    LOOK = "look"
    CLAIM = "claim"
    YIELD = "yield"
    OUT = "out"


@dataclass(slots=True, eq=False, repr=False)
class Candidate:
    """The view of one member."""

    member: str
    reach: Reach

    def is_unknown(self, found: "ReplicaSet") -> bool:
        """Whether the entry does not say who has everything that was accepted: it was set back, as this
        journal is of a later epoch; or the last claim was made after that, and is to be completed."""
        return self.member in found.members and (self.reach.epoch > found.epoch or not found.in_sync)

    def rank(self, found: "ReplicaSet") -> int:
        """Position among the members that may take over from the present owner."""
        may = found.members.keys() if self.is_unknown(found) else found.in_sync
        others = sorted(may - {found.owner})
        return others.index(self.member) if self.member in others else 0

    def next(self, found: "ReplicaSet", silent_ns: int, *, is_refused: bool, successor: str = "") -> Choice:
        """What to do about an owner that has been silent for this time.

        Args:
            is_refused: nothing listens at the owner's address: its process has ended.
            successor: the member that the owner has chosen when it ended; "" for none.
        """
        if self.is_unknown(found):
            # Any member may be the one that reaches furthest: all have the time to start.
            wait_ns = self.rank(found) * RANK_NS + SILENCE_NS
            return Choice.LOOK if silent_ns >= wait_ns else Choice.FOLLOW
        if self.member not in found.in_sync or self.reach.epoch > found.epoch:
            return Choice.OUT
        if found.owner == self.member:
            # This process has replaced the one that owned, which has the directory's lock no longer.
            return Choice.LOOK
        rank = self.rank(found)
        if successor in found.in_sync:
            rank = 0 if successor == self.member else rank + 1
        wait_ns = rank * RANK_NS + (0 if is_refused else SILENCE_NS)
        return Choice.LOOK if silent_ns >= wait_ns else Choice.FOLLOW

    def judge(self, answers: Collection[Reach], compared: int = 1) -> Choice:
        """What to do after a look around.

        Args:
            answers: those of the other members that came in time.
            compared: with how many journals, its own included, this one is compared before a claim.
        """
        if any(each > self.reach for each in answers):
            return Choice.YIELD
        return Choice.CLAIM if 1 + len(answers) >= compared else Choice.OUT


def compared_min(found: "ReplicaSet", *, is_unknown: bool) -> int:
    """With how many journals, its own included, an owner has compared its own before it begins.

    Where nobody is known to have everything, these are so many of all members that each set which can have
    accepted something has one of them."""
    if is_unknown:
        return max(1, max(found.replicas, len(found.members)) - found.min_in_sync + 1)
    return min(found.min_in_sync, len(found.in_sync))
