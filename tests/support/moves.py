"""Moves of queues as anybody asks for them: entries that are written through the coordinator's file."""

import asyncio
import time
from pathlib import Path

from lightrail.cluster import moves
from lightrail.cluster.map import Map
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from tests.support.wait import DEADLINE_S


def move(data: Path, *queues: str) -> dict[str, int]:
    """Moves queues of an installation with two shards to the other one; gives where they are then."""
    return asyncio.run(_move(data, queues))


async def _move(data: Path, queues: tuple[str, ...]) -> dict[str, int]:
    coordinator = await SqliteCoordinator.open(str(data / FILE_NAME))
    try:
        map = Map(coordinator)
        map.refresh()
        wanted = []
        for queue in queues:
            placed = map.placed(queue)
            assert placed is not None, f"{queue} is not placed"
            wanted.append((queue, 1 - placed.shard))
        await moves.begin(coordinator, map, wanted, now_ms=time.time_ns() // 1_000_000)
        deadline = time.monotonic() + DEADLINE_S
        map.refresh()
        while any(queue in map.moves for queue in queues):
            assert time.monotonic() < deadline, f"still moving: {map.moves}"
            await asyncio.sleep(0.005)
            map.refresh()
        found = {}
        for queue, to in wanted:
            placed = map.placed(queue)
            assert placed is not None
            assert placed.shard == to, f"{queue} did not move"
            found[queue] = placed.shard
        return found
    finally:
        await coordinator.close()
