"""Exposition: the four paths of a process's own HTTP port."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.opening import listing_key, may_list
from lightrail.cluster.users import UserRecord
from lightrail.telemetry import exposition
from lightrail.telemetry.metrics import registry
from lightrail.telemetry.queues import QUEUE_FIGURES
from lightrail.telemetry.running import Running
from lightrail.telemetry.shard import SHARD_FAMILIES, ShardCounts


async def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, response.headers["Content-Type"], await response.text()


def test_the_paths() -> None:
    async def check() -> None:
        counts = ShardCounts()
        figures: Any = SimpleNamespace(**dict.fromkeys(QUEUE_FIGURES, 3))
        counts.queues = lambda prefix: [
            (name, lambda: figures) for name in ("a", "b") if name.startswith(prefix)
        ]
        reasons: list[str | None] = ["recovering"]
        notices: list[str | None] = [None]
        runner, port = await exposition.start(
            "127.0.0.1",
            0,
            registry(SHARD_FAMILIES, counts),
            lambda: reasons[0],
            running=Running("shard", lambda: 3),
            shard=counts,
            notice=lambda: notices[0],
        )
        try:
            assert await get(port, "/readyz") == (503, "text/plain; charset=utf-8", "recovering\n")
            assert (await get(port, "/healthz"))[0] == 200
            assert 'lightrail_ready{role="shard",id="3"} 0.0' in (await get(port, "/metrics"))[2]
            reasons[0] = None
            assert (await get(port, "/readyz"))[::2] == (200, "ready\n")
            notices[0] = "refuses messages"
            assert (await get(port, "/readyz"))[::2] == (200, "ready; refuses messages\n")
            status, kind, text = await get(port, "/metrics")
            assert (status, kind) == (200, exposition.TEXT)
            assert 'lightrail_queue_messages{state="ready",role="shard",id="3"} 6.0' in text
            assert "lightrail_detailed" not in text
            _, _, text = await get(port, "/metrics/detailed?queue=b")
            assert 'lightrail_detailed_messages{queue="b",state="ready",role="shard",id="3"} 3.0' in text
            assert 'queue="a"' not in text
            assert (await get(port, "/other"))[0] == 404
        finally:
            await runner.cleanup()

    asyncio.run(check())


def test_names_of_queues_are_for_gateways_alone_once_there_are_users() -> None:
    async def check() -> None:
        coordinator = MemoryCoordinator()
        counts = ShardCounts()
        counts.queues = lambda prefix: []
        runner, port = await exposition.start(
            "127.0.0.1",
            0,
            registry(SHARD_FAMILIES, counts),
            lambda: None,
            shard=counts,
            may_list=partial(may_list, coordinator),
        )
        try:
            assert (await get(port, "/metrics/detailed"))[0] == 200
            await coordinator.add_user(UserRecord.make("alice", "secret", 4_096))
            for shown in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer \u00e9"}):
                status, _, text = await get(port, "/metrics/detailed?queue=b", **shown)
                assert (status, "as a user who may manage all" in text) == (403, True)
            key = await listing_key(coordinator)
            assert (await get(port, "/metrics/detailed", Authorization=key))[0] == 200
            assert (await get(port, "/metrics"))[0] == 200
        finally:
            await runner.cleanup()

    asyncio.run(check())
