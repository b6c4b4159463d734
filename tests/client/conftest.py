"""A broker for the tests of the client."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import Broker

DEADLINE_S = 30.0


def play(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine in a loop of its own."""
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


@pytest.fixture
def broker(shared_broker: Broker) -> Broker:
    return shared_broker


@pytest.fixture
def proxy(broker: Broker) -> Iterator[CuttingProxy]:
    """Another address of the broker, which a test may cut and close."""
    between = CuttingProxy(int(broker.amqp.rpartition(":")[2]))
    yield between
    between.close()
