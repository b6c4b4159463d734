"""What a process counts of etcd while it idles, and while real servers are killed, stopped and come back."""

import asyncio
import time
from collections.abc import Callable

import pytest

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.etcd.channels import EtcdSettings
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from lightrail.telemetry.metrics import registry
from tests.contracts.etcd_scene import TIMES, run
from tests.support.deploy.etcd import EtcdCluster
from tests.support.wait import until

SOON_S = 5.0
"""Within what people call at once: longer than a ping, its answer, and a refresh of the lease in vain."""


async def soon(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, condition, what, SOON_S)


def shown(coordinator: EtcdCoordinator, name: str) -> float:
    """As a scrape has it."""
    found = registry(COORDINATOR_FAMILIES, coordinator.counts).get_sample_value(
        f"lightrail_coordinator_{name}"
    )
    assert found is not None
    return found


async def heard_again(coordinator: EtcdCoordinator) -> None:
    last = coordinator.counts.heard_s
    await soon(lambda: coordinator.counts.heard_s > last, "a sign of life")


async def opened(one: EtcdCluster, registered: bool) -> EtcdCoordinator:
    coordinator = await EtcdCoordinator.open(EtcdSettings(one.endpoints), times=TIMES)
    if registered:
        await coordinator.register("frontends/0", '{"boot":1}', print)
    return coordinator


@pytest.mark.parametrize("registered", [True, False])
def test_an_idle_process_hears_of_etcd_again_and_again(one: EtcdCluster, registered: bool) -> None:
    async def check() -> None:
        coordinator = await opened(one, registered)
        for _ in range(4):
            await heard_again(coordinator)
        assert shown(coordinator, "up") == 1
        assert shown(coordinator, "contact_age_seconds") < 2 * TIMES.lease
        assert shown(coordinator, "failures_total") == 0
        assert shown(coordinator, "watch_restarts_total") == 0
        await coordinator.close()

    run(check())


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("hangs", [True, False])
def test_an_idle_process_shows_soon_that_etcd_is_away_and_that_it_is_back(
    one: EtcdCluster, registered: bool, hangs: bool
) -> None:
    async def check() -> None:
        coordinator = await opened(one, registered)
        server = one.servers[0]
        if hangs:
            server.stop()
        else:
            server.kill()
        away = time.monotonic()
        await soon(lambda: shown(coordinator, "up") == 0, "it is away")
        # It stays away, and is looked for.
        failures = shown(coordinator, "failures_total")
        assert failures > 0
        await soon(lambda: shown(coordinator, "failures_total") > failures + 1, "more failures")
        assert shown(coordinator, "up") == 0
        assert shown(coordinator, "contact_age_seconds") > time.monotonic() - away - 0.1
        assert shown(coordinator, "watch_restarts_total") == 0
        if hangs:
            server.proceed()
        else:
            server.start()
        await soon(lambda: shown(coordinator, "up") == 1, "it is back")
        await soon(lambda: shown(coordinator, "watch_restarts_total") == 1, "it is followed")
        assert shown(coordinator, "contact_age_seconds") < SOON_S
        await coordinator.close()

    run(check())


def test_an_answer_that_refuses_is_no_failure_and_one_that_does_not_come_is(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(one, registered=True)
        writes = shown(coordinator, "write_seconds_count")
        assert writes >= 1
        await coordinator.write([Write("names/a", "1", 0)])
        with pytest.raises(ConflictError):
            await coordinator.write([Write("names/a", "2", 0)])
        assert shown(coordinator, "write_seconds_count") == writes + 1
        assert (shown(coordinator, "up"), shown(coordinator, "failures_total")) == (1, 0)
        one.servers[0].kill()
        failures = shown(coordinator, "failures_total")
        with pytest.raises(CoordinatorError, match="does not answer"):
            await coordinator.write([Write("names/b", "1", 0)])
        assert shown(coordinator, "failures_total") > failures
        assert shown(coordinator, "write_seconds_count") == writes + 1
        await coordinator.close()

    run(check())


def test_changes_that_can_not_be_followed_are_not_hidden_by_calls_that_are_answered(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(one, registered=True)
        # Another cluster's data: it answers calls, and must not be followed.
        assert one.servers[0].control("del", "/lightrail/lightrail/identity").returncode == 0
        one.servers[0].kill()
        one.start()
        await soon(lambda: shown(coordinator, "up") == 0, "it is not followed")
        for _ in range(3):
            await heard_again(coordinator)
            assert shown(coordinator, "up") == 0
        await coordinator.close()

    run(check())
