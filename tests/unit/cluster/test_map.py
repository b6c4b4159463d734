"""Map: what one process knows of placements, moves and members, as it takes in entries."""

import asyncio
import gc
import json

from lightrail.cluster.changes import ChangeFollower
from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import (
    GATEWAYS,
    PLACEMENT,
    SHARD_SETS,
    SHARDS,
    Map,
    Member,
    Move,
    Placed,
    ShardRecord,
    known,
)
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


def test_the_number_of_shards_is_read_and_confirmed_without_all_placements() -> None:
    async def check() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write(f"{SHARD_SETS}{id}", ShardRecord(id).encode(), 0) for id in range(3)])
        await coordinator.write([Write(f"{PLACEMENT}q", Placed.encode(0), 0)])
        assert await coordinator.shards() == 3
        await coordinator.set_shards(3)
        assert coordinator._map.placements() == {}
        assert await coordinator.placement("q") is not None

    asyncio.run(check())


def test_the_collector_rests_while_a_view_is_read_for_the_first_time() -> None:
    async def check() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        seen: list[tuple[str, bool]] = []
        follower: ChangeFollower[list[str]] = ChangeFollower(
            coordinator, list, lambda entry, _: seen.append((entry.key, gc.isenabled())), ("shardsets/",)
        )
        gc.enable()
        follower.read([])
        assert seen == [("shardsets/0", False)]
        assert gc.isenabled()
        await coordinator.set_shards(2)
        follower.read([])
        assert seen[1:] == [("shardsets/1", True)]

    asyncio.run(check())


def test_a_follower_applies_only_entries_of_its_prefixes() -> None:
    async def check() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write("a/1", "x", 0), Write("b/1", "x", 0)])
        seen: list[str] = []
        follower: ChangeFollower[list[str]] = ChangeFollower(
            coordinator, list, lambda entry, _: seen.append(entry.key), ("a/",)
        )
        follower.read([])
        await coordinator.write([Write("a/2", "x", 0), Write("b/2", "x", 0)])
        follower.read([])
        assert seen == ["a/1", "a/2"]

    asyncio.run(check())


def test_a_former_version_reads_registrations_of_processes_that_are_no_members() -> None:
    assert "lock" not in json.loads(Member(2, 7, "tcp://h:1").encode())
    assert json.loads(Member(2, 7, "tcp://h:1", lock="l").encode())["lock"] == "l"
    # The storage stands in those of members alone, too, and only where there is one.
    for member, storage in (
        (Member(2, 7, storage="nas"), None),
        (Member(2, 7, lock="l"), None),
        (Member(2, 7, lock="l", storage="nas"), "nas"),
    ):
        assert json.loads(member.encode()).get("storage") == storage
        assert Member(id=2, **known(Member, member.encode())).storage == (storage or "")
