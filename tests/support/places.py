"""Places that a test sets: where queues are and which shards are known, for homes without a coordinator."""

from typing import Any

from lightrail.wire.home import Place
from lightrail.wire.homes import Homes
from lightrail.wire.messages import Refusal


class FixedPlaces:
    """See lightrail/wire/home.py. `soon` is what the next refresh finds."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.peers: dict[int, Any] = {}
        self.soon: dict[str, Place] = {}
        self.gone: Refusal | None = None
        self.homes: Homes | None = None
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
            if self.homes is not None:
                self.homes.changed(soon)

    async def lost(self, queue: str) -> Refusal | None:
        return self.gone


class FakeFleet:
    """As much of a fleet as a link to a router sees."""

    def __init__(self) -> None:
        self.moved = 0
        self.places: dict[str, Place] = {}
        self.homes = self
        self.waits: list[int] = []

    def where(self, queue: str) -> Place | None:
        return self.places.get(queue)

    async def change(self, wait_ms: int) -> None:
        """Nothing is waited for."""
        self.waits.append(wait_ms)
