"""Places that a test sets: where queues are and which shards are known, for owners without a coordinator."""

from typing import Any

from lightrail.wire.bodies import Refusal
from lightrail.wire.owners import Owners
from lightrail.wire.places import Place


class FixedPlaces:
    """See lightrail/wire/places.py. `soon` is what the next refresh finds."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.peers: dict[int, Any] = {}
        self.soon: dict[str, Place] = {}
        self.gone: Refusal | None = None
        self.owners: Owners | None = None
        self.refreshed = 0

    def where(self, queue: str) -> Place | None:
        return self.places.get(queue)

    async def place(self, queue: str) -> Place:
        return self.places[queue]

    def peer(self, shard: int) -> Any:
        return self.peers.get(shard)

    def refresh(self) -> None:
        self.refreshed += 1
        soon, self.soon = self.soon, {}
        if soon:
            self.places.update(soon)
            if self.owners is not None:
                self.owners.changed(soon)

    async def lost(self, queue: str) -> Refusal | None:
        return self.gone


class FakeShardConnections:
    """As much of ShardConnections as a link to a router sees."""

    def __init__(self) -> None:
        self.moved = 0
        self.places: dict[str, Place] = {}
        self.owners = self
        self.waits: list[int] = []

    def where(self, queue: str) -> Place | None:
        return self.places.get(queue)

    async def change(self, wait_ms: int) -> None:
        """Nothing is waited for."""
        self.waits.append(wait_ms)
