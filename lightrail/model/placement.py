"""Which shard owns a queue, and which moves would even out the load of the shards.

Placement: the shard that owns a queue, and since which epoch.

Plan: the moves of queues that even out the load of the shards; a pure function.

A load is any number that can be summed: the gateway takes BASE for each queue and its messages per second,
and `lightrail-spark plan` messages over hours. A plan is made where the largest load is above TOLERANCE times
the mean, and brings it below AIM, so that a second run right after proposes nothing although two measurements
of a load differ. Draining shards lose all of their queues. Of queues with equal effect, the one with fewer
bytes moves. Each moves once.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, takewhile
from types import MappingProxyType
from typing import Final, NamedTuple


class Placement(NamedTuple):
    """Where a queue is."""

    shard: int
    epoch: int


FORMAT: Final = 1
"""Version of the format of plans (docs/formats/plan.md)."""
KIND: Final = "lightrail-plan"
BASE: Final = 1.0
"""Load of an idle queue; each message per second, in or out, adds one."""
TOLERANCE: Final = 1.10
"""Ratio of the largest load to the mean above which queues move."""
AIM: Final = 1.05
"""Ratio of the largest load to the mean that a plan aims at."""


class QueueLoad(NamedTuple):
    """One queue as it is now."""

    shard: int
    load: float
    bytes: int = 0
    """Bytes of its messages, which a move has to copy."""
    replicas: int = 1
    """Members that its shard has to have."""


class PlannedMove(NamedTuple):
    """One step of a plan."""

    queue: str
    source: int
    to: int
    load: float
    bytes: int


class Sum(NamedTuple):
    """The queues, load and bytes of one shard."""

    queues: int = 0
    load: float = 0.0
    bytes: int = 0

    def plus(self, load: float, bytes: int, sign: int = 1) -> "Sum":
        """With one queue more (`sign` 1) or less (-1)."""
        return Sum(self.queues + sign, self.load + sign * load, self.bytes + sign * bytes)


@dataclass(slots=True)
class MovePlan:
    """The moves in order, and the shards before and after them."""

    moves: list[PlannedMove] = field(default_factory=list)
    before: dict[int, Sum] = field(default_factory=dict)
    after: dict[int, Sum] = field(default_factory=dict)


def plan(
    queues: Mapping[str, QueueLoad],
    active: AbstractSet[int],
    draining: AbstractSet[int] = frozenset(),
    *,
    fixed: Mapping[str, QueueLoad] = MappingProxyType({}),
    max_moves: int | None = None,
    members: Mapping[int, int] = MappingProxyType({}),
) -> MovePlan:
    """Plans the moves.

    A queue on a shard with fewer members than it demands moves to one with enough; without one, it stays.

    Args:
        queues: every queue that may move, by name, with its load (at least 0).
        active: shards that may have queues.
        draining: shards that are to lose all of theirs.
        fixed: queues that do not move now; they count at their shard, or at the destination of their move.
        max_moves: most moves in this plan; the next plan has the others.
        members: how many members a shard is to have, by its number; 1 for others.

    Raises:
        ValueError: queues have to move and no shard is active, or a queue is on an unknown shard.
    """
    unknown = {each.shard for each in queues.values()} - active - draining
    if unknown:
        raise ValueError(f"expected queues on shards that are active or draining, found some on {unknown}")
    if not active and queues:
        raise ValueError("no shard is active: start one, or revive one that drains")
    planner = _Planner(queues, fixed, active | draining, members)
    before = dict(planner.sums)
    limit = len(queues) if max_moves is None else max_moves
    planner.empty(draining, active, limit)
    if active:
        planner.level(active, limit)
    return MovePlan(list(planner.moves.values()), before, planner.sums)


class _Planner:
    def __init__(
        self,
        queues: Mapping[str, QueueLoad],
        fixed: Mapping[str, QueueLoad],
        shards: AbstractSet[int],
        members: Mapping[int, int],
    ) -> None:
        self._members = members
        self._demands = {name: each.replicas for name, each in queues.items() if each.replicas > 1}
        """Replicas that queues demand, where it is more than one."""
        self.sums = {shard: Sum() for shard in sorted(shards)}
        self.moves: dict[str, PlannedMove] = {}
        self._there: dict[int, list[tuple[float, int, str]]] = {shard: [] for shard in self.sums}
        """By shard: (load, -bytes, queue) of each queue that may still move, in rising order."""
        for name, (shard, load, bytes, _) in queues.items():
            self.sums[shard] = self.sums[shard].plus(load, bytes)
            self._there[shard].append((load, -bytes, name))
        for shard, load, bytes, _ in fixed.values():
            if shard in self.sums:
                self.sums[shard] = self.sums[shard].plus(load, bytes)
        for there in self._there.values():
            there.sort()

    def empty(self, draining: AbstractSet[int], active: AbstractSet[int], limit: int) -> None:
        """Moves all queues of draining shards, and those that demand more members than their shard has.

        Each goes to the shard with the least load that may have it, the largest queues first.
        """
        leaving = sorted(
            (
                (*each, shard)
                for shard, there in self._there.items()
                for each in (there if shard in draining or self._demands else ())
                if shard in draining or not self._may_be(each[2], shard)
            ),
            key=lambda each: (-each[0], each[2]),
        )
        for load, negative, name, shard in leaving:
            if len(self.moves) >= limit:
                return
            to = next((each for each in self._by_load(active) if self._may_be(name, each)), None)
            if to is not None:
                self._move((load, negative, name), shard, to)

    def _may_be(self, queue: str, shard: int) -> bool:
        return self._demands.get(queue, 1) <= self._members.get(shard, 1)

    def _by_load(self, shards: AbstractSet[int]) -> list[int]:
        """Shards from the least load to the largest."""
        return sorted(shards, key=lambda each: (self.sums[each].load, self.sums[each].queues, each))

    def level(self, active: AbstractSet[int], limit: int) -> None:
        """Moves queues from the shard with the largest load until it is near the mean, or no move helps."""
        mean = sum(self.sums[shard].load for shard in active) / len(active)
        if max(self.sums[shard].load for shard in active) <= TOLERANCE * mean:
            return
        stuck: set[int] = set()
        while len(self.moves) < limit:
            candidates = [shard for shard in active if shard not in stuck]
            if not candidates:
                return
            source = max(candidates, key=lambda shard: (self.sums[shard].load, -shard))
            if self.sums[source].load <= AIM * mean:
                return
            # Where queues demand replicas, the shard with the least load may be one that can't have them.
            for to in self._by_load(active)[: None if self._demands else 1]:
                found = self._choose(source, to, mean)
                if found is not None and self.sums[to].load + found[0] < self.sums[source].load:
                    self._move(found, source, to)
                    break
            else:
                # Each of its queues would make another shard's load the largest.
                stuck.add(source)

    def _choose(self, source: int, to: int, mean: float) -> tuple[float, int, str] | None:
        """The largest queue that moves no more load than wanted; where each moves more, the smallest."""
        there = self._there[source]
        wanted = min(self.sums[source].load - mean, mean - self.sums[to].load)
        end = bisect_right(there, (wanted, 1, ""))
        # Queues of equal load are sorted by falling bytes: the last one is the cheapest to copy. Moving a
        # queue without load changes nothing.
        downwards = takewhile(lambda index: there[index][0] > 0, range(end - 1, -1, -1))
        indices = (index for index in chain(downwards, range(end, len(there))) if there[index][0] > 0)
        return next((there[index] for index in indices if self._may_be(there[index][2], to)), None)

    def _move(self, entry: tuple[float, int, str], source: int, to: int) -> None:
        load, negative, name = entry
        del self._there[source][bisect_left(self._there[source], entry)]
        insort(self._there[to], entry)
        self.sums[source] = self.sums[source].plus(load, -negative, -1)
        self.sums[to] = self.sums[to].plus(load, -negative)
        # A queue that was chosen before moves to the new shard directly, or stays where it is.
        before = self.moves.pop(name, None)
        origin = source if before is None else before.source
        if origin != to:
            self.moves[name] = PlannedMove(name, origin, to, load, -negative)
