"""Deadlines by the clock of a shard: never later than the caller's, whatever the way of a reading takes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard_client.deadlines import ANSWER_MS, READINGS, ShardClock, due_ms, left_ms, within
from lightrail.wire.frames import COUNT_MASK, TIMED, Kind, frame, is_late

NOW = 1_700_000_000_000


def reading(clock: ShardClock, shard_ms: int, now_ms: int) -> None:
    clock.read(frame(Kind.PONG, flags=TIMED, epoch=shard_ms), now_ms)


@given(
    ahead_ms=st.integers(-(1 << 30), 1 << 30),
    delays=st.lists(st.integers(0, 100_000), min_size=1, max_size=4 * READINGS),
    now_ms=st.integers(NOW, NOW + (1 << 33)),
)
def test_a_deadline_is_never_too_late_and_as_near_as_the_quickest_of_the_last_readings(
    ahead_ms: int, delays: list[int], now_ms: int
) -> None:
    clock = ShardClock()
    for delay in delays:
        reading(clock, now_ms + ahead_ms - delay, now_ms)
    due = clock.at(now_ms + 500)
    assert due is not None
    early = now_ms + 500 + ahead_ms - due & COUNT_MASK
    assert min(delays) <= early <= min(delays[-READINGS:])
    for late in (1, 10_000_000):
        assert is_late(due, now_ms + 500 + ahead_ms + late)
    assert not is_late(due, now_ms + 500 + ahead_ms - early)


def test_without_a_reading_there_is_no_deadline() -> None:
    clock = ShardClock()
    # A shard of a former version.
    clock.read(frame(Kind.PONG), NOW)
    assert clock.at(NOW) is None
    reading(clock, 5, NOW)
    assert clock.at(NOW) == 5
    clock.forget()
    assert clock.at(NOW) is None


def test_there_is_time_for_the_answer() -> None:
    assert due_ms(1_000, 30_000) == 31_000 - ANSWER_MS
    assert due_ms(1_000, 100) == 1_075


def test_requests_that_follow_from_another_have_its_deadline_and_tasks_that_outlive_it_have_none() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        assert left_ms(700) == 700
        outlives = asyncio.Event()

        async def task() -> int:
            await outlives.wait()
            return left_ms(700)

        with within(loop.time() + 0.5):
            assert 0 < left_ms(700) <= 500
            assert left_ms(100) == 100
            other = asyncio.ensure_future(task())
            await asyncio.sleep(0)
            with within(None):
                assert left_ms(700) == 700
            with within(loop.time() - 1):
                assert left_ms(700) == 0
        assert left_ms(700) == 700
        outlives.set()
        assert await other == 700

    asyncio.run(check())


@pytest.mark.parametrize("passed", [1, (1 << 31) - 1])
def test_a_time_is_over_from_its_next_millisecond_on(passed: int) -> None:
    assert is_late(NOW & COUNT_MASK, NOW + passed)
    assert not is_late(NOW & COUNT_MASK, NOW)
    assert not is_late(NOW & COUNT_MASK, NOW - passed)
