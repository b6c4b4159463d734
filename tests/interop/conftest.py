"""What the interoperability tests share: one broker per module, and a fresh queue per test."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Without users: ANONYMOUS on loopback."""
    with Broker(tmp_path_factory.mktemp("broker") / "data") as started:
        yield started


@pytest.fixture
def queue() -> str:
    """The name of a queue that nothing else uses."""
    return f"interop/q{next(_numbers)}"
