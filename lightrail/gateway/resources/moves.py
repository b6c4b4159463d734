"""Moves of queues over HTTP: propose a plan of moves that would balance the load of the shards
(docs/formats/plan.md), begin the moves of a plan, show their progress, cancel them.

Shards carry out moves without this gateway once they are begun.
"""

import asyncio
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from aiohttp import web

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError
from lightrail.cluster.map import Map
from lightrail.cluster.placement import members_of
from lightrail.console.terminal import counted
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes import loads
from lightrail.gateway.processes.loads import Loads
from lightrail.gateway.request import Request
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.placement import FORMAT, KIND, MovePlan, QueueLoad, Sum, plan
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import PLACED
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer
from lightrail.shard_client.shard_connections import ShardConnections

SAMPLE_S: Final = 1.0
"""Seconds over which messages are counted, by default."""


async def propose(request: Request) -> web.Response:
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


def _plan(map: Map, directory: Directory, measured: Loads, takers: AbstractSet[int], most: int) -> MovePlan:
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
        load = load._replace(replicas=directory.get(queue).policy["replicas"])
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
        members = {shard: each.replicas for shard, each in map.replica_sets.items()}
        return plan(movable, takers, draining - takers, fixed=fixed, max_moves=most, members=members)
    except ValueError as error:
        raise ProblemError(409, str(error)) from None


def _shards_of(map: Map, made: MovePlan) -> list[dict[str, Any]]:
    rows = []
    for shard, before in made.before.items():
        after = made.after[shard]
        known = map.shard_records.get(shard)
        row: dict[str, Any] = {"id": shard, "state": known.state if known else "active"}
        for key in Sum._fields:
            row[f"{key}_before"], row[f"{key}_after"] = getattr(before, key), getattr(after, key)
        rows.append(row)
    return rows


def takers_of(request: Request) -> set[int]:
    """Active shards that answer this gateway: a registered shard may have died since."""
    peers = request.services.shards.peers
    return {
        each.id
        for each in request.services.map.shard_records.values()
        if each.state == "active" and each.id in peers and peers[each.id].state is ConnectionState.SERVING
    }


def placement_revision(map: Map) -> int:
    """A number that rises with every placement or move of a queue, which makes earlier plans invalid."""
    return max((placed.revision for placed in map.placements().values()), default=0)


MEMBERS: Final = (
    "format",
    "kind",
    "cluster",
    "placement_revision",
    "made_at_ms",
    "moves",
    "shards",
    "silent",
)


async def begin(request: Request) -> web.Response:
    """POST /!moves with a plan, or {"moves": [{"queue", "from", "to"}]}; 202 and the moves that began.

    With ?skip=true, moves of queues that were deleted or moved since are left out instead of refused.
    """
    request.manager()
    services = request.services
    throttle = request.whole("throttle", 0, 0, limits.MOVE_THROTTLE_MAX)
    skip = request.flag("skip")
    value = await request.json_object(*MEMBERS, most=limits.HTTP_DEFINITIONS_BYTES)
    map = services.map
    map.refresh()
    cluster = await services.coordinator.cluster_id()
    _check_plan(value, map, cluster, skip=skip)
    request.directory.refresh()
    wanted, left_out = _wanted(request, value.get("moves"), skip=skip)
    begun = await moves.begin(services.coordinator, map, wanted, throttle=throttle, now_ms=wall_ms())
    names = {move.queue for move in begun}
    return web.json_response(
        {
            "begun": [{"queue": move.queue, "from": move.source, "to": move.to} for move in begun],
            "left_out": left_out + [queue for queue, _ in wanted if queue not in names],
        },
        status=202,
    )


def _check_plan(value: dict[str, Any], map: Map, cluster: str, *, skip: bool) -> None:
    """Refuses a plan that was made for another cluster or another placement."""
    for key, expected in (("format", FORMAT), ("kind", KIND), ("cluster", cluster)):
        found = value.get(key, expected)
        if found != expected:
            raise ProblemError(
                422,
                f"{key} is {str(found)[:80]!a}; expected {expected!r}",
                field=key,
                found=str(found)[:80],
                allowed=expected,
            )
    revision = value.get("placement_revision")
    if revision is not None and type(revision) is not int:
        raise ProblemError(
            422,
            f"placement_revision is {str(revision)[:40]!a}; expected a whole number or null",
            field="placement_revision",
        )
    current = placement_revision(map)
    if revision is not None and revision != current and not skip:
        raise ProblemError(
            409,
            f"the plan was made for placement revision {revision}, and the revision is {current} now: "
            "queues were placed, moved or dropped since; make a new plan",
            field="placement_revision",
            found=revision,
            allowed=current,
        )


