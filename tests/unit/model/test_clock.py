"""The clock: it rises evenly whatever the wall clock does, and follows it in a time that is documented."""

import asyncio
import logging
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.engine import Frontend
from lightrail.model import clock
from lightrail.model.clock import CLOCK_SLEW, Clock, Timetable
from lightrail.namespace.directory import Directory
from lightrail.shard.engine.server import Server
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.sockets.wiring import Wiring
from tests.support import work

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND + 123_456


class Machine:
    """A wall clock that can be set, and a steady one."""

    def __init__(self) -> None:
        self.steady = 5 * SECOND + 17
        self.set_by = 0
        self.clock = Clock(self.wall, lambda: self.steady)

    def wall(self) -> int:
        return START + self.steady + self.set_by

    def wait(self, ns: int) -> int:
        """Lets time pass, and reads the clock."""
        self.steady += ns
        return self.clock.now_ms()

    @property
    def wall_ms(self) -> int:
        return self.wall() // 1_000_000


def test_without_jumps_it_is_the_wall_clock() -> None:
    machine = Machine()
    for wait in (0, 1, 999_999, 1_000_000, 1_000_001, SECOND, 3_600 * SECOND):
        assert machine.wait(wait) == machine.wall_ms


@pytest.mark.parametrize("paused", range(3))
def test_a_pause_while_a_clock_is_made_does_not_make_it_wrong(paused: int) -> None:
    now = 5 * SECOND
    readings = 0

    def read() -> int:
        """The first readings take 7 ms each: the system pauses the process."""
        nonlocal now, readings
        readings += 1
        now += 7_000_000 if readings <= paused else 100
        return now

    made = Clock(lambda: START + read(), read)
    assert abs(made.now_ms() - (START + now) // 1_000_000) <= 1


def test_a_pause_while_a_clock_is_read_does_not_move_it() -> None:
    now = 5 * SECOND
    pause = 0

    def wall() -> int:
        """The system pauses the process before the reading."""
        nonlocal now
        now += pause
        return START + now

    made = Clock(wall, lambda: now)
    before = made.now_ms()
    pause = 100_000_000
    now += 250_000_000
    assert made.now_ms() == before + 250
    pause = 0
    now += 10_000_000
    assert made.now_ms() == (START + now) // 1_000_000 == before + 360


@pytest.mark.parametrize("jump_s", [3_600, -3_600])
def test_a_jump_moves_no_difference_by_more_than_the_slew(jump_s: int) -> None:
    machine = Machine()
    before = machine.wait(0)
    machine.set_by = jump_s * SECOND
    assert machine.wait(0) == before
    lock_ms = 30_000
    after = machine.wait(lock_ms * 1_000_000)
    assert abs(after - before - lock_ms) <= lock_ms // CLOCK_SLEW + 1
    assert after > before


@pytest.mark.parametrize("jump_s", [60, -60])
def test_it_is_back_at_the_wall_clock_in_the_time_that_is_said(jump_s: int) -> None:
    machine = Machine()
    machine.set_by = jump_s * SECOND
    for _ in range(abs(jump_s) * CLOCK_SLEW - 10):
        machine.wait(SECOND)
    assert machine.wait(0) != machine.wall_ms
    assert machine.clock.off_ms * jump_s > 0
    for _ in range(12):
        machine.wait(SECOND)
    assert machine.wait(SECOND) == machine.wall_ms
    assert machine.clock.off_ms == 0


@given(st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(-10, 10)), max_size=50))
def test_it_never_runs_back_and_keeps_pace(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    before, steady = machine.wait(0), machine.steady
    for wait, jump_s in steps:
        machine.set_by += jump_s * SECOND
        now = machine.wait(wait)
        passed_ms = (machine.steady - steady) / 1e6
        slew = passed_ms / CLOCK_SLEW + 2
        assert passed_ms - slew <= now - before <= passed_ms + slew
        assert now >= before
        before, steady = now, machine.steady


def test_a_jump_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            machine.wait(SECOND)
        assert not caplog.messages
        machine.set_by = -60 * SECOND
        for _ in range(100):
            machine.wait(SECOND)
    assert len(caplog.messages) == 1
    assert "behind" in caplog.messages[0]


def test_the_clock_of_the_process_rises() -> None:
    readings = [clock.wall_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert isinstance(clock.off_ms(), int)


def test_everything_that_has_locks_and_times_to_live_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    for slot in Clock.__slots__:
        monkeypatch.setattr(clock._CLOCK, slot, getattr(machine.clock, slot))
    loop = asyncio.new_event_loop()
    readers = (
        Server.__new__(Server).now_ms,
        Frontend.now_ms,
        ShardConnections(MemoryCoordinator(), loop, Wiring(loop), name="gateway-0", boot=1).now_ms,
        Directory(MemoryCoordinator())._now_ms,
    )
    before = clock.wall_ms()
    machine.set_by = 3_600 * SECOND
    machine.steady += SECOND
    assert {read() for read in readers} == {before + 1_100}
    loop.close()


def test_things_come_once_at_their_time_the_earliest_first() -> None:
    timetable: Timetable[str] = Timetable()
    timetable.set("b", 20)
    timetable.set("a", 10)
    timetable.set("c", 30)
    assert timetable.take_due(9) == []
    assert timetable.take_due(20) == ["a", "b"]
    assert timetable.take_due(20) == []
    assert len(timetable) == 1


def test_the_last_time_counts() -> None:
    timetable: Timetable[str] = Timetable()
    timetable.set("a", 10)
    timetable.set("a", 20)
    assert timetable.take_due(10) == []
    timetable.set("a", 5)
    assert timetable.take_due(20) == ["a"]
    assert len(timetable) == 0


def test_a_thing_that_was_dropped_does_not_come() -> None:
    timetable: Timetable[str] = Timetable()
    timetable.drop("a")
    timetable.set("a", 10)
    timetable.drop("a")
    assert timetable.take_due(10) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20)), max_size=400))
def test_it_equals_a_search_through_all(changes: Iterable[tuple[int, int | None]]) -> None:
    timetable: Timetable[int] = Timetable()
    times: dict[int, int] = {}
    for thing, time_ms in changes:
        if time_ms is None:
            timetable.drop(thing)
            times.pop(thing, None)
        else:
            timetable.set(thing, time_ms)
            times[thing] = time_ms
    for now_ms in range(0, 21, 5):
        due = {thing for thing, time_ms in times.items() if time_ms <= now_ms}
        assert set(timetable.take_due(now_ms)) == due
        times = {thing: time_ms for thing, time_ms in times.items() if thing not in due}


def test_a_thing_whose_time_changes_again_and_again_does_not_grow() -> None:
    timetable: Timetable[str] = Timetable()
    for number in range(10_000):
        timetable.set("a", 1_000_000 + number)
    assert len(timetable._heap) < 200
    assert timetable.take_due(2_000_000) == ["a"]


def test_a_look_costs_the_same_among_many() -> None:
    def cost(count: int) -> int:
        timetable: Timetable[int] = Timetable()
        for number in range(count):
            timetable.set(number, 10 + number)
        return work.lines(lambda: timetable.take_due(10))

    assert cost(10_000) < cost(10) + 50
