"""A broker, and connections of Kombu to it; each test has a virtual host of its own."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection

import lightrail.kombu  # noqa: F401 - it makes lightrail:// known
from tests.support.broker import Broker

_hosts = itertools.count(1)


@pytest.fixture
def broker(shared_broker: Broker) -> Broker:
    return shared_broker


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
