"""What has come to its end is deleted, by whoever is first."""

import asyncio
from types import SimpleNamespace
from typing import Any

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import Member
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.app import open_services
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Members
from lightrail.gateway.sweeper import ORPHAN_MS, Orphans, in_use, sweep_once
from lightrail.model.policy import Policy
from lightrail.model.settings import Settings
from lightrail.namespace.rights import ANYBODY
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Answer
from tests.support.routers import Graph
from tests.support.shard.fake_shards import FakeShards

NOW_MS = 1_800_000_000_000


def test_expired_names_and_subscriptions_are_deleted_once() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        members = Members()
        shards: Any = FakeShards()
        gateways = [
            open_services(
                settings=Settings(),
                coordinator=coordinator,
                shards=shards,
                members=members,
                health=Health(0, members, lambda: None),
                sockets="",
            )
            for _ in range(2)
        ]
        service = gateways[0].namespace
        past = "2020-01-01T00:00:00Z"
        future = "2100-01-01T00:00:00Z"
        for name, policy in (
            ("over", {"role": "queue", "expires_at": past}),
            ("lasts", {"role": "queue", "expires_at": future}),
            ("r", {"role": "router"}),
        ):
            await service.give(ANYBODY, name, Policy.parse(policy))
        await service.subscribe(ANYBODY, "r", "lasts", expires_at=past, id="gone")
        await service.subscribe(ANYBODY, "r", "lasts", expires_at=future, id="stays")
        for gateway in gateways:
            gateway.directory.refresh()
        for gateway in gateways:
            await sweep_once(gateway, NOW_MS)
        assert {each.key for each in await coordinator.entries("names/")} == {"names/lasts", "names/r"}
        assert [each.key for each in await coordinator.entries("subscriptions/")] == [
            "subscriptions/r//stays"
        ]

        for gateway in gateways:
            gateway.connections.close()

    asyncio.run(run())


def test_names_of_a_frontend_that_is_gone_for_a_minute_are_orphans() -> None:
    async def run() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(1)
        queue = Policy.parse({"role": "queue"})
        for name, owner in (
            ("here", "frontend-0/0000000a/1"),
            ("gone", "frontend-1/0000000b/1/2"),
            ("former", "frontend-0/00000009/1"),
            ("free", ""),
        ):
            await graph.service.give(ANYBODY, name, queue, owner=owner)
        members = {0: Member(0, 10)}
        orphans = Orphans()

        def names(now_ms: int) -> list[str]:
            return sorted(record.name for record in orphans.overdue(graph.directory, members, now_ms))

        assert names(0) == []
        assert names(ORPHAN_MS - 1) == []
        assert names(ORPHAN_MS) == ["former", "gone"]
        members[1] = Member(1, 11)
        assert names(ORPHAN_MS) == ["former"]
        members.clear()
        assert names(ORPHAN_MS) == [], "nobody registers here"
        members[0] = Member(0, 10)
        assert names(ORPHAN_MS) == [], "the minute begins anew"

    asyncio.run(run())


def test_a_queue_somebody_consumes_from_belongs_to_a_frontend_that_lives() -> None:
    async def run() -> None:
        for answer, expected in (
            (Answer({"consumer_count": 1}, memoryview(b"")), True),
            (Answer({"consumer_count": 0}, memoryview(b"")), False),
            (ShardDownError("it is not there now"), True),
            (CoordinatorError("etcd is away"), True),
        ):

            async def request(name: str, op: str, fields: dict[str, Any], answer: Any = answer) -> Answer:
                assert (name, op) == ("q", "queue")
                if isinstance(answer, Exception):
                    raise answer
                return answer  # type: ignore[no-any-return]

            gateway: Any = SimpleNamespace(shards=SimpleNamespace(request=request))
            assert await in_use(gateway, "q") is expected

    asyncio.run(run())
