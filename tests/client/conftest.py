"""A broker for the tests of the client."""

from collections.abc import Iterator

import pytest

from tests.support.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("client") / "data") as started:
        yield started
