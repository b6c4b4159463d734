"""Servers of etcd for one test each, which may kill and stop them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.etcd_scene import PINGS
from tests.support.deploy.etcd import EtcdCluster, etcd


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd(tmp_path, 1, PINGS) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd(tmp_path, 3, PINGS) as cluster:
        yield cluster
