"""Loads: the work of each queue for its shard, measured from the counters of all shards at two times."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from lightrail.cluster.map import Map
from lightrail.model import limits, names
from lightrail.model.placement import BASE, QueueLoad
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.shard_connections import ShardConnections


class _Row(NamedTuple):
    shard: int
    bytes: int
    passed: int
    """Total of messages that arrived and messages that were delivered."""


class Loads(NamedTuple):
    """The loads of all queues."""

    queues: dict[str, QueueLoad]
    """Every placed queue, together with its dead letters."""
    silent: list[int]
    """Shards that did not answer: their queues count as idle, and nothing moves from or to them."""


async def measure(
    map: Map, shards: ShardConnections, sample_s: float, clock: Callable[[], float] = time.monotonic
) -> Loads:
    """Loads of all queues: BASE and messages per second over `sample_s` seconds (0: not measured).

    Args:
        clock: monotonic seconds; reading the counters of many queues takes time, too.
    """
    began = clock()
    first, silent = await _counters(map, shards)
    second, passed_s = first, 0.0
    if sample_s > 0:
        await asyncio.sleep(sample_s)
        passed_s = clock() - began
        second, still = await _counters(map, shards)
        silent = sorted({*silent, *still})
    found: dict[str, QueueLoad] = {}
    for queue, placed in map.placements().items():
        after, before = second.get(queue), first.get(queue)
        rate = 0.0
        if after is not None and before is not None and passed_s > 0:
            # A counter is lower if the queue moved or was created again meanwhile.
            rate = max(0.0, (after.passed - before.passed) / passed_s)
        found[queue] = QueueLoad(placed.shard, BASE + round(rate), after.bytes if after else 0)
    return Loads(found, silent)


async def _counters(map: Map, shards: ShardConnections) -> tuple[dict[str, _Row], list[int]]:
    wanted = {placed.shard for placed in map.placements().values()} | set(map.shard_records)
    found: dict[str, _Row] = {}
    silent: list[int] = []
    for shard, rows in zip(
        sorted(wanted), await asyncio.gather(*(rows_of(shards, each) for each in sorted(wanted))), strict=True
    ):
        if rows is None:
            silent.append(shard)
            continue
        for name, row in rows:
            owner = names.owner(name)
            placed = map.placed(owner)
            if placed is None or placed.shard != shard:
                continue
            total = found.get(owner, _Row(shard, 0, 0))
            found[owner] = _Row(
                shard, total.bytes + row["bytes"], total.passed + row["arrived"] + row["delivered"]
            )
    return found, silent


async def rows_of(shards: ShardConnections, shard: int) -> Iterable[tuple[str, dict[str, Any]]] | None:
    """Figures of all queues of a shard; None if the shard does not answer."""
    peer = shards.peers.get(shard)
    if peer is None:
        return None
    found: list[tuple[str, dict[str, Any]]] = []
    after: str | None = ""
    try:
        while after is not None:
            fields = (await peer.request("queues", {"after": after, "limit": limits.QUEUES_SHOWN_MAX})).fields
            for name, values in fields["queues"].items():
                found.append((name, dict(zip(fields["columns"], values, strict=True))))
            after = fields["next"]
    except (ShardDownError, ShardRefusedError):
        return None
    return found