def _wanted(request: Request, rows: Any, *, skip: bool) -> tuple[list[tuple[str, int]], list[str]]:
    """(queue, shard) of each move, and with `skip` the queues that are left out. Raises ProblemError."""
    if not isinstance(rows, list) or len(rows) > limits.PLAN_MOVES_MAX:
        raise ProblemError(
            422, f"moves is expected to be a list of at most {limits.PLAN_MOVES_MAX} moves", field="moves"
        )
    map, directory = request.services.map, request.directory
    takers = takers_of(request)
    wanted: dict[str, int] = {}
    left_out: list[str] = []
    for index, row in enumerate(rows):
        where = f"moves[{index}]"
        if not isinstance(row, dict):
            raise ProblemError(422, f"{where} is {str(row)[:80]!a}; expected an object", field=where)
        queue, source, to = row.get("queue"), row.get("from"), row.get("to")
        # Dead letters move with their queue: NAME/$dlq has no placement of its own.
        placed = map.placements().get(queue) if isinstance(queue, str) else None
        if isinstance(queue, str) and directory.get(queue).role not in PLACED:
            placed = None
        if isinstance(queue, str) and skip and (placed is None or source not in (None, placed.shard)):
            left_out.append(queue)
            continue
        if not isinstance(queue, str) or placed is None:
            raise ProblemError(
                422, f"{where}.queue is {str(queue)[:80]!a}; expected a queue that is placed", field=where
            )
        if queue in wanted:
            raise ProblemError(422, f"{where}: {queue[:80]!a} is listed twice; expected it once", field=where)
        if source is not None and source != placed.shard:
            raise ProblemError(
                409, f"{where}: {queue} is on shard {placed.shard}, not on {str(source)[:20]!a}", field=where
            )
        if type(to) is not int or to not in takers:
            shards = ", ".join(_texts(takers)) or "none, since none accepts queues now"
            raise ProblemError(
                422, f"{where}.to is {str(to)[:20]!a}; expected one of the shards {shards}", field=where
            )
        replicas, members = directory.get(queue).policy["replicas"], members_of(map, to)
        if members < replicas and skip:
            left_out.append(queue)
            continue
        if members < replicas:
            raise ProblemError(
                422,
                f"{where}.to is {to}, which is to have {counted(members, 'member')}; expected a shard with "
                f"at least {replicas}, which the policy of {queue} demands",
                field=where,
            )
        wanted[queue] = to
    return list(wanted.items()), left_out


def _texts(numbers: Iterable[int]) -> list[str]:
    return [str(each) for each in sorted(numbers)]


async def list_all(request: Request) -> web.Response:
    """GET /!moves: moves under way with their progress, and those that ended in the last minutes."""
    request.manager()
    map = request.services.map
    map.refresh()
    reported = await _reported(request.services.shards)
    running: list[dict[str, Any]] = []
    for move in sorted(map.moves.values(), key=lambda each: (each.asked_ms, each.order)):
        row = next(
            (
                each
                for each in reported.get(move.queue, ())
                if each["to"] == move.to and not each.get("ended_ms")
            ),
            {},
        )
        running.append(
            {
                "phase": "freeze" if move.phase == "frozen" else "waiting",
                "messages": 0,
                "messages_total": None,
                "bytes": 0,
                **row,
                "queue": move.queue,
                "from": move.source,
                "to": move.to,
                "asked_ms": move.asked_ms,
            }
        )
    ended = [each for rows in reported.values() for each in rows if each.get("ended_ms")]
    ended.sort(key=lambda each: int(each["ended_ms"]))
    return web.json_response({"moves": running, "ended": ended})


async def _reported(shards: ShardConnections) -> dict[str, list[dict[str, Any]]]:
    """Reports of moves by the shards that receive the queues, by queue; without shards that do not answer."""

    async def ask(peer: ShardPeer) -> list[dict[str, Any]]:
        try:
            answer = await peer.request("moves", {}, wait_ms=limits.OVERVIEW_MS)
            return list(answer.fields["moves"])
        except (ShardDownError, ShardRefusedError):
            return []

    found: dict[str, list[dict[str, Any]]] = {}
    peers = [peer for _, peer in sorted(shards.peers.items())]
    for rows in await asyncio.gather(*(ask(peer) for peer in peers)):
        for row in rows:
            row["from"] = row.pop("source", row.get("from"))
            found.setdefault(row["queue"], []).append(row)
    return found


async def cancel(request: Request) -> web.Response:
    """DELETE /!moves?queue=: cancels one move, or all; moves that have frozen their queue continue."""
    request.manager()
    services = request.services
    services.map.refresh()
    only = request.http.query.get("queue")
    cancelled: list[str] = []
    too_late: list[str] = []
    for move in list(services.map.moves.values()):
        placed = services.map.placed(move.queue)
        if only is not None and move.queue != only:
            continue
        if move.phase == "frozen" or placed is None:
            too_late.append(move.queue)
            continue
        try:
            await moves.give_up(services.coordinator, move, placed)
            cancelled.append(move.queue)
        except ConflictError:
            too_late.append(move.queue)
    if only is not None and not cancelled and not too_late:
        raise ProblemError(404, f"no move of {only[:80]!a} is under way")
    return web.json_response({"cancelled": cancelled, "too_late": too_late})
