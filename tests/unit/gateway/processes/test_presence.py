"""Which shards own queues and do not answer: those that are registered no more are named as well."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import generate_latest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import Map, Member, Placed, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import ReplicaSet, SetMember, follower_key
from lightrail.gateway.processes.members import PRESENCE_FAMILIES, Presence
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer
from lightrail.telemetry.metrics import registry


def peers(**states: ConnectionState) -> dict[int, ShardPeer]:
    """By names such as s0."""
    return {int(name[1:]): cast(ShardPeer, SimpleNamespace(state=state)) for name, state in states.items()}


async def cluster(*registered: int, queues: dict[str, int]) -> Map:
    """Three shards that were ever made known."""
    coordinator = MemoryCoordinator()
    writes = [Write(f"shardsets/{id}", ShardRecord(id, f"d{id}").encode()) for id in range(3)]
    writes += [Write(f"shards/{id}", Member(id, boot=id).encode()) for id in registered]
    writes += [Write(f"placement/{name}", Placed.encode(shard, 1)) for name, shard in queues.items()]
    await coordinator.write(writes)
    map = Map(coordinator)
    map.refresh()
    return map


def test_a_shard_that_owns_queues_and_is_registered_no_more_is_named_with_how_many() -> None:
    async def story() -> None:
        map = await cluster(0, queues={"a": 0, "b": 1, "c": 1, "d": 0})
        presence = Presence(map, peers(s0=ConnectionState.SERVING, s1=ConnectionState.GREETING))
        assert presence.known() == [0, 1, 2]
        assert [presence.queues(shard) for shard in (0, 1, 2)] == [2, 2, 0]
        # Shard 2 owns nothing: nobody waits for it.
        assert presence.unregistered() == [(1, "not registered; 2 queues wait for it")]
        assert presence.waiting(2) == ""
        # Never seen by this gateway, as one that was started later.
        assert Presence(map, peers(s0=ConnectionState.SERVING)).unregistered() == presence.unregistered()

    asyncio.run(story())


def test_one_that_answers_is_there_whatever_etcd_says_and_one_that_is_registered_is_asked_itself() -> None:
    async def story() -> None:
        map = await cluster(0, queues={"a": 0, "b": 1})
        assert (
            Presence(map, peers(s0=ConnectionState.GREETING, s1=ConnectionState.SERVING)).unregistered() == []
        )

    asyncio.run(story())


def test_a_queue_on_a_shard_that_nobody_knows_waits_too() -> None:
    async def story() -> None:
        map = await cluster(0, queues={"a": 7})
        assert Presence(map, {}).unregistered() == [(7, "not registered; 1 queue waits for it")]

    asyncio.run(story())


def test_metrics_have_a_series_for_each_known_shard() -> None:
    async def story() -> None:
        map = await cluster(0, queues={"b": 1})
        presence: Any = Presence(map, peers(s0=ConnectionState.SERVING))
        text = generate_latest(registry(PRESENCE_FAMILIES, presence)).decode()
        for shard, value in ((0, 1), (1, 0), (2, 0)):
            assert f'lightrail_placement_serving{{shard="{shard}"}} {value}.0' in text

    asyncio.run(story())


def test_metrics_have_the_members_of_shards_with_replicas() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        members = {id: SetMember(id) for id in "abc"}
        found = ReplicaSet(2, 7, "a", frozenset("ab"), members, 3, 2)
        await coordinator.write([Write(found.key, found.encode())])
        for member in ("a", "c"):
            await coordinator.write([Write(follower_key(2, member), Member(2, 1).encode())])
        map = Map(coordinator)
        map.refresh()
        presence: Any = Presence(map, {})
        text = generate_latest(registry(PRESENCE_FAMILIES, presence)).decode()
        for name, value in (
            ("replicas", 3),
            ("replicas_in_sync", 2),
            ("replicas_min_in_sync", 2),
            ("epoch", 7),
        ):
            assert f'lightrail_placement_{name}{{shard="2"}} {value}.0' in text
        for member, in_sync, running in (("a", 1, 1), ("b", 1, 0), ("c", 0, 1)):
            labels = f'{{member="{member}",shard="2"}}'
            assert f"lightrail_placement_member_in_sync{labels} {in_sync}.0" in text
            assert f"lightrail_placement_member_running{labels} {running}.0" in text

    asyncio.run(story())
