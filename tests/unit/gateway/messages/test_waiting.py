"""The line of requests that wait: its order, its time-outs, its end."""

import asyncio
from collections.abc import Awaitable, Callable

from lightrail.gateway.messages.receiving import WaitingLine

Line = WaitingLine[str]


def with_line(check: Callable[[Line, list[int]], Awaitable[None]]) -> None:
    async def run() -> None:
        timed_out: list[int] = []
        await check(WaitingLine(asyncio.get_running_loop(), timed_out.append), timed_out)

    asyncio.run(run())


def test_the_oldest_request_that_still_waits_is_served_first() -> None:
    async def check(line: Line, timed_out: list[int]) -> None:
        first, second, third = (line.join(0) for _ in range(3))
        first.cancel()
        line.left(1)
        assert line.pop() is second
        assert line.pop() is third
        assert line.pop() is None
        line.left(2)
        assert (line.count, timed_out) == (0, [])

    with_line(check)


def test_requests_time_out_together_and_the_later_ones_wait_on() -> None:
    async def check(line: Line, timed_out: list[int]) -> None:
        late, *early = line.join(60_000), line.join(1), line.join(1)
        assert await asyncio.gather(*early) == [None, None]
        assert sum(timed_out) == 2
        line.left(2)
        assert line.pop() is late

    with_line(check)


def test_a_closed_line_gives_back_the_requests_that_need_an_answer() -> None:
    async def check(line: Line, timed_out: list[int]) -> None:
        gave_up, waits = line.join(1), line.join(1)
        gave_up.cancel()
        assert line.close() == [waits]
        await asyncio.sleep(0.01)
        assert (line.count, timed_out, waits.done()) == (0, [], False)

    with_line(check)
