"""Coordinators of real etcd servers that a test kills, stops, or sets back, with short times."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lightrail.cluster.etcd.channels import EtcdSettings, EtcdTimes
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from tests.support.wait import until

TIMES = EtcdTimes(
    call=2.0, attempt=0.5, lease=2.0, behind=1.0, pause=0.05, pause_max=0.3, ping=1.0, ping_answer=0.5
)


PINGS = "--grpc-keepalive-min-time=500ms"
"""Servers of Debian's age take offence at pings more often than every 5 s."""


async def opened(*endpoints: str, times: EtcdTimes = TIMES, **settings: str) -> EtcdCoordinator:
    return await EtcdCoordinator.open(EtcdSettings(endpoints, **settings), times=times)


async def eventually(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, condition, what, 20)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def keys(coordinator: EtcdCoordinator) -> set[str]:
    news = coordinator.news(0)
    assert news is not None
    return {entry.key for entry in news.entries}


def values(coordinator: EtcdCoordinator) -> set[str | None]:
    news = coordinator.news(0)
    assert news is not None
    return {entry.value for entry in news.entries}
