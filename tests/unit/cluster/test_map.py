"""Map: what one process knows of placements, moves and members, as it takes in entries."""

import asyncio

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import GATEWAYS, SHARD_SETS, SHARDS, Map, Member, Move, Placed, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator


def test_an_entry_that_can_not_be_read_stays_as_it_was() -> None:
    async def check() -> None:
        coordinator = MemoryCoordinator()
        move = Move(queue="q", source=0, to=1, epoch=1)
        values = {
            "placement/q": Placed.encode(0, 1),
            move.key: move.encode(),
            f"{SHARD_SETS}0": ShardRecord(0, disk="d0").encode(),
            f"{SHARDS}0": Member(0, 5, address="tcp://a:1").encode(),
            f"{GATEWAYS}0": Member(0, 6).encode(),
        }
        await coordinator.write([Write(key, value) for key, value in values.items()])
        map = Map(coordinator)
        map.refresh()
        for unreadable in ("{", "[]", "7", '{"unknown": 1}'):
            await coordinator.write([Write(key, unreadable) for key in values])
            map.refresh()
            placed = map.placed("q")
            assert placed is not None
            assert placed.placement == (0, 1)
            assert map.loads == {0: 1}
            assert map.moves["q"].to == 1
            assert map.shard_records[0].disk == "d0"
            assert map.shards[0].address == "tcp://a:1"
            assert map.gateways[0].boot == 6
        # A later program may write more: what is known of it counts.
        later = {key: value[:-1] + ',"unknown":1}' for key, value in values.items()}
        await coordinator.write(
            [Write(key, value.replace("tcp://a", "tcp://b")) for key, value in later.items()]
        )
        map.refresh()
        assert map.shard_records[0].disk == "d0"
        assert map.shards[0].address == "tcp://b:1"
        assert map.moves["q"].to == 1
        await coordinator.write([Write(key, None) for key in values])
        map.refresh()
        assert map.placed("q") is None
        assert not map.moves
        assert not map.shard_records
        assert not map.shards
        assert not map.gateways

    asyncio.run(check())
