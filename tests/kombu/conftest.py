"""A broker, and connections of Kombu to it; each test has a virtual host of its own."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection

import lightrail.kombu  # noqa: F401 - it makes lightrail:// known
from tests.support.broker import Broker

_hosts = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kombu") / "data") as started:
        yield started


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., Connection]]:
    host = f"host{next(_hosts)}"
    opened: list[Connection] = []

    def open_one(**options: object) -> Connection:
        connection = Connection(f"lightrail://{broker.amqp}/{host}", **options)
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.release()
