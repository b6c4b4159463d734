"""What the interoperability tests share: one broker per module, and a fresh queue per test."""

import itertools
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient

from tests.interop.azure_scene import administration_string, client_for, connection_string, key_of
from tests.support.amqp import azure_pauses
from tests.support.broker import Broker

_numbers = itertools.count(1)
azure_pauses.shorten()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Without users: ANONYMOUS on loopback."""
    with Broker(tmp_path_factory.mktemp("broker") / "data") as started:
        yield started


@pytest.fixture
def queue() -> str:
    """The name of a queue that nothing else uses."""
    return f"interop/q{next(_numbers)}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With a key: clients that do not log in have to put a token."""
    data = tmp_path_factory.mktemp("azure") / "data"
    key_of(data, "first")
    with Broker(data, "--service-bus-auto-create", "true") as started:
        yield started


@pytest.fixture(scope="module")
def key(guarded: Broker) -> str:
    """The name and the secret of a key, as a connection string has them."""
    return key_of(guarded.data, "shop")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """As a user of Service Bus expects it: names are made by their administration alone."""
    data = tmp_path_factory.mktemp("dotnet") / "data"
    key_of(data, "first")
    with Broker(data, "--allow-anonymous", "true") as started:
        yield started


@pytest.fixture(scope="module")
def strings(strict: Broker) -> tuple[str, str]:
    """Connection strings of a manager for messages, and for administration."""
    key = key_of(strict.data, "manager")
    return connection_string(strict, key), administration_string(strict, key)


@pytest.fixture
def client(guarded: Broker, key: str) -> Iterator[ServiceBusClient]:
    """Azure's own client for Python."""
    with client_for(guarded, key) as made:
        yield made
