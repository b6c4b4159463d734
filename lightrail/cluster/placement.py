"""Placement: chooses the shard of a new queue, as a pure function of the shards and their loads.

A queue whose policy demands replicas is placed on a shard that is to have at least as many members, whether
these are in sync at the moment or not.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lightrail.cluster.map import Map

Near = Mapping[int, tuple[int, ...]]
NOWHERE: Final[Near] = MappingProxyType({})
NO_SHARDS: Final = "no queue can be placed: the number of shards was never set"
NO_TAKERS: Final = (
    "no queue can be placed: every shard is draining; start another one, or end the drain of one with "
    "`lightrail-admin shard revive`"
)
NO_REPLICAS: Final = (
    "of the shards that take queues none is to have more; `lightrail-admin shard replicas N --replicas {}` "
    "gives one more members"
)


class NowhereError(Exception):
    """No shard may own a queue; the message has the reason and the remedy."""


def members_of(map: "Map", shard: int) -> int:
    """How many members a shard is to have; 1 without replicas."""
    found = map.replica_sets.get(shard)
    return 1 if found is None else found.replicas


def takers(map: "Map", replicas: int = 1) -> list[int]:
    """Shards that may own new queues that demand so many replicas: active ones that serve, or all active ones
    if none of them serves."""
    active = [
        each.id
        for each in map.shard_records.values()
        if each.state == "active" and (replicas <= 1 or members_of(map, each.id) >= replicas)
    ]
    return [id for id in active if id in map.shards] or active


def replicas_max(map: "Map") -> int:
    """The most replicas that a queue may demand: the members of the largest shard that takes queues."""
    active = [each.id for each in map.shard_records.values() if each.state == "active"]
    return max((members_of(map, shard) for shard in active), default=1)


def demanded(name: str | None) -> int:
    """The replicas that a queue demands, by the value of the entry of its name; 1 without one."""
    try:
        return int(json.loads(name or "{}")["policy"].get("replicas", 1))
    except (ValueError, TypeError, KeyError, AttributeError):
        # Who reads the name refuses such an entry.
        return 1


def place(map: "Map", wanted: Mapping[str, int]) -> dict[str, int]:
    """The shards of new queues.

    Args:
        wanted: the replicas that each queue demands, by its name.

    Raises NowhereError: no shard may have one of them.
    """
    loads = Counter(map.loads)
    families: dict[str, Counter[int]] = {}
    chosen: dict[str, int] = {}
    for queue, replicas in wanted.items():
        parent = queue.rpartition("/")[0]
        if parent not in families:
            families[parent] = Counter(map.siblings(queue))
        family = families[parent]
        allowed = takers(map, replicas)
        if not allowed:
            raise NowhereError(_nowhere(map, queue, replicas))
        shard = choose(queue, {each: loads[each] for each in allowed}, near(map, family, allowed))
        loads[shard] += 1
        if parent:
            family[shard] += 1
        chosen[queue] = shard
    return chosen


def _nowhere(map: "Map", queue: str, replicas: int) -> str:
    """Why no shard may have a queue."""
    if not map.shard_records:
        return NO_SHARDS
    if not takers(map):
        return NO_TAKERS
    return (
        f"{queue} can't be placed: its policy demands {replicas} replicas, found shards with at most "
        f"{replicas_max(map)} members: " + NO_REPLICAS.format(replicas)
    )


def near(map: "Map", siblings: Mapping[int, int], shards: Sequence[int]) -> Near:
    """Numbers of siblings in the zone of each shard and on its host; 0 where these are unknown."""
    if not siblings:
        return NOWHERE
    zones: Counter[str] = Counter()
    hosts: Counter[str] = Counter()
    for shard, count in siblings.items():
        if (member := map.shards.get(shard)) is not None:
            zones[member.zone] += count
            hosts[member.host] += count
    return {
        shard: (zones[member.zone], hosts[member.host])
        for shard in shards
        if (member := map.shards.get(shard)) is not None
    }


def choose(queue: str, loads: Mapping[int, int], near: Near = NOWHERE) -> int:
    """The shard for a new queue: least loaded, then fewest siblings near it, then by rendezvous hashing.

    ``loads`` maps every shard that may own the queue to its load (its number of queues), ``near`` a shard to
    the numbers of siblings in its zone and on its host, if these are known. Raises ValueError if there is no
    shard.
    """
    if not loads:
        raise ValueError("expected at least one shard to place a queue on")
    ranks = {shard: (load, near.get(shard, ())) for shard, load in loads.items()}
    best = min(ranks.values())
    return max((shard for shard, rank in ranks.items() if rank == best), key=lambda s: _weight(queue, s))


def _weight(queue: str, shard: int) -> bytes:
    """Highest random weight (Thaler, Ravishankar 1998): the same on every machine, uniform over shards."""
    return hashlib.blake2b(queue.encode(), digest_size=8, salt=shard.to_bytes(8, "big")).digest()
