"""Moves over HTTP: a plan for an even load, its execution by the shards, how far it is, calling it off.

The format of a plan is docs/formats/plan.md. Shards carry moves out by themselves once they are asked for;
this gateway may go away meanwhile.
"""

import asyncio
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from aiohttp import web

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError
from lightrail.cluster.map import Map
from lightrail.gateway import loads
from lightrail.gateway.asked import Asked
from lightrail.gateway.errors import Problem
from lightrail.gateway.loads import Loads
from lightrail.gateway.shards import Shards
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.plan import FORMAT, KIND, Plan, QueueLoad, Sum, plan
from lightrail.namespace.directory import Directory
from lightrail.namespace.service import PLACED
from lightrail.wire.requests import ShardDownError, ShardRefusedError
from lightrail.wire.shards import ShardPeer, State

SAMPLE_S: Final = 1.0
"""Over how many seconds messages are counted, where nobody says."""
VERIFY_AGAIN_S: Final = 0.5
"""Processes hear of what was moved within a tenth of this."""
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


async def propose(asked: Asked) -> web.Response:
    """GET /!plan?sample=SECONDS&max_moves=N: what would be moved, and the shards before and after."""
    asked.manager()
    gateway = asked.gateway
    sample_s = asked.seconds("sample", SAMPLE_S, limits.PLAN_SAMPLE_S_MAX)
    most = asked.whole("max_moves", limits.PLAN_MOVES_MAX, 0, limits.PLAN_MOVES_MAX)
    map = gateway.map
    map.refresh()
    measured = await loads.measure(map, gateway.shards, sample_s)
    map.refresh()
    asked.directory.refresh()
    made = _plan(map, asked.directory, measured, _takers(asked) - set(measured.silent), most)
    return web.json_response(
        {
            "format": FORMAT,
            "kind": KIND,
            "cluster": await gateway.coordinator.cluster_id(),
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
    """What can be moved now, from and to shards that answer; the rest counts where it is, or is going.

    Args:
        takers: shards that may be given queues, and answer.
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
            # Left behind by a name that went: its shard would not know what to copy.
            fixed[queue] = load
        elif load.shard in takers or load.shard in draining:
            movable[queue] = load
        # A shard that is away, or is unknown, keeps what it has: nobody could copy it now.
    try:
        return plan(movable, takers, draining - takers, fixed=fixed, max_moves=most)
    except ValueError as error:
        raise Problem(409, str(error)) from None


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


def _takers(asked: Asked) -> set[int]:
    """Active shards that answer this gateway: what is registered may have died since."""
    peers = asked.gateway.shards.peers
    return {
        each.id
        for each in asked.gateway.map.shard_records.values()
        if each.state == "active" and each.id in peers and peers[each.id].state is State.SERVING
    }


def placement_revision(map: Map) -> int:
    """Rises with every queue that is placed or moved: a plan that was made before does not hold any more."""
    return max((placed.revision for placed in map.placements().values()), default=0)


async def begin(asked: Asked) -> web.Response:
    """POST /!moves with a plan, or {"moves": [{"queue", "from", "to"}]}; 202 and what began.

    With ?skip=true moves of queues that are gone or elsewhere by now are left out, and not refused.
    """
    asked.manager()
    gateway = asked.gateway
    throttle = asked.whole("throttle", 0, 0, limits.MOVE_THROTTLE_MAX)
    skip = asked.flag("skip")
    value = await asked.json_object(*MEMBERS, most=limits.HTTP_DEFINITIONS_BYTES)
    map = gateway.map
    map.refresh()
    cluster = await gateway.coordinator.cluster_id()
    _hold_against(value, map, cluster, skip=skip)
    asked.directory.refresh()
    wanted, gone = _wanted(asked, value.get("moves"), skip=skip)
    begun = await moves.begin(
        gateway.coordinator, map, wanted, throttle=throttle, now_ms=wall_ms()
    )
    names = {move.queue for move in begun}
    return web.json_response(
        {
            "begun": [{"queue": move.queue, "from": move.source, "to": move.to} for move in begun],
            "left_out": gone + [queue for queue, _ in wanted if queue not in names],
        },
        status=202,
    )


def _hold_against(value: dict[str, Any], map: Map, cluster: str, *, skip: bool) -> None:
    """Refuses a plan that was made for something else than what is there."""
    for key, expected in (("format", FORMAT), ("kind", KIND), ("cluster", cluster)):
        found = value.get(key, expected)
        if found != expected:
            raise Problem(
                422,
                f"{key} is {str(found)[:80]!a}; expected {expected!r}",
                field=key,
                found=str(found)[:80],
                allowed=expected,
            )
    revision = value.get("placement_revision")
    if revision is not None and type(revision) is not int:
        raise Problem(
            422,
            f"placement_revision is {str(revision)[:40]!a}; expected a whole number or null",
            field="placement_revision",
        )
    current = placement_revision(map)
    if revision is not None and revision != current and not skip:
        raise Problem(
            409,
            f"the plan was made for placement revision {revision}, and it is {current} by now: "
            "queues were placed, moved or dropped since; make a new plan",
            field="placement_revision",
            found=revision,
            allowed=current,
        )


def _wanted(asked: Asked, rows: Any, *, skip: bool) -> tuple[list[tuple[str, int]], list[str]]:
    """What to move where, and with `skip` the queues that are gone or elsewhere. Raises Problem."""
    if not isinstance(rows, list) or len(rows) > limits.PLAN_MOVES_MAX:
        raise Problem(
            422, f"moves is expected to be a list of at most {limits.PLAN_MOVES_MAX} moves", field="moves"
        )
    map, directory = asked.gateway.map, asked.directory
    takers = _takers(asked)
    wanted: dict[str, int] = {}
    gone: list[str] = []
    for index, row in enumerate(rows):
        where = f"moves[{index}]"
        if not isinstance(row, dict):
            raise Problem(422, f"{where} is {str(row)[:80]!a}; expected an object", field=where)
        queue, source, to = row.get("queue"), row.get("from"), row.get("to")
        # Dead letters move with their queue: NAME/$dlq has no placement of its own.
        placed = map.placements().get(queue) if isinstance(queue, str) else None
        if isinstance(queue, str) and directory.get(queue).role not in PLACED:
            placed = None
        if isinstance(queue, str) and skip and (placed is None or source not in (None, placed.shard)):
            gone.append(queue)
            continue
        if not isinstance(queue, str) or placed is None:
            raise Problem(
                422, f"{where}.queue is {str(queue)[:80]!a}; expected a queue that is placed", field=where
            )
        if queue in wanted:
            raise Problem(422, f"{where}: {queue[:80]!a} is moved before; expected it once", field=where)
        if source is not None and source != placed.shard:
            raise Problem(
                409, f"{where}: {queue} is on shard {placed.shard}, not on {str(source)[:20]!a}", field=where
            )
        if type(to) is not int or to not in takers:
            shards = ", ".join(_texts(takers)) or "none, since none takes queues now"
            raise Problem(
                422, f"{where}.to is {str(to)[:20]!a}; expected one of the shards {shards}", field=where
            )
        wanted[queue] = to
    return list(wanted.items()), gone


def _texts(numbers: Iterable[int]) -> list[str]:
    return [str(each) for each in sorted(numbers)]


async def list_all(asked: Asked) -> web.Response:
    """GET /!moves: those under way with how far they are, and those that ended in the last minutes."""
    asked.manager()
    map = asked.gateway.map
    map.refresh()
    reported = await _reported(asked.gateway.shards)
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


async def _reported(shards: Shards) -> dict[str, list[dict[str, Any]]]:
    """What shards that receive queues say of them, by queue; silent shards are left out."""

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


async def cancel(asked: Asked) -> web.Response:
    """DELETE /!moves?queue=: calls off one move, or all; those that froze their queue go on."""
    asked.manager()
    gateway = asked.gateway
    gateway.map.refresh()
    only = asked.request.query.get("queue")
    cancelled: list[str] = []
    too_late: list[str] = []
    for move in list(gateway.map.moves.values()):
        placed = gateway.map.placed(move.queue)
        if only is not None and move.queue != only:
            continue
        if move.phase == "frozen" or placed is None:
            too_late.append(move.queue)
            continue
        try:
            await moves.give_up(gateway.coordinator, move, placed)
            cancelled.append(move.queue)
        except ConflictError:
            too_late.append(move.queue)
    if only is not None and not cancelled and not too_late:
        raise Problem(404, f"no move of {only[:80]!a} is under way")
    return web.json_response({"cancelled": cancelled, "too_late": too_late})


async def verify(asked: Asked) -> web.Response:
    """GET /!verify: whether every queue is where the placement says, once, and nothing is half moved."""
    asked.manager()
    problems, served = await _look_for_problems(asked)
    if problems:
        # A queue that came, went or moved between two shards' answers looks like one: those that last are.
        await asyncio.sleep(VERIFY_AGAIN_S)
        again, served = await _look_for_problems(asked)
        lasting = set(again)
        problems = [each for each in problems if each in lasting]
    map = asked.gateway.map
    for move in sorted(map.moves.values(), key=lambda each: each.queue):
        problems.append(f"the move of {move.queue} from shard {move.source} to {move.to} has not ended")
    return web.json_response({"queues": len(map.placements()), "served": served, "problems": problems})


async def _look_for_problems(asked: Asked) -> tuple[list[str], int]:
    """What does not fit together, and how many queues are served."""
    map, shards = asked.gateway.map, asked.gateway.shards
    map.refresh()
    asking = sorted({*shards.peers, *map.shard_records})
    answers = await asyncio.gather(*(loads.rows_of(shards, shard) for shard in asking))
    map.refresh()
    asked.directory.refresh()
    problems = []
    there: dict[str, list[int]] = {}
    for shard, rows in zip(asking, answers, strict=True):
        if rows is None:
            problems.append(
                f"shard {shard} does not answer: what it has could not be checked; "
                f"{len(map.queues_of(shard))} queues are placed on it"
            )
            continue
        for name, _ in rows:
            there.setdefault(name, []).append(shard)
    for name, found in sorted(there.items()):
        placed = map.placed(name)
        served = " and ".join(str(each) for each in found)
        if placed is None:
            problems.append(f"{name} is served by shard {served} and placed nowhere")
        elif found != [placed.shard]:
            problems.append(f"{name} is placed on shard {placed.shard} and served by {served}")
    for queue, placed in sorted(map.placements().items()):
        if placed.shard not in map.shard_records:
            problems.append(f"{queue} is placed on shard {placed.shard}, which is no part of this cluster")
        elif asked.directory.get(queue).role not in PLACED:
            problems.append(
                f"{queue} is placed on shard {placed.shard} and has no role: with "
                f"`lightrail-admin names set {queue} role=queue` it is a queue again, and can be looked into "
                "and deleted"
            )
    return problems, len(there)
