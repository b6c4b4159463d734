"""Resolvers that a test sets: where queues are and which shards are known, without a coordinator."""

import asyncio
from typing import Any

from lightrail.model import limits
from lightrail.model.placement import Placement
from lightrail.shard_client.owners.owners import Owners
from lightrail.wire.bodies import Refusal


class FixedResolver:
    """Stands in for ShardConnections. `soon` is what the next refresh finds."""

    def __init__(self) -> None:
        self.placements: dict[str, tuple[int, int]] = {}
        self.peers: dict[int, Any] = {}
        self.soon: dict[str, tuple[int, int]] = {}
        self.frozen: set[tuple[str, int]] = set()
        self.gone: Refusal | None = None
        self.owners: Owners | None = None
        self.refreshed = 0

    def placement(self, queue: str) -> Placement | None:
        found = self.placements.get(queue)
        return None if found is None else Placement(*found)

    def is_frozen(self, queue: str, epoch: int) -> bool:
        return (queue, epoch) in self.frozen

    async def place(self, queue: str) -> Placement:
        return Placement(*self.placements[queue])

    def peer(self, shard: int) -> Any:
        return self.peers.get(shard)

    def refresh(self) -> None:
        self.refreshed += 1
        soon, self.soon = self.soon, {}
        if soon:
            self.placements.update(soon)
            if self.owners is not None:
                self.owners.changed(soon)

    async def lost(self, queue: str) -> Refusal | None:
        return self.gone


class FakeShardConnections:
    """As much of ShardConnections as a link to a router sees."""

    def __init__(self) -> None:
        self.moved = 0
        self.placements: dict[str, tuple[int, int]] = {}
        self.owners = self
        self.waits: list[int] = []

    def placement(self, queue: str) -> Placement | None:
        found = self.placements.get(queue)
        return None if found is None else Placement(*found)

    async def change(self, wait_ms: int) -> int:
        """Nothing is waited for but a turn of the loop."""
        await asyncio.sleep(0)
        self.waits.append(wait_ms)
        return min(2 * wait_ms, limits.OWNER_RETRY_MS_MAX)
