"""Resolver: finds the shard of a queue, and the connection to that shard, as a port."""

from typing import Protocol

from lightrail.model.placement import Placement
from lightrail.wire.bodies import Refusal
from lightrail.wire.shards import ShardPeer


class Resolver(Protocol):
    """Placements and shards for owners; only `place` and `lost` wait."""

    def placement(self, queue: str) -> Placement | None:
        """The placement of a queue that this process knows, or None."""
        ...

    def is_frozen(self, queue: str, epoch: int) -> bool:
        """Whether a move is known to freeze the queue at its shard in this epoch: the shard refuses links
        until the queue is placed anew."""
        ...

    async def place(self, queue: str) -> Placement:
        """The placement of a queue; a queue without one is placed. Raises CoordinatorError."""
        ...

    def peer(self, shard: int) -> ShardPeer | None:
        """The connection to a shard, or None while its address is not known."""
        ...

    def refresh(self) -> None:
        """Applies changes of placements; calls `Owners.changed` for them."""
        ...

    async def lost(self, queue: str) -> Refusal | None:
        """Why a queue does not exist, by the coordinator; None if it exists, or this is not known."""
        ...
