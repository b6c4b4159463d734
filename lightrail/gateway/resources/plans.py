"""Plans over HTTP: moves that would balance the load of the shards (docs/formats/plan.md)."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.cluster.map import Map
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes import loads
from lightrail.gateway.processes.loads import Loads
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.placement import FORMAT, KIND, Plan, QueueLoad, Sum, plan
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import PLACED
from lightrail.shard_client.peers.shards import State

if TYPE_CHECKING:
    from lightrail.gateway.request import Request

SAMPLE_S: Final = 1.0
"""Seconds over which messages are counted, by default."""


async def propose(request: "Request") -> web.Response:
    """GET /!plan?sample=SECONDS&max_moves=N: moves, and the load of the shards before and after them."""
    request.manager()
    services = request.services
    sample_s = request.seconds("sample", SAMPLE_S, limits.PLAN_SAMPLE_S_MAX)
    most = request.whole("max_moves", limits.PLAN_MOVES_MAX, 0, limits.PLAN_MOVES_MAX)
    map = services.map
    map.refresh()
    measured = await loads.measure(map, services.shards, sample_s)
    map.refresh()
    request.directory.refresh()
    made = _plan(map, request.directory, measured, takers_of(request) - set(measured.silent), most)
    return web.json_response(
        {
            "format": FORMAT,
            "kind": KIND,
            "cluster": await services.coordinator.cluster_id(),
            "placement_revision": placement_revision(map),
            "made_at_ms": wall_ms(),
            "moves": [
                {
                    "queue": each.queue,
                    "from": each.source,
                    "to": each.to,
                    "load": each.load,
                    "bytes": each.bytes,
                }
                for each in made.moves
            ],
            "shards": _shards_of(map, made),
            "silent": measured.silent,
        }
    )


def _plan(map: Map, directory: Directory, measured: Loads, takers: AbstractSet[int], most: int) -> Plan:
    """A plan for queues that can move now, between shards that answer. Other queues count as load of the
    shard that they are on or move to.

    Args:
        takers: active shards that answer.
    """
    silent = set(measured.silent)
    draining = {each.id for each in map.shard_records.values() if each.state == "draining"} - silent
    movable: dict[str, QueueLoad] = {}
    fixed: dict[str, QueueLoad] = {}
    for queue, load in measured.queues.items():
        move = map.moves.get(queue)
        if move is not None:
            fixed[queue] = load._replace(shard=move.to)
        elif directory.get(queue).role not in PLACED:
            # A placement left behind by a deleted name: its shard has no queue to copy.
            fixed[queue] = load
        elif load.shard in takers or load.shard in draining:
            movable[queue] = load
        # Queues of a shard that does not answer stay: they can't be copied now.
    try:
        return plan(movable, takers, draining - takers, fixed=fixed, max_moves=most)
    except ValueError as error:
        raise ProblemError(409, str(error)) from None


def _shards_of(map: Map, made: Plan) -> list[dict[str, Any]]:
    rows = []
    for shard, before in made.before.items():
        after = made.after[shard]
        known = map.shard_records.get(shard)
        row: dict[str, Any] = {"id": shard, "state": known.state if known else "active"}
        for key in Sum._fields:
            row[f"{key}_before"], row[f"{key}_after"] = getattr(before, key), getattr(after, key)
        rows.append(row)
    return rows


def takers_of(request: "Request") -> set[int]:
    """Active shards that answer this gateway: a registered shard may have died since."""
    peers = request.services.shards.peers
    return {
        each.id
        for each in request.services.map.shard_records.values()
        if each.state == "active" and each.id in peers and peers[each.id].state is State.SERVING
    }


def placement_revision(map: Map) -> int:
    """A number that rises with every placement or move of a queue, which makes earlier plans invalid."""
    return max((placed.revision for placed in map.placements().values()), default=0)
