"""Members: the other processes, from the supervisor of this machine and from the cluster's map.

Presence: which shards own queues and answer this gateway, registered or not.

A killed shard leaves the list of processes when its lease expires. Its queues stay placed on it and wait.
An operator has to see that first: the shard's name and the number of its queues.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.cluster.map import Map, MapChanges
from lightrail.cluster.map import Member as Registered
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.model.endpoint import endpoint
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer
from lightrail.telemetry.metrics import AnyFamily, Family, Labels, counter, gauges


@dataclass(frozen=True, slots=True)
class Member:
    """One process: its role and number, whether it serves, and the address of its metrics."""

    role: str
    """``follower`` for a member of a shard with replicas that does not own it."""
    id: int
    ready: bool
    restarts: int
    metrics: str | None
    """``HOST:PORT``"""
    control: str | None = None
    """ZeroMQ address of a frontend's control socket."""
    supervised: bool = True
    """Whether the supervisor of this machine runs it; for other processes only the registration is known."""
    member: int = 0
    """Number of a follower on this machine, from 1."""

    @property
    def number(self) -> str:
        """Distinguishes processes of one role."""
        return f"{self.id}/{self.member}" if self.member else str(self.id)

    @property
    def name(self) -> str:
        return f"{self.role}-{self.number}"


@dataclass(slots=True, eq=False, repr=False)
class Members:
    """The supervisor's last list and other registered processes, without the gateway itself."""

    known: bool = False
    """Whether the supervisor has sent a list."""
    scrapes_failed: int = 0
    _list: list[Member] = field(default_factory=list)
    _supervised: list[Member] = field(default_factory=list)
    _registered: list[Member] = field(default_factory=list)

    def list(self) -> list[Member]:
        return self._list

    def update(self, message: dict[str, Any]) -> None:
        """Updates the members from a line of the supervisor."""
        if "processes" in message:
            self.known = True
            self._supervised = [_supervised(one) for one in message["processes"] if one["role"] != "gateway"]
            self._unite()

    def follow(self, map: Map, boot: int, host: str) -> None:
        """Follows the registered processes, now and whenever they change.

        Args:
            boot: of this gateway.
            host: this machine; a loopback address of another machine can't be used.
        """

        def changed(_: MapChanges) -> None:
            tables = (("shard", map.shards), ("frontend", map.frontends), ("gateway", map.gateways))
            self._registered = [
                Member(
                    role,
                    each.id,
                    True,
                    0,
                    each.metrics if each.metrics and _can_be_reached(each, host) else None,
                    each.address if role == "frontend" and each.address else None,
                    False,
                )
                for role, table in tables
                for each in table.values()
                if each.boot != boot
            ]
            self._unite()

        map.listen(changed)
        changed(MapChanges())

    def _unite(self) -> None:
        supervised = {(each.role, each.id) for each in self._supervised}
        others = [each for each in self._registered if (each.role, each.id) not in supervised]
        self._list = self._supervised + sorted(others, key=lambda each: (each.role, each.id))


def _supervised(one: dict[str, Any]) -> Member:
    """A process as the supervisor describes it; a member that does not serve may follow or own later."""
    follows = one.get("member") and (one.get("follows") or not one["ready"])
    return Member(
        "follower" if follows else one["role"],
        one["id"],
        one["ready"],
        one["restarts"],
        one.get("metrics"),
        one.get("control"),
        member=one["member"] if follows else 0,
    )


def _can_be_reached(member: Registered, host: str) -> bool:
    return member.host == host or not endpoint(member.metrics).loopback


def _each(name: str) -> Any:
    def read(members: Members) -> Iterable[tuple[Labels, float]]:
        return [((one.role, one.number), float(getattr(one, name))) for one in members.list()]

    return read


FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    Family(
        "gauge",
        "lightrail_process_ready",
        "1 for a process that serves, else 0.",
        ("of", "number"),
        _each("ready"),
    ),
    Family(
        "counter",
        "lightrail_process_restarts",
        "Times the supervisor of this machine has restarted a process.",
        ("of", "number"),
        lambda members: [
            ((one.role, one.number), float(one.restarts)) for one in members.list() if one.supervised
        ],
    ),
    counter("lightrail_scrapes_failed", "Processes that did not answer a scrape in time."),
)


@dataclass(slots=True, eq=False, repr=False)
class Presence:
    """The state of shards at one gateway.

    Args:
        peers: the gateway's connections to shards.
    """

    _map: Map
    _peers: Mapping[int, ShardPeer]

    def known(self) -> list[int]:
        """Shards of the cluster, and any other shard that has queues."""
        owners = {shard for shard, queues in self._map.loads.items() if queues}
        return sorted({*self._map.shard_records, *owners})

    def queues(self, shard: int) -> int:
        """Queues that are placed on a shard."""
        return self._map.loads[shard]

    def of_replicas(self, field: str) -> dict[str, float]:
        """A field of the entry of each shard with replicas; of the members in sync their number."""
        found = {shard: getattr(each, field) for shard, each in sorted(self._map.replica_sets.items())}
        return {str(shard): len(it) if field == "in_sync" else it for shard, it in found.items()}

    def of_members(self, read: Callable[[ReplicaSet, str], bool]) -> list[tuple[Labels, float]]:
        """A figure of each member of the shards with replicas, by its shard and host."""
        return [
            ((str(shard), each.host or id), float(read(found, id)))
            for shard, found in sorted(self._map.replica_sets.items())
            for id, each in sorted(found.members.items())
        ]

    def runs(self, found: ReplicaSet, member: str) -> bool:
        """Whether the process of a member is registered."""
        return (found.shard, member) in self._map.followers

    def serves(self, shard: int) -> bool:
        """Whether a shard answers this gateway."""
        peer = self._peers.get(shard)
        return peer is not None and peer.state is ConnectionState.SERVING

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


PRESENCE_FAMILIES: Final[tuple[AnyFamily[Presence], ...]] = (
    gauges(
        "lightrail_placement_serving",
        "1 for a shard that answers this gateway, else 0, registered or not.",
        "shard",
        lambda presence: {str(shard): presence.serves(shard) for shard in presence.known()},
    ),
    gauges(
        "lightrail_placement_replicas",
        "Members that a shard with replicas is to have.",
        "shard",
        lambda presence: presence.of_replicas("replicas"),
    ),
    gauges(
        "lightrail_placement_replicas_in_sync",
        "Members of such a shard that have every accepted message, the owner among them.",
        "shard",
        lambda presence: presence.of_replicas("in_sync"),
    ),
    gauges(
        "lightrail_placement_replicas_min_in_sync",
        "Members in sync with fewer of which such a shard accepts nothing.",
        "shard",
        lambda presence: presence.of_replicas("min_in_sync"),
    ),
    Family(
        "gauge",
        "lightrail_placement_member_in_sync",
        "1 for a member of such a shard, by its host, that has every accepted message, else 0.",
        ("shard", "member"),
        lambda presence: presence.of_members(lambda found, member: member in found.in_sync),
    ),
    Family(
        "gauge",
        "lightrail_placement_member_running",
        "1 for a member of such a shard, by its host, whose process is registered, else 0.",
        ("shard", "member"),
        lambda presence: presence.of_members(presence.runs),
    ),
    gauges(
        "lightrail_placement_epoch",
        "Epoch of such a shard: it rises with each take-over and each start of the owner.",
        "shard",
        lambda presence: presence.of_replicas("epoch"),
    ),
)
