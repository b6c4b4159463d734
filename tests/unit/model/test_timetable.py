"""Timetable: what is due comes once, at its last time, and costs the same among many."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from lightrail.model.timetable import Timetable
from tests.support import work


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
