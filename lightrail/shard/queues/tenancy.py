"""Tenancy: the names that placements assign to this shard, and their epochs.

`ClusterMap` is the port to the map of the cluster. `EverythingHere` is the one in memory: every name is at
this shard in epoch 1. The rules for a queue that this shard stores are in ownership.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lightrail.cluster.map import MapChanges, Move, Placed
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.shard.queues.declarations import Names
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import EPOCHS


class ClusterMap(Protocol):
    """The map of the cluster as a shard uses it; `lightrail.cluster.map.Map` is one."""

    @property
    def moves(self) -> dict[str, Move]:
        """Moves under way by queue; callers must not change it."""

    def refresh(self) -> None:
        """Follows changes, and calls the listeners. Raises CoordinatorError."""

    def placed(self, queue: str) -> Placed | None:
        """The placement of a queue, or None; ``NAME/$dlq`` has that of NAME."""

    def queues_of(self, shard: int) -> Sequence[str]:
        """The queues that a shard owns, of which it may not have all yet."""

    def listen(self, listener: Callable[[MapChanges], None]) -> None:
        """Adds a listener for later changes."""


class EverythingHere:
    """A map in which every name is always at this shard, in epoch 1."""

    def __init__(self, shard: int) -> None:
        self._placed = Placed(shard, 1, 1)
        self.moves: dict[str, Move] = {}

    def refresh(self) -> None:
        """See `ClusterMap`."""

    def placed(self, queue: str) -> Placed | None:
        """See `ClusterMap`."""
        return self._placed

    def queues_of(self, shard: int) -> Sequence[str]:
        """See `ClusterMap`: it does not know their names."""
        return []

    def listen(self, listener: Callable[[MapChanges], None]) -> None:
        """See `ClusterMap`."""


@dataclass(slots=True, eq=False, repr=False)
class Tenancy:
    """The queues that this shard owns by their placement."""

    shard: int
    map: ClusterMap
    _names: Names

    def placed_here(self, name: str) -> Placed | None:
        """The placement of a queue if it is at this shard, else None."""
        placed = self.map.placed(name)
        return placed if placed is not None and placed.shard == self.shard else None

    def epoch_of(self, name: str) -> int:
        """The epoch of a queue that is created at this shard."""
        placed = self.placed_here(name)
        return 1 if placed is None else placed.epoch

    def refusal(self, name: str, epoch: int) -> Refusal | None:
        """Why a name can't be opened at this shard; None if it can.

        Args:
            epoch: the epoch of the request; 0 if it has none.
        """
        placed = self.map.placed(name)
        if placed is None:
            found = self._names.get(name)
            if found.role not in (Role.NONE, Role.QUEUE, Role.CONNECTION_POINT):
                return None
            return moved(f"shard {self.shard} has no placement of {name} yet")
        if placed.shard != self.shard:
            return moved(f"{name} is at shard {placed.shard} in epoch {placed.epoch}")
        if epoch and (epoch ^ placed.epoch) & EPOCHS:
            return moved(f"{name} is at shard {self.shard} in epoch {placed.epoch}, not in epoch {epoch}")
        return None


def moved(description: str) -> Refusal:
    """The refusal of a request at the wrong shard, or in another epoch."""
    return Refusal(conditions.MOVED, description)


def no_room(queues: int) -> Refusal:
    """The refusal of one more queue at a shard that may have so many."""
    return Refusal(
        conditions.RESOURCE_LIMIT_EXCEEDED,
        f"this shard has no room for one more queue: it has the {queues} that memory_mark allows, or its "
        "disk is full; delete some, or use another shard or a larger memory_mark",
    )
