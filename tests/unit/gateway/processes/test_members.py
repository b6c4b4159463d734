"""Whom a gateway knows: by its supervisor, by the map of the cluster, and by both."""

import asyncio
from typing import Any

from prometheus_client import generate_latest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import Map
from lightrail.cluster.map import Member as Registered
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.processes.members import FAMILIES, Member, Members
from lightrail.telemetry.metrics import registry
from tests.support.now import now


def described(role: str, id: int, **more: Any) -> dict[str, Any]:
    """As a supervisor tells it."""
    return {"role": role, "id": id, "ready": True, "restarts": 2, "metrics": f"127.0.0.1:{id}"} | more


def names(members: Members) -> list[str]:
    return [each.name for each in members.list()]


async def registered(coordinator: MemoryCoordinator, key: str, **fields: Any) -> None:
    id = int(key.rpartition("/")[2])
    registered: dict[str, Any] = {"boot": id, "host": "here", "metrics": f"127.0.0.1:{9000 + id}"} | fields
    await coordinator.write([Write(key, Registered(id=id, **registered).encode())])


def test_the_supervisors_list_leaves_gateways_out() -> None:
    members = Members()
    assert (members.known, members.list()) == (False, [])
    members.update({"other": 1})
    assert not now(members.known)
    members.update({"processes": [described("shard", 0), described("gateway", 0), described("frontend", 0)]})
    assert members.known
    assert names(members) == ["shard-0", "frontend-0"]


def test_members_of_a_shard_with_replicas_are_one_owner_and_its_followers() -> None:
    members = Members()
    shard = [
        described("shard", 0, member=1, follows=False),
        described("shard", 0, member=2, follows=True),
        described("shard", 0, member=3, follows=False, ready=False),
    ]
    members.update({"processes": shard})
    assert names(members) == ["shard-0", "follower-0/2", "follower-0/3"]
    text = generate_latest(registry(FAMILIES, members)).decode()
    assert 'lightrail_process_ready{number="0",of="shard"} 1.0' in text
    assert 'lightrail_process_ready{number="0/3",of="follower"} 0.0' in text


def test_who_is_registered_is_known_besides_and_this_gateway_is_left_out() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        map = Map(coordinator)
        members = Members()
        await registered(coordinator, "shards/0")
        await registered(coordinator, "gateways/0", boot=77)
        map.refresh()
        members.follow(map, 77, "here")
        assert names(members) == ["shard-0"]
        members.update({"processes": [described("shard", 0), described("frontend", 0, control="ipc://f")]})
        await registered(coordinator, "frontends/0", address="tcp://f:1")
        await registered(coordinator, "frontends/3", address="tcp://f:3")
        await registered(coordinator, "gateways/1")
        map.refresh()
        assert names(members) == ["shard-0", "frontend-0", "frontend-3", "gateway-1"]
        # Of its own machine's processes the supervisor knows more.
        supervised, other = members.list()[1:3]
        assert supervised == Member("frontend", 0, True, 2, "127.0.0.1:0", "ipc://f")
        assert other == Member("frontend", 3, True, 0, "127.0.0.1:9003", "tcp://f:3", False)
        await coordinator.write([Write("frontends/3", None), Write("gateways/1", None)])
        map.refresh()
        assert names(members) == ["shard-0", "frontend-0"]

    asyncio.run(story())


def test_metrics_on_the_loopback_of_another_machine_are_out_of_reach() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        map = Map(coordinator)
        members = Members()
        members.follow(map, 77, "here")
        await registered(coordinator, "shards/0", host="there")
        await registered(coordinator, "shards/1", host="there", metrics="10.0.0.1:9100")
        await registered(coordinator, "shards/2")
        await registered(coordinator, "shards/3", metrics="")
        map.refresh()
        found = {each.id: each.metrics for each in members.list()}
        assert found == {0: None, 1: "10.0.0.1:9100", 2: "127.0.0.1:9002", 3: None}

    asyncio.run(story())


def test_restarts_are_known_of_this_machine_alone() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        map = Map(coordinator)
        members = Members()
        members.follow(map, 77, "here")
        members.update({"processes": [described("shard", 0)]})
        await registered(coordinator, "shards/1")
        map.refresh()
        text = generate_latest(registry(FAMILIES, members)).decode()
        assert 'lightrail_process_restarts_total{number="0",of="shard"} 2.0' in text
        assert 'lightrail_process_restarts_total{number="1"' not in text
        assert 'lightrail_process_ready{number="1",of="shard"} 1.0' in text

    asyncio.run(story())
