"""One broker for all laws; each test has names of its own."""

import itertools
from collections.abc import Iterator

import pytest
from proton.utils import BlockingConnection

from tests.policies.driver import Names
from tests.support.broker import Broker
from tests.support.proton_blocking import connected

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two shards, so that names are apart."""
    with Broker(tmp_path_factory.mktemp("policies") / "data", "--shards", "2") as running:
        yield running


@pytest.fixture
def names(broker: Broker) -> Iterator[Names]:
    made = Names(broker, f"test{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture
def amqp(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made
