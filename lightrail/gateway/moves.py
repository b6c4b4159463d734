"""Moves over HTTP: a plan for an even load, its execution by the shards, how far it is, calling it off.

The format of a plan is docs/formats/plan.md. Shards carry moves out by themselves once they are asked for;
this gateway may go away meanwhile.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from lightrail.cluster import moves
from lightrail.cluster.coordinator import Conflict
from lightrail.cluster.map import Map
from lightrail.cluster.plan import Plan, QueueLoad, Sum, plan
from lightrail.gateway import loads
from lightrail.gateway.asked import Asked
from lightrail.gateway.errors import Problem
from lightrail.gateway.shards import Shards
from lightrail.model import limits
from lightrail.wire.shards import ShardAway, ShardRefused

FORMAT: Final = 1
"""Version of the format of plans."""
KIND: Final = "lightrail-plan"
SAMPLE_S: Final = 1.0
"""Over how many seconds messages are counted, where nobody says."""
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
    made = _plan(map, measured.queues, most)
    return web.json_response(
        {
            "format": FORMAT,
            "kind": KIND,
            "cluster": await gateway.coordinator.cluster_id(),
            "placement_revision": placement_revision(map),
            "made_at_ms": time.time_ns() // 1_000_000,
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


def _plan(map: Map, queues: Mapping[str, QueueLoad], most: int) -> Plan:
    draining = {each.id for each in map.shard_sets.values() if each.state == "draining"}
    takers = set(map.takers())
    # A shard that is away keeps what it has, and its queues can't be copied now.
    there = {queue: each for queue, each in queues.items() if each.shard in takers | draining}
    movable = {queue: each for queue, each in there.items() if queue not in map.moves}
    try:
        return plan(movable, takers, draining - takers, max_moves=most)
    except ValueError as error:
        raise Problem(409, str(error)) from None


def _shards_of(map: Map, made: Plan) -> list[dict[str, Any]]:
    rows = []
    for shard, before in made.before.items():
        after = made.after[shard]
        known = map.shard_sets.get(shard)
        row: dict[str, Any] = {"id": shard, "state": known.state if known else "active"}
        for key in Sum._fields:
            row[f"{key}_before"], row[f"{key}_after"] = getattr(before, key), getattr(after, key)
        rows.append(row)
    return rows


def placement_revision(map: Map) -> int:
    """Rises with every queue that is placed or moved: a plan that was made before does not hold any more."""
    return max((placed.revision for placed in map.placements().values()), default=0)


async def begin(asked: Asked) -> web.Response:
    """POST /!moves with a plan, or {"moves": [{"queue", "from", "to"}]}; 202 and what began."""
    asked.manager()
    gateway = asked.gateway
    throttle = asked.whole("throttle", 0, 0, limits.MOVE_THROTTLE_MAX)
    value = await asked.json_object(*MEMBERS, most=limits.HTTP_DEFINITIONS_BYTES)
    map = gateway.map
    map.refresh()
    await _hold_against(value, map, gateway.coordinator.cluster_id())
    wanted = _wanted(value.get("moves"), map)
    begun = await moves.begin(
        gateway.coordinator, map, wanted, throttle=throttle, now_ms=time.time_ns() // 1_000_000
    )
    names = {move.queue for move in begun}
    return web.json_response(
        {
            "begun": [{"queue": move.queue, "from": move.source, "to": move.to} for move in begun],
            "left_out": [queue for queue, _ in wanted if queue not in names],
        },
        status=202,
    )


async def _hold_against(value: dict[str, Any], map: Map, cluster: Any) -> None:
    """Refuses a plan that was made for something else than what is there."""
    for key, expected in (("format", FORMAT), ("kind", KIND), ("cluster", await cluster)):
        found = value.get(key, expected)
        if found != expected:
            raise Problem(
                422,
                f"{key} is {str(found)[:80]!a}; expected {expected!r}",
                field=key,
                found=found,
                allowed=expected,
            )
    revision = value.get("placement_revision")
    current = placement_revision(map)
    if revision is not None and revision != current:
        raise Problem(
            409,
            f"the plan was made for placement revision {str(revision)[:40]}, and it is {current} by now: "
            "queues were placed or moved since; make a new plan",
            field="placement_revision",
            found=revision,
            allowed=current,
        )


def _wanted(rows: Any, map: Map) -> list[tuple[str, int]]:
    if not isinstance(rows, list) or len(rows) > limits.PLAN_MOVES_MAX:
        raise Problem(
            422, f"moves is expected to be a list of at most {limits.PLAN_MOVES_MAX} moves", field="moves"
        )
    takers = set(map.takers())
    wanted: list[tuple[str, int]] = []
    for index, row in enumerate(rows):
        where = f"moves[{index}]"
        if not isinstance(row, dict):
            raise Problem(422, f"{where} is {str(row)[:80]!a}; expected an object", field=where)
        queue, source, to = row.get("queue"), row.get("from"), row.get("to")
        placed = map.placed(queue) if isinstance(queue, str) else None
        if placed is None:
            raise Problem(
                422, f"{where}.queue is {str(queue)[:80]!a}; expected a queue that is placed", field=where
            )
        if source is not None and source != placed.shard:
            raise Problem(
                409, f"{where}: {queue} is on shard {placed.shard}, not on {str(source)[:20]}", field=where
            )
        if type(to) is not int or to not in takers:
            known = ", ".join(_texts(takers))
            raise Problem(
                422, f"{where}.to is {str(to)[:20]!a}; expected one of the shards {known}", field=where
            )
        wanted.append((str(queue), to))
    return wanted


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

    async def ask(shard: int) -> list[dict[str, Any]]:
        try:
            return list((await shards.peers[shard].request("moves", {})).fields["moves"])
        except (ShardAway, ShardRefused):
            return []

    found: dict[str, list[dict[str, Any]]] = {}
    for rows in await asyncio.gather(*(ask(shard) for shard in sorted(shards.peers))):
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
        except Conflict:
            too_late.append(move.queue)
    if only is not None and not cancelled and not too_late:
        raise Problem(404, f"no move of {only[:80]!a} is under way")
    return web.json_response({"cancelled": cancelled, "too_late": too_late})


async def verify(asked: Asked) -> web.Response:
    """GET /!verify: whether every queue is where the placement says, once, and nothing is half moved."""
    asked.manager()
    gateway = asked.gateway
    gateway.map.refresh()
    there: dict[str, list[int]] = {}
    silent: list[int] = []
    for shard in sorted(gateway.shards.peers):
        rows = await loads.rows_of(gateway.shards, shard)
        if rows is None:
            silent.append(shard)
            continue
        for name, _ in rows:
            there.setdefault(name, []).append(shard)
    gateway.map.refresh()
    problems = [f"shard {shard} does not answer: what it has could not be checked" for shard in silent]
    for name, found in sorted(there.items()):
        placed = gateway.map.placed(name)
        if placed is None:
            problems.append(f"{name} is served by shard {found[0]} and placed nowhere")
        elif found != [placed.shard]:
            served = " and ".join(str(each) for each in found)
            problems.append(f"{name} is placed on shard {placed.shard} and served by {served}")
    for move in gateway.map.moves.values():
        problems.append(f"the move of {move.queue} from shard {move.source} to {move.to} has not ended")
    return web.json_response(
        {"queues": len(gateway.map.placements()), "served": len(there), "problems": problems}
    )
