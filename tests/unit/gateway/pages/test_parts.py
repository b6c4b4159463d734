"""Charts: which series get a sample, and when."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from lightrail.gateway.pages.parts import Charts

CALLER: Any = object()


def test_a_series_that_begins_while_others_wait_gets_its_second_sample_an_interval_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    asleep: list[asyncio.Future[None]] = []

    async def sleep(_: float) -> None:
        asleep.append(asyncio.get_running_loop().create_future())
        await asleep[-1]

    async def figures(of: str, caller: object) -> Mapping[str, float]:
        return {"messages": 1000 * now_s}

    async def turn() -> None:
        for _ in range(10):
            await real_sleep(0)

    async def check() -> None:
        nonlocal now_s
        charts = Charts(figures, lambda: now_s)
        await charts.columns("old", CALLER, (), ("messages",))
        await turn()
        now_s = 1.9
        await charts.columns("new", CALLER, (), ("messages",))
        for at_s in (2.0, 4.0):
            now_s = at_s
            asleep.pop().set_result(None)
            await turn()
        old = await charts.columns("old", CALLER, (), ("messages",))
        assert old == {"t": [2.0, 4.0], "messages": [1000.0, 1000.0]}
        new = await charts.columns("new", CALLER, (), ("messages",))
        assert new["t"] == [4.0]
        await charts.stop()

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(check())
