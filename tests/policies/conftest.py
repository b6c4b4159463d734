"""One broker for all laws; each test has names of its own."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton.utils import BlockingConnection

pytest.register_assert_rewrite(
    "tests.policies.driver",
    *(f"tests.policies.{each.stem}" for each in Path(__file__).parent.glob("stories_of_*.py")),
)

from tests.policies.driver import Names  # noqa: E402 - its assertions are told in full
from tests.support.amqp.proton_blocking import connected  # noqa: E402
from tests.support.broker import Broker  # noqa: E402

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two shards, so that names are apart."""
    with Broker(
        tmp_path_factory.mktemp("policies") / "data", "--shards", "2", "--push-allow", "127.0.0.1"
    ) as running:
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
