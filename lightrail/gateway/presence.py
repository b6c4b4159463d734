"""Presence: which shards own queues and answer, or do not; also those that are registered no more.

A shard that was killed leaves the list of processes when its lease has run out. What it owns is still placed
on it and waits, and an operator has to see that first: by name, with how many queues.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from lightrail.cluster.map import Map
from lightrail.telemetry.metrics import AnyFamily, Family, Labels
from lightrail.wire.shards import ShardPeer, State


class Presence:
    """As one gateway sees them.

    Args:
        peers: its connections to shards.
    """

    __slots__ = ("_map", "_peers")

    def __init__(self, map: Map, peers: Mapping[int, ShardPeer]) -> None:
        self._map = map
        self._peers = peers

    def known(self) -> list[int]:
        """Shards that were ever made known and not removed, and any other that a queue is placed on."""
        owners = {shard for shard, queues in self._map.loads.items() if queues}
        return sorted({*self._map.shard_records, *owners})

    def queues(self, shard: int) -> int:
        """How many are placed on it."""
        return self._map.loads[shard]

    def serves(self, shard: int) -> bool:
        """Whether it answers this gateway."""
        peer = self._peers.get(shard)
        return peer is not None and peer.state is State.SERVING

    def waiting(self, shard: int) -> str:
        """What a person is told that waits for a shard; nothing where none does."""
        queues = self.queues(shard)
        return f"{queues:,} {'queue waits' if queues == 1 else 'queues wait'} for it" if queues else ""

    def unregistered(self) -> list[tuple[int, str]]:
        """Shards that own queues and are registered nowhere, with why that matters."""
        return [
            (shard, f"not registered; {self.waiting(shard)}")
            for shard in self.known()
            if self.queues(shard) and shard not in self._map.shards and not self.serves(shard)
        ]


def _serving(presence: Presence) -> Iterable[tuple[Labels, float]]:
    return [((str(shard),), float(presence.serves(shard))) for shard in presence.known()]


PRESENCE_FAMILIES: Final[tuple[AnyFamily[Presence], ...]] = (
    Family(
        "gauge",
        "lightrail_placement_serving",
        "1 for a shard that answers this gateway, 0 for one that does not, registered or not.",
        ("shard",),
        _serving,
    ),
)
