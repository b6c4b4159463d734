"""Verification over HTTP: whether each queue is served once and where it is placed, and moves have ended;
whether a restored snapshot set the coordinator back, and writing lost keys again.
"""

import asyncio
from typing import Final

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator, NotSetBackError
from lightrail.cluster.placement import NO_REPLICAS, members_of, replicas_max
from lightrail.console.terminal import counted
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes import loads
from lightrail.gateway.request import Request
from lightrail.namespace.records import PLACED

AGAIN_S: Final = 0.5
"""Seconds before the second check; processes follow a move within a tenth of that time."""


async def verify(request: Request) -> web.Response:
    """GET /!verify: where placement and served queues differ, and moves that have not ended."""
    request.manager()
    problems, served = await _look_for_problems(request)
    if problems:
        # A queue that changed or moved between two answers looks like a problem. Only lasting ones count.
        await asyncio.sleep(AGAIN_S)
        again, served = await _look_for_problems(request)
        lasting = set(again)
        problems = [each for each in problems if each in lasting]
    map = request.services.map
    for move in sorted(map.moves.values(), key=lambda each: each.queue):
        problems.append(f"the move of {move.queue} from shard {move.source} to {move.to} has not ended")
    return web.json_response({"queues": len(map.placements()), "served": served, "problems": problems})


async def _look_for_problems(request: Request) -> tuple[list[str], int]:
    """Problems found, and the number of queues that are served."""
    map, shards = request.services.map, request.services.shards
    map.refresh()
    asking = sorted({*shards.peers, *map.shard_records})
    answers = await asyncio.gather(*(loads.rows_of(shards, shard) for shard in asking))
    map.refresh()
    request.directory.refresh()
    problems = []
    there: dict[str, list[int]] = {}
    for shard, rows in zip(asking, answers, strict=True):
        if rows is None:
            problems.append(
                f"shard {shard} does not answer: its queues could not be checked; "
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
        elif request.directory.get(queue).role not in PLACED:
            problems.append(
                f"{queue} is placed on shard {placed.shard} and has no role: with "
                f"`lightrail-admin names set {queue} role=queue` it is a queue again, and can be inspected "
                "and deleted"
            )
        elif (problem := _demands_more(request, queue, placed.shard)) and queue not in map.moves:
            problems.append(problem)
    return problems, len(there)


def _demands_more(request: Request, queue: str, shard: int) -> str:
    """Why a queue is not where its policy demands, or can't leave a shard that drains; empty otherwise."""
    map = request.services.map
    replicas, members = request.directory.get(queue).policy["replicas"], members_of(map, shard)
    if replicas <= 1 or (members >= replicas and map.shard_records[shard].state == "active"):
        return ""
    can_move = replicas <= replicas_max(map)
    if members < replicas:
        do = "`lightrail-admin rebalance` moves it" if can_move else NO_REPLICAS.format(replicas)
        return (
            f"{queue} is on shard {shard}, which is to have {counted(members, 'member')}, and its policy "
            f"demands {replicas} replicas: {do}"
        )
    if can_move:
        return ""
    return (
        f"{queue} can't leave shard {shard}, which drains: its policy demands {replicas} replicas, and "
        + NO_REPLICAS.format(replicas)
    )


async def show(request: Request) -> web.Response:
    """GET /!coordinator: {"set_back": null}, or how the coordinator differs from this gateway's copy."""
    request.manager()
    return web.json_response(_shown(request.services.coordinator))


async def put_back(request: Request) -> web.Response:
    """POST /!coordinator/put-back: writes keys again that this gateway has and the coordinator lost.

    No key is deleted. Keys that were changed since are not written and listed under `kept`; `again` lists
    keys that this gateway does not have: they had been deleted before, or were created since.
    """
    request.manager()
    if request.rest[0] != "put-back":
        raise ProblemError(
            404, f"expected /!coordinator/put-back, found /!coordinator/{request.rest[0][:80]}"
        )
    services = request.services
    try:
        done = await services.coordinator.put_back()
    except NotSetBackError as error:
        raise ProblemError(409, str(error)) from None
    return web.json_response(done.shown())


def _shown(coordinator: Coordinator) -> dict[str, object]:
    found = coordinator.set_back
    return {"set_back": None if found is None else found._asdict()}
