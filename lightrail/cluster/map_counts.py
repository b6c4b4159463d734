"""Map counts: numbers of placements, moves, members and shards in a gateway's map, for /metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from lightrail.cluster.map import Map
from lightrail.telemetry.metrics import AnyFamily, Family, Labels

PHASES: Final = ("waiting", "frozen")


def _queues(map: Map) -> Iterable[tuple[Labels, float]]:
    owned = Counter(placed.shard for placed in map.placements().values())
    return [((str(shard),), owned[shard]) for shard in sorted({*map.shard_records, *owned})]


def _moves(map: Map) -> Iterable[tuple[Labels, float]]:
    phases = Counter(move.phase for move in map.moves.values())
    return [((phase,), phases[phase]) for phase in PHASES]


def _serving(map: Map) -> Iterable[tuple[Labels, float]]:
    registered = (("shard", map.shards), ("frontend", map.frontends), ("gateway", map.gateways))
    return [((of,), len(members)) for of, members in registered]


def _shards(map: Map) -> Iterable[tuple[Labels, float]]:
    states = Counter(each.state for each in map.shard_records.values())
    return [((state,), states[state]) for state in ("active", "draining")]


PLACEMENT_FAMILIES: Final[tuple[AnyFamily[Map], ...]] = (
    Family(
        "gauge",
        "lightrail_placement_queues",
        "Queues that are placed on a shard, as this gateway knows.",
        ("shard",),
        _queues,
    ),
    Family(
        "gauge",
        "lightrail_placement_moves",
        "Moves of queues that were requested and have not ended, by phase.",
        ("phase",),
        _moves,
    ),
    Family(
        "gauge",
        "lightrail_placement_members",
        "Processes that are registered with the coordinator, by role.",
        ("of",),
        _serving,
    ),
    Family(
        "gauge",
        "lightrail_placement_shards",
        "Shards that were created and not removed, by state.",
        ("state",),
        _shards,
    ),
)
