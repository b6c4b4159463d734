"""The loops that the tests of this folder run on: that of asyncio, and uvloop, which the product uses."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

WAIT_S = 20
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on one of the loops; fails if a callback of the loop raised."""

    def run(test: Coroutine[Any, Any, None]) -> None:
        raised: list[dict[str, Any]] = []

        async def guarded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
            async with asyncio.timeout(WAIT_S):
                await test

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(guarded())
        assert not raised

    return run
