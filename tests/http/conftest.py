"""One broker for the HTTP tests; each test has names of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.http_client import Http


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("http")
    with Broker(data / "data", "--shards", "2", "--push-allow", "127.0.0.1") as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[Http]:
    with Http(broker.http) as client:
        yield client
