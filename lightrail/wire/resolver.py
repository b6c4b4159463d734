"""Resolver: which shard has a queue, and the connection to that shard, as a port."""

from typing import Protocol

from lightrail.model.placement import Placement
from lightrail.wire.bodies import Refusal
from lightrail.wire.shards import ShardPeer


class Resolver(Protocol):
    """Placements and shards, as owners need them; nothing but `place` and `lost` waits."""

    def placement(self, queue: str) -> Placement | None:
        """Where a queue is, as far as this process knows."""
        ...

    async def place(self, queue: str) -> Placement:
        """The same; a queue without a placement is placed. Raises CoordinatorError."""
        ...

    def peer(self, shard: int) -> ShardPeer | None:
        """The connection to a shard, or None as long as its address is not known."""
        ...

    def refresh(self) -> None:
        """Reads what has changed; calls `Owners.changed` meanwhile."""
        ...

    async def lost(self, queue: str) -> Refusal | None:
        """Why a queue does not exist, by the coordinator; None where it exists, or this is not known."""
        ...
