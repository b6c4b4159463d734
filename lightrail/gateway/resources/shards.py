"""Shards over HTTP: listed, drained, activated again, and removed for good."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from lightrail.cluster import moves
from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, Write
from lightrail.cluster.map import PLACEMENT, SHARD_SETS, Map, Placed, ShardRecord
from lightrail.cluster.placement import choose, members_of, takers
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.request import Request
from lightrail.gateway.resources import replicas
from lightrail.gateway.resources.replicas import record_of
from lightrail.model import limits
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer

STATES: Final = ("active", "draining")


async def list_all(request: Request) -> web.Response:
    """GET /!shards: every shard of the cluster, running or not."""
    request.manager()
    map = request.services.map
    map.refresh()
    return web.json_response(
        {"shards": [_serving(request, each) for _, each in sorted(map.shard_records.items())]}
    )


async def show(request: Request) -> web.Response:
    """GET /!shards/ID: one shard, with the names of its queues, and the replicas that some of them demand."""
    request.manager()
    found = record_of(request)
    queues = sorted(request.services.map.queues_of(found.id))
    request.directory.refresh()
    replicas = {queue: request.directory.get(queue).policy["replicas"] for queue in queues}
    demands = {queue: each for queue, each in replicas.items() if each > 1}
    return web.json_response(_serving(request, found) | {"queue_names": queues, "queue_replicas": demands})


async def change(request: Request) -> web.Response:
    """PUT /!shards/ID with {"state": "draining" or "active"}, or {"disk": ""} if its disk is lost."""
    request.manager()
    value = await request.json_object("state", "disk")
    if "disk" in value:
        return await _forget_disk(request, value)
    state = value.get("state")
    if state not in STATES:
        raise ProblemError(
            422,
            f"state is {str(state)[:40]!a}; expected {' or '.join(STATES)}",
            field="state",
            allowed=list(STATES),
        )
    map = request.services.map
    found = record_of(request)
    if state == "draining" and found.state == "active" and takers(map) == [found.id]:
        raise ProblemError(409, f"shard {found.id} is the only one that accepts queues: start another first")
    await _write(request, found, replace(found, state=state).encode())
    return _answer(request, found)


async def _forget_disk(request: Request, value: dict[str, Any]) -> web.Response:
    """Removes the disk from a shard's entry; the next process that registers with this number writes its own.

    Each queue of the shard gets an epoch that gives up the messages on the old disk. The last epochs are
    written together with the shard's entry. Processes with the new epochs no longer use the old process.
    """
    if value != {"disk": ""}:
        raise ProblemError(422, 'expected {"disk": ""} alone: shards write their disks down', field="disk")
    found = record_of(request)
    await check_stopped(request, found)
    await _give_up(request, found, replace(found, disk="").encode(), lambda _: found.id)
    return _answer(request, found)


async def check_stopped(request: Request, found: ShardRecord) -> None:
    """Raises ProblemError for a shard that runs, even one that lost the coordinator and its registration."""
    services = request.services
    registered = services.map.shards.get(found.id)
    if registered is not None:
        raise ProblemError(409, f"shard {found.id} still runs, at {registered.address}: stop it first")
    peer = services.shards.peers.get(found.id)
    if peer is not None and await answers(peer, "kept"):
        raise ProblemError(
            409,
            f"shard {found.id} is not registered and answers all the same, at {peer.address}: it has "
            "lost its connection to the coordinator and still serves queues. Stop it first",
        )


async def answers(peer: ShardPeer, op: str, *, wait_ms: int = limits.REQUEST_MS) -> bool:
    """Whether a shard answers a request: a shard that has just ended may still look connected."""
    try:
        with suppress(ShardRefusedError):
            await peer.request(op, {}, wait_ms=wait_ms)
    except ShardDownError:
        return False
    return True


async def _give_up(
    request: Request, found: ShardRecord, value: str | None, owner: Callable[[str], int]
) -> None:
    """Gives up all messages of a shard's queues and its copies of moving queues, then writes its own entry.

    One transaction moves queues to their new owners and raises their epochs. A process that starts on the old
    disk finds by these epochs that its messages were given up, and keeps them.
    """
    services = request.services
    map = services.map
    writes = []
    for queue in map.queues_of(found.id):
        placed = map.placements()[queue]
        epoch = placed.epoch + 1
        writes.append(Write(PLACEMENT + queue, Placed.encode(owner(queue), epoch, epoch), placed.revision))
        move = map.moves.get(queue)
        if move is not None:
            writes.append(Write(move.key, None, move.revision))
    writes += replicas.forgotten(map, found.id)
    writes.append(Write(f"{SHARD_SETS}{found.id}", value, found.revision))
    first = len(writes) % WRITES_MAX or WRITES_MAX
    try:
        await moves.cancel_to(services.coordinator, map, found.id)
        # The entry of the shard is in the last transaction: until then the request can be repeated.
        for end in range(first, len(writes) + 1, WRITES_MAX):
            await services.coordinator.write(writes[max(0, end - WRITES_MAX) : end])
    except ConflictError as conflict:
        raise ProblemError(409, f"{conflict.key} was changed by somebody else just now; look again") from None
    finally:
        map.refresh()


def _answer(request: Request, changed: ShardRecord) -> web.Response:
    """The shard after a change."""
    map = request.services.map
    map.refresh()
    return web.json_response(_serving(request, map.shard_records.get(changed.id, changed)))


def _serving(request: Request, found: ShardRecord) -> dict[str, Any]:
    peer = request.services.shards.peers.get(found.id)
    return _shown(request.services.map, found, peer is not None and peer.state is ConnectionState.SERVING)


async def remove(request: Request) -> web.Response:
    """DELETE /!shards/ID: forgets a shard that has no queues and does not run.

    With ?lose_queues=true the messages of its queues are given up, and other shards own the queues, empty.
    A process that starts on the old disk keeps the messages and serves none of them.
    """
    request.manager()
    lose = request.flag("lose_queues")
    services = request.services
    map = services.map
    found = record_of(request)
    await check_stopped(request, found)
    queues = map.queues_of(found.id)
    if queues and not lose:
        raise ProblemError(
            409,
            f"shard {found.id} has {len(queues)} queues, such as {queues[0]}: start it and drain it with "
            f"`lightrail-admin shard drain {found.id}`, or, if its disk is lost for good, give them up with "
            f"`lightrail-admin shard remove {found.id} --lose-queues`",
        )
    coming = [move for move in map.moves.values() if move.to == found.id]
    if coming and not lose:
        raise ProblemError(
            409,
            f"{len(coming)} queues are moving to shard {found.id}, such as {coming[0].queue}: cancel "
            "their moves with `lightrail-admin rebalance --cancel` first",
        )
    others = [shard for shard in takers(map) if shard != found.id]
    if queues and not others:
        raise ProblemError(
            409, f"no other shard can have the {len(queues)} queues of shard {found.id}: start one"
        )
    loads = {shard: map.loads[shard] for shard in others}
    owners: dict[str, int] = {}
    request.directory.refresh()
    for queue in queues:
        replicas = request.directory.get(queue).policy["replicas"]
        allowed = {shard: load for shard, load in loads.items() if members_of(map, shard) >= replicas}
        if not allowed:
            raise ProblemError(
                409,
                f"the policy of {queue} demands {replicas} replicas, and no other shard is to have so many "
                f"members: lower it, or give another shard more with `lightrail-admin shard replicas N "
                f"--replicas {replicas}`",
            )
        owners[queue] = choose(queue, allowed)
        loads[owners[queue]] += 1
    await _give_up(request, found, None, owners.__getitem__)
    return web.Response(status=204)


async def _write(request: Request, found: ShardRecord, value: str | None) -> None:
    try:
        await request.services.coordinator.write([Write(f"{SHARD_SETS}{found.id}", value, found.revision)])
    except ConflictError:
        raise ProblemError(
            409, f"shard {found.id} was changed by somebody else just now; look again"
        ) from None


def _shown(map: Map, each: ShardRecord, serving: bool) -> dict[str, Any]:
    member = map.shards.get(each.id)
    return {
        "id": each.id,
        "state": each.state,
        "registered": member is not None,
        "serving": serving,
        "queues": len(map.queues_of(each.id)),
        "moving_in": sum(move.to == each.id for move in map.moves.values()),
        "moving_out": sum(move.source == each.id for move in map.moves.values()),
        "disk": each.disk,
        "address": member.address if member else "",
        "host": member.host if member else "",
        "zone": member.zone if member else "",
        "version": member.version if member else "",
        "started_ms": member.started_ms if member else None,
        "replicas": replicas.shown(map, each.id),
    }
