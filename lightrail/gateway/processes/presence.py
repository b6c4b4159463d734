"""Presence: which shards own queues and answer this gateway, registered or not.

A killed shard leaves the list of processes when its lease expires. Its queues stay placed on it and wait.
An operator has to see that first: the shard's name and the number of its queues.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from lightrail.cluster.map import Map
from lightrail.shard_client.peers.shards import ShardPeer, State
from lightrail.telemetry.metrics import AnyFamily, Family, Labels


class Presence:
    """The state of shards at one gateway.

    Args:
        peers: the gateway's connections to shards.
    """

    __slots__ = ("_map", "_peers")

    def __init__(self, map: Map, peers: Mapping[int, ShardPeer]) -> None:
        self._map = map
        self._peers = peers

    def known(self) -> list[int]:
        """Shards of the cluster, and any other shard that has queues."""
        owners = {shard for shard, queues in self._map.loads.items() if queues}
        return sorted({*self._map.shard_records, *owners})

    def queues(self, shard: int) -> int:
        """Queues that are placed on a shard."""
        return self._map.loads[shard]

    def serves(self, shard: int) -> bool:
        """Whether a shard answers this gateway."""
        peer = self._peers.get(shard)
        return peer is not None and peer.state is State.SERVING

    def waiting(self, shard: int) -> str:
        """A sentence about the queues that wait for a shard; empty without queues."""
        queues = self.queues(shard)
        return f"{queues:,} {'queue waits' if queues == 1 else 'queues wait'} for it" if queues else ""

    def unregistered(self) -> list[tuple[int, str]]:
        """Shards that have queues and are not registered, with the reason to show."""
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
        "1 for a shard that answers this gateway, else 0, registered or not.",
        ("shard",),
        _serving,
    ),
)
