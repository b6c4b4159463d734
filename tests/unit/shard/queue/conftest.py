"""A checked queue without a policy, for tests that need no other one."""

import pytest

from tests.support.shard.checked_queue import PlainBench


@pytest.fixture
def bench() -> PlainBench:
    return PlainBench()
