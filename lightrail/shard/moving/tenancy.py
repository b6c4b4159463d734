"""Tenancy: which queues are this shard's, and in which epoch, as the placements say.

`Places` is the port to the map of the cluster; `EverythingHere` is the one in memory, for which every name is
at this shard in epoch 1. `judge` is the law by which a queue goes on that is in the journal, or served now.
"""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from lightrail.cluster.map import MapChanges, Move, Placed
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.shard.declarations import Names
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import EPOCHS


class Places(Protocol):
    """What a shard asks of the map of the cluster; `lightrail.cluster.map.Map` is one."""

    @property
    def moves(self) -> dict[str, Move]:
        """Queues on their way to another shard; not to be changed."""

    def refresh(self) -> None:
        """Takes in what changed, and tells who listens. Raises CoordinatorError."""

    def placed(self, queue: str) -> Placed | None:
        """Where a queue is, or None; ``NAME/$dlq`` is where NAME is."""

    def listen(self, listener: Callable[[MapChanges], None]) -> None:
        """Be told what changes from here on."""


class EverythingHere:
    """Every name is at this shard, in epoch 1, and stays."""

    def __init__(self, shard: int) -> None:
        self._placed = Placed(shard, 1, 1)
        self.moves: dict[str, Move] = {}

    def refresh(self) -> None:
        """See `Places`."""

    def placed(self, queue: str) -> Placed | None:
        """See `Places`."""
        return self._placed

    def listen(self, listener: Callable[[MapChanges], None]) -> None:
        """See `Places`."""


class Judgement(Enum):
    """How a queue goes on that is here."""

    SERVED = 1
    """In the epoch that the placement says, which is written down first where it is another one."""
    STAYS = 2
    """As it is: sealed until its move is decided, or a copy that is being made."""
    DROPPED = 3
    """Its owner has all of it, by a move from here that was committed."""
    KEPT = 4
    """Nobody knows whose it is, or its owner does not have what is here: kept, and not served."""


def judge(placed: Placed | None, shard: int, epoch: int, *, copy: bool, sealed: bool) -> Judgement:
    """What becomes of a queue of this shard.

    Args:
        placed: where its placement says that it is.
        epoch: the one that is written down here; of a copy, the one that it will be served in.
    """
    if placed is None:
        return Judgement.STAYS if copy or sealed else Judgement.KEPT
    if copy:
        if placed.epoch == epoch and placed.shard == shard:
            return Judgement.SERVED
        return Judgement.STAYS if placed.epoch < epoch else Judgement.DROPPED
    if placed.shard == shard:
        return Judgement.STAYS if sealed and placed.epoch == epoch else Judgement.SERVED
    if placed.epoch <= epoch:
        return Judgement.STAYS if sealed else Judgement.KEPT
    if sealed and placed.lost <= epoch:
        # Only a queue that was sealed here can have moved away, and a placement is committed after its new
        # owner
        # had synced everything.
        return Judgement.DROPPED
    # An operator gave up this disk while it could not be reached, or the disk is a copy of former times.
    return Judgement.KEPT


class Tenancy:
    """What this shard owns."""

    __slots__ = ("_names", "places", "shard")

    def __init__(self, shard: int, places: Places, names: Names) -> None:
        self.shard = shard
        self.places = places
        self._names = names

    def placed_here(self, name: str) -> Placed | None:
        """The placement of a queue, where it is at this shard."""
        placed = self.places.placed(name)
        return placed if placed is not None and placed.shard == self.shard else None

    def epoch_of(self, name: str) -> int:
        """The epoch of a queue that comes into being here."""
        placed = self.placed_here(name)
        return 1 if placed is None else placed.epoch

    def refusal(self, name: str, epoch: int) -> Refusal | None:
        """Why a name that is not served here can't be opened, or None where it is this shard's.

        Args:
            epoch: as who asks knows it; 0 where it does not say.
        """
        placed = self.places.placed(name)
        if placed is None:
            found = self._names.get(name)
            if found.role not in (Role.NONE, Role.QUEUE, Role.CONNECTION_POINT):
                return None
            return moved(f"shard {self.shard} has not heard where {name} is")
        if placed.shard != self.shard:
            return moved(f"{name} is at shard {placed.shard} in epoch {placed.epoch}")
        if epoch and (epoch ^ placed.epoch) & EPOCHS:
            return moved(f"{name} is at shard {self.shard} in epoch {placed.epoch}, not in epoch {epoch}")
        return None


def moved(description: str) -> Refusal:
    """What somebody is told who asks at the wrong shard, or in another epoch."""
    return Refusal(conditions.MOVED, description)
