"""Coordinators of each kind, and servers of etcd for one test each, which may kill and stop them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.etcd.channels import EtcdSettings
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from tests.contracts.coordinators import Check, Run
from tests.contracts.etcd_scene import PINGS
from tests.support.deploy.etcd import EtcdCluster, etcd


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One etcd server for all tests that do nothing to it; each has a cluster of its own in it."""
    with etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a check on a new coordinator and closes it."""

    async def checked(check: Check) -> None:
        coordinator: Coordinator
        if request.param == "etcd":
            endpoints = request.getfixturevalue("servers").endpoints
            settings = EtcdSettings(endpoints, cluster=tmp_path.name)
            coordinator = await EtcdCoordinator.open(settings)
        elif request.param == "memory":
            coordinator = MemoryCoordinator()
        else:
            coordinator = await SqliteCoordinator.open(str(tmp_path / FILE_NAME))
        try:
            await check(coordinator)
        finally:
            await coordinator.close()

    return lambda check: asyncio.run(checked(check))


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd(tmp_path, 1, PINGS) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd(tmp_path, 3, PINGS) as cluster:
        yield cluster
