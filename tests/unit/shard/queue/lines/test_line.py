"""A line against a dictionary: taking ranges, in any order, from anywhere."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lightrail.model import limits
from lightrail.shard.queue.lines.line import InFlight, Line
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.now import now


def line_of(counts: list[int]) -> tuple[Line, dict[int, bytes]]:
    line = Line()
    expected: dict[int, bytes] = {}
    key = 0
    for count in counts:
        messages = [f"{key + index}".encode() for index in range(count)]
        line.append(key, Run(batch_of(messages), 0, count, 1000 + key))
        expected.update({key + index: message for index, message in enumerate(messages)})
        key += count
    return line, expected


@given(
    st.lists(st.integers(1, 5), max_size=12),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=20),
)
def test_taking_ranges(counts: list[int], ranges: list[tuple[int, int]]) -> None:
    line, expected = line_of(counts)
    for first, length in ranges:
        taken = [message for run in line.take(first, first + length) for message in run.messages()]
        wanted = [key for key in sorted(expected) if first <= key < first + length]
        assert taken == [expected.pop(key) for key in wanted]
        left = {
            key + index: message
            for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True)
            for index, message in enumerate(run.messages())
        }
        assert left == expected


def test_a_long_line_forgets_what_was_taken() -> None:
    line, _ = line_of([1] * 2_000)
    for key in range(1_990):
        assert line.take(key, key + 1)
    assert len(line) == 10
    assert len(line.runs) < 1_000


def test_the_index_of_a_hole_is_that_of_the_next_run() -> None:
    line, _ = line_of([2, 2, 2])
    line.take(2, 4)
    assert line.runs[line.index(3)].sequence == 1004
    assert line.index(6) == len(line.runs)


SIZE = 100


def delivered(*counts: int, location: bool = True) -> InFlight:
    """Runs of so many messages of 100 bytes, each of a batch of its own in one segment."""
    line = InFlight()
    number = 0
    for count in counts:
        where = Location(1, SIZE * number, SIZE * count) if location else None
        batch = batch_of([b"%0100d" % (number + each) for each in range(count)], durable=True, location=where)
        line.append(number, Run(batch, 0, count, 1_000 + number))
        number += count
    return line


def numbers(line: InFlight) -> list[tuple[int, int]]:
    """Of each run: its number and how many messages."""
    return [(key, run.count) for key, run in zip(line.keys, line.runs, strict=True) if run.count]


class Memory:
    """Notes whose keys would be kept."""

    def __init__(self, kept_bytes: int) -> None:
        self.kept_bytes = kept_bytes
        self.remembered: list[int] = []

    def remember(self, run: Run) -> None:
        self.remembered += range(run.sequence, run.end)


def test_the_oldest_leave_memory_first_and_lie_together_on_disk() -> None:
    line = delivered(2, 2, 2)
    gone = line.evict(3 * SIZE + limits.RUN_EVICTED_BYTES, 100, None)
    assert [run.sequence for run in gone] == [1_000, 1_002]
    assert numbers(line) == [(0, 4), (4, 2)]
    assert [run.batch.evicted for run in line.runs] == [True, False]
    assert line.runs[0].batch.location == Location(1, 0, 4 * SIZE)
    assert not line.is_evicted
    line.evict(SIZE, 100, None)
    assert numbers(line) == [(0, 6)]
    assert now(line.is_evicted)


def test_none_behind_one_without_a_location_leaves_memory() -> None:
    line = delivered(1, 1, 1)
    line.runs[1].batch.location = None
    assert [run.sequence for run in line.evict(1_000, 100, None)] == [1_000]
    (wanted,) = line.spill_candidates(1_000, 100)
    assert wanted.sequence == 1_001
    wanted.batch.location = Location(1, 900, SIZE)
    assert [run.sequence for run in line.evict(1_000, 100, None)] == [1_001, 1_002]


def test_what_is_written_has_a_batch_of_its_own() -> None:
    """Others of its messages may be ready, and will be written at another location."""
    line = delivered(4, location=False)
    shared = line.runs[0].batch
    line.take(0, 2)
    (found,) = line.spill_candidates(1_000, 100)
    assert (found.sequence, found.count) == (1_002, 2)
    assert found.batch is not shared
    assert line.runs[0] is found


def test_keys_are_kept_of_what_leaves_memory_and_what_is_smaller_than_its_key_stays() -> None:
    """With all of its messages a batch leaves as well, with a part of them it does not."""
    for whole, size in ((True, SIZE + limits.RUN_EVICTED_BYTES // 2), (False, SIZE)):
        large, small = delivered(2 if whole else 3), delivered(2 if whole else 3)
        for line in (large, small):
            line.take(2, 3)
        memory: Any = Memory(size - 1)
        larger: Any = Memory(size)
        assert large.evict(1_000, 100, memory)
        assert memory.remembered == [1_000, 1_001]
        assert not small.evict(1_000, 100, larger)
        assert not small.runs[0].batch.evicted
        assert small.is_evicted, "nobody looks at it again"


def test_a_small_part_of_a_large_batch_is_copied_once_and_keeps_its_number() -> None:
    line = InFlight()
    count = limits.SPARE_BYTES_MIN // SIZE + 40
    batch = batch_of([bytes(SIZE)] * count, durable=True, location=Location(1, 0, count * SIZE))
    few = batch_of([bytes(SIZE)] * 5)
    line.append(0, Run(batch, 3, 5, 1_003))
    line.append(2, Run(few, 0, 1, 1_100))
    line.append(3, Run(batch, 10, 40, 1_010))
    line.slim()
    first, second, third = line.runs
    assert (first.batch.size, first.batch.location, first.sequence) == (2 * SIZE, batch.location, 1_003)
    assert (second.batch, third.batch) == (few, batch)
    assert numbers(line) == [(0, 2), (2, 1), (3, 30)]
    line.append(33, Run(batch, 5, 6, 1_005))
    line.slim()
    assert line.runs[0] is first
    assert line.runs[3].batch.size == SIZE


def test_the_cleaner_finds_a_delivery_by_its_sequence_and_segment() -> None:
    line = delivered(3, 3)
    moved = Location(2, 0, SIZE)
    part = line.runs[0].cut(1, 2)
    assert line.relocate(part, 9, moved) == 0
    assert line.relocate(part, 1, moved) == 1
    assert numbers(line) == [(0, 1), (1, 1), (2, 1), (3, 3)]
    assert [run.batch.location for run in line.runs][1] == moved
    assert line.relocate(part, 1, moved) == 0, "it is not there any more"


def test_everything_leaves_in_the_order_of_delivery() -> None:
    line = delivered(1, 2)
    line.take(0, 1)
    assert [run.sequence for run in line.everything()] == [1_001]
    assert len(line) == 0


def test_a_range_is_missing_where_it_has_no_run() -> None:
    line, _ = line_of([2, 1, 3, 4])
    line.take(0, 1)
    line.take(3, 5)
    assert line.missing(0, 12) == [(0, 1), (3, 5), (10, 12)]
    assert line.missing(2, 6) == [(3, 5)]
    assert line.missing(5, 8) == line.missing(7, 7) == []
    assert line.missing(4, 5) == [(4, 5)]
    assert line.missing(11, 13) == [(11, 13)]
    assert Line().missing(1, 2) == [(1, 2)]
