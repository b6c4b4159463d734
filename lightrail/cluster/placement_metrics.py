"""The metrics of placements, moves and members, as a gateway knows them."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from lightrail.cluster.map import Map
from lightrail.telemetry.metrics import AnyFamily, gauges

PHASES: Final = ("waiting", "frozen")


def _queues(map: Map) -> Mapping[str, float]:
    owned = Counter(placed.shard for placed in map.placements().values())
    return {str(shard): owned[shard] for shard in sorted({*map.shard_records, *owned})}


def _moves(map: Map) -> Mapping[str, float]:
    phases = Counter(move.phase for move in map.moves.values())
    return {phase: phases[phase] for phase in PHASES}


def _serving(map: Map) -> Mapping[str, float]:
    return {"shard": len(map.shards), "frontend": len(map.frontends), "gateway": len(map.gateways)}


def _shards(map: Map) -> Mapping[str, float]:
    states = Counter(each.state for each in map.shard_records.values())
    return {state: states[state] for state in ("active", "draining")}


PLACEMENT_FAMILIES: Final[tuple[AnyFamily[Map], ...]] = (
    gauges(
        "lightrail_placement_queues",
        "Queues that are placed on a shard, as this gateway knows.",
        "shard",
        _queues,
    ),
    gauges(
        "lightrail_placement_moves",
        "Moves of queues that were requested and have not ended, by phase.",
        "phase",
        _moves,
    ),
    gauges(
        "lightrail_placement_members",
        "Processes that are registered with the coordinator, by role.",
        "of",
        _serving,
    ),
    gauges("lightrail_placement_shards", "Shards that were not removed, by state.", "state", _shards),
)
