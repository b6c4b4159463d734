"""Shards over HTTP: who there is, draining one, reviving it, removing it for good."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from lightrail.cluster import moves
from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, Coordinator, Write
from lightrail.cluster.map import PLACEMENT, SHARD_SETS, Map, Move, Placed, ShardRecord
from lightrail.cluster.placement import choose
from lightrail.gateway.asked import Asked, whole_number
from lightrail.gateway.errors import Problem
from lightrail.wire.requests import ShardDownError, ShardRefusedError
from lightrail.wire.shards import ShardPeer, State

STATES: Final = ("active", "draining")


async def list_all(asked: Asked) -> web.Response:
    """GET /!shards: every shard that is known, alive or not."""
    asked.manager()
    map = asked.gateway.map
    map.refresh()
    return web.json_response(
        {"shards": [_serving(asked, each) for _, each in sorted(map.shard_records.items())]}
    )


async def show(asked: Asked) -> web.Response:
    """GET /!shards/ID: one of them, with the names of its queues."""
    asked.manager()
    found = _found(asked)
    return web.json_response(
        _serving(asked, found) | {"queue_names": sorted(asked.gateway.map.queues_of(found.id))}
    )


async def change(asked: Asked) -> web.Response:
    """PUT /!shards/ID with {"state": "draining" or "active"}, or {"disk": ""}: its disk is lost for good."""
    asked.manager()
    value = await asked.json_object("state", "disk")
    if "disk" in value:
        return await _forget_disk(asked, value)
    state = value.get("state")
    if state not in STATES:
        raise Problem(
            422,
            f"state is {str(state)[:40]!a}; expected {' or '.join(STATES)}",
            field="state",
            allowed=list(STATES),
        )
    map = asked.gateway.map
    found = _found(asked)
    if state == "draining" and found.state == "active" and map.takers() == [found.id]:
        raise Problem(409, f"shard {found.id} is the only one that takes queues: start another first")
    await _write(asked, found, replace(found, state=state).encode())
    return _answer(asked, found)


async def _forget_disk(asked: Asked, value: dict[str, Any]) -> web.Response:
    """The next process that registers under this number makes its disk the shard's, with no messages.

    Each queue of the shard gets an epoch in which what is on the old disk is given up, the last ones
    together with the disk: nobody who knows of them is served by the old process any more.
    """
    if value != {"disk": ""}:
        raise Problem(422, 'expected {"disk": ""} alone: shards write their disks down', field="disk")
    found = _found(asked)
    await _refuse_living(asked, found)
    await _give_up(asked, found, replace(found, disk="").encode(), lambda _: found.id)
    return _answer(asked, found)


async def _refuse_living(asked: Asked, found: ShardRecord) -> None:
    """A shard that lost its way to the coordinator is not registered any more, and serves all the same."""
    gateway = asked.gateway
    registered = gateway.map.shards.get(found.id)
    if registered is not None:
        raise Problem(409, f"shard {found.id} still runs, at {registered.address}: stop it first")
    peer = gateway.shards.peers.get(found.id)
    if peer is not None and await _answers(peer):
        raise Problem(
            409,
            f"shard {found.id} is not registered and answers all the same, at {peer.address}: it has "
            "lost its way to the coordinator and serves on. Stop it first",
        )


async def _answers(peer: ShardPeer) -> bool:
    """Whether a shard is there now: one that has just ended may not have been missed yet."""
    try:
        await peer.request("kept", {})
    except ShardDownError:
        return False
    except ShardRefusedError:
        return True
    return True


async def _give_up(asked: Asked, found: ShardRecord, value: str | None, owner: Callable[[str], int]) -> None:
    """Gives up all messages of a shard's queues, then writes the shard's own entry.

    The queues' owners are told by the same transactions that raise their epochs; a disk that comes back finds
    by these that nobody has its messages, and keeps them.
    """
    gateway = asked.gateway
    map = gateway.map
    writes = []
    for queue in map.queues_of(found.id):
        placed = map.placements()[queue]
        epoch = placed.epoch + 1
        writes.append(Write(PLACEMENT + queue, Placed.encode(owner(queue), epoch, epoch), placed.revision))
        move = map.moves.get(queue)
        if move is not None:
            writes.append(Write(move.key, None, move.revision))
    writes.append(Write(f"{SHARD_SETS}{found.id}", value, found.revision))
    first = len(writes) % WRITES_MAX or WRITES_MAX
    try:
        # The entry of the shard goes in the last transaction: until then all this can be asked for again.
        for end in range(first, len(writes) + 1, WRITES_MAX):
            await gateway.coordinator.write(writes[max(0, end - WRITES_MAX) : end])
    except ConflictError as conflict:
        raise Problem(409, f"{conflict.key} was changed by somebody else just now; look again") from None
    finally:
        map.refresh()


def _answer(asked: Asked, changed: ShardRecord) -> web.Response:
    """How a shard is that was changed just now."""
    map = asked.gateway.map
    map.refresh()
    return web.json_response(_serving(asked, map.shard_records.get(changed.id, changed)))


def _serving(asked: Asked, found: ShardRecord) -> dict[str, Any]:
    peer = asked.gateway.shards.peers.get(found.id)
    return _shown(asked.gateway.map, found, peer is not None and peer.state is State.SERVING)


async def remove(asked: Asked) -> web.Response:
    """DELETE /!shards/ID: forgets a shard that has no queues and does not run.

    With ?lose_queues=true its queues are given up with their messages, and are at other shards, empty, from
    then on. Should the disk come back, it keeps what it has and serves nothing of it.
    """
    asked.manager()
    lose = asked.flag("lose_queues")
    gateway = asked.gateway
    map = gateway.map
    found = _found(asked)
    await _refuse_living(asked, found)
    queues = map.queues_of(found.id)
    if queues and not lose:
        raise Problem(
            409,
            f"shard {found.id} has {len(queues)} queues, such as {queues[0]}: start it and drain it with "
            f"`lightrail-admin shard drain {found.id}`, or, if its disk is lost for good, give them up with "
            f"`lightrail-admin shard remove {found.id} --lose-queues`",
        )
    coming = [move for move in map.moves.values() if move.to == found.id]
    if coming and not lose:
        raise Problem(
            409,
            f"{len(coming)} queues are on their way to shard {found.id}, such as {coming[0].queue}: call "
            "them off with `lightrail-admin rebalance --cancel` first",
        )
    loads = {shard: map.loads[shard] for shard in map.takers() if shard != found.id}
    if queues and not loads:
        raise Problem(409, f"no other shard can have the {len(queues)} queues of shard {found.id}: start one")
    for move in coming:
        placed = map.placements().get(move.queue)
        if placed is not None:
            await _keep(gateway.coordinator, move, placed)

    def owner(queue: str) -> int:
        shard = choose(queue, loads)
        loads[shard] += 1
        return shard

    await _give_up(asked, found, None, owner)
    return web.Response(status=204)


async def _keep(coordinator: Coordinator, move: Move, placed: Placed) -> None:
    """A queue that was to come to a shard which is lost stays at its source."""
    try:
        await moves.give_up(coordinator, move, placed)
    except ConflictError:
        raise Problem(409, f"the move of {move.queue} went on just now: look again") from None


def _found(asked: Asked) -> ShardRecord:
    map = asked.gateway.map
    map.refresh()
    id = whole_number("the shard", asked.rest[0], 0, 1_000_000)
    found = map.shard_records.get(id)
    if found is None:
        known = ", ".join(str(each) for each in sorted(map.shard_records))
        raise Problem(404, f"there is no shard {id}; there are {known}")
    return found


async def _write(asked: Asked, found: ShardRecord, value: str | None) -> None:
    try:
        await asked.gateway.coordinator.write([Write(f"{SHARD_SETS}{found.id}", value, found.revision)])
    except ConflictError:
        raise Problem(409, f"shard {found.id} was changed by somebody else just now; look again") from None


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
    }
