"""A broker for the tests of the client."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from tests.support.broker import Broker

DEADLINE_S = 30.0


def play(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine in a loop of its own."""
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("client") / "data") as started:
        yield started
