"""Readers of journals: their positions go forward, and every process sees them in its map."""

import asyncio

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import Map, MapChanges
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.readers import (
    READERS,
    InvalidReaderError,
    Reader,
    ReaderGoesBackError,
    check_name,
    is_disk,
)
from lightrail.model import limits


def test_an_entry_says_all_of_a_reader() -> None:
    reader = Reader({"ab": 7}, 2.5, 1_000, 123)
    assert Reader.decode(reader.encode(), 9) == Reader({"ab": 7}, 2.5, 1_000, 123, revision=9)


def test_positions_go_forward_and_those_of_other_journals_stay() -> None:
    reader = Reader({"a": 5, "b": 9}).moved({"a": 6, "c": 1}, 100)
    assert reader.positions == {"a": 6, "b": 9, "c": 1}
    assert reader.moved_ms == 100
    assert reader.moved({"a": 6}, 200).positions == reader.positions


def test_a_position_that_goes_back_is_refused_unless_it_was_meant() -> None:
    reader = Reader({"a": 5})
    with pytest.raises(ReaderGoesBackError, match="at 5 in journal a already, and 4"):
        reader.moved({"b": 1, "a": 4}, 100)
    assert reader.moved({"a": 4}, 100, back=True).positions == {"a": 4}


def test_the_journals_of_a_reader_are_bounded_and_can_be_forgotten() -> None:
    reader = Reader({f"{number:x}": 1 for number in range(limits.READER_POSITIONS_MAX)})
    with pytest.raises(InvalidReaderError, match="forget those"):
        reader.moved({"ffffff": 1}, 100)
    assert "0" in reader.positions
    assert reader.without({"0"}).moved({"ffffff": 1}, 100).positions["ffffff"] == 1


def test_the_names_of_readers_are_those_of_names() -> None:
    check_name("analytics/capture")
    for bad in ("", "a//b", "!x", "q/$dlq", "$temporary/x", "a\nb", "x" * 600):
        with pytest.raises(InvalidReaderError):
            check_name(bad)


def test_journals_are_called_by_hexadecimal_digits() -> None:
    assert is_disk("0123456789abcdef" * 4)
    assert not is_disk("")
    assert not is_disk("A")
    assert not is_disk("a" * 65)
    assert not is_disk("../a")


def test_the_map_sees_readers_come_go_on_and_go() -> None:
    coordinator = MemoryCoordinator()
    map = Map(coordinator)
    heard: list[MapChanges] = []
    map.listen(heard.append)
    key = READERS + "analytics/capture"

    def write(value: str | None) -> None:
        asyncio.run(coordinator.write([Write(key, value)]))
        map.refresh()

    write(Reader({"ab": 7}).encode())
    assert map.readers["analytics/capture"].positions == {"ab": 7}
    assert map.readers["analytics/capture"].revision == 1
    assert heard[-1].readers == {"analytics/capture"}
    write('{"positions": [1]}')
    assert map.readers["analytics/capture"].positions == {"ab": 7}
    write(None)
    assert map.readers == {}
    assert len(heard) == 2


def test_a_map_that_begins_anew_forgets_readers_that_are_gone() -> None:
    coordinator = MemoryCoordinator()
    map = Map(coordinator)
    asyncio.run(coordinator.write([Write(READERS + "a", Reader().encode())]))
    map.refresh()
    map.readers["gone"] = Reader()
    map._follower.revision = 0
    map.refresh()
    assert list(map.readers) == ["a"]
