"""Sparse: messages are taken from anywhere and come back to their positions; holes are bounded."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.values.runs import Run, batch_of


def filled(count: int) -> Sparse:
    """Messages of one batch, each a run of its own."""
    line = Sparse()
    batch = batch_of([b"%04d" % each for each in range(count)])
    for each in range(count):
        line.add(Run(batch, each, each + 1, each))
    return line


def check(line: Sparse, expected: set[int]) -> None:
    runs = line.waiting()
    assert [run.sequence for run in runs] == sorted(expected)
    assert (len(line), line.count, line.bytes) == (len(expected), len(expected), 4 * len(expected))
    assert line.holes == sum(run is GONE for run in line.runs[line.head :])
    assert not expected or line.runs[line.head] is not GONE


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40))
def test_messages_leave_from_anywhere_and_come_back(count: int, steps: list[tuple[int, int]]) -> None:
    line = filled(count)
    whole = line.batch_bytes
    away: list[Run] = []
    here = set(range(count))
    for step, number in steps:
        if step < 6 and here:
            sequence = sorted(here)[number % len(here)]
            run, size = line.take_single(line.find(sequence, sequence + 1))
            assert (run.sequence, size) == (sequence, 4)
            here.remove(sequence)
            away.append(run)
        elif step < 9 and away:
            run = away.pop(number % len(away))
            line.give_back(run)
            here.add(run.sequence)
        elif away:
            line.give_back_all(sorted(away, key=lambda run: run.sequence))
            here |= {run.sequence for run in away}
            away = []
        check(line, here)
        assert all(line.has(each) is (each in here) for each in range(-1, count + 1))
    for run in away:
        line.give_back(run)
    assert line.batch_bytes == whole


def test_a_swap_keeps_the_line_without_holes_there() -> None:
    line = filled(6)
    for sequence in (0, 2, 3):
        line.take_single(line.find(sequence, sequence + 1))
    start, stop = line.index(1), line.index(5)
    old = line.swap(start, stop, line.waiting()[:2])
    assert [run.sequence for run in old] == [1, 4]
    check(line, {1, 4, 5})
    assert line.holes == 0
    line.swap(line.head, line.head + 1, [])
    check(line, {4, 5})


def test_holes_never_are_more_than_the_messages_beside_them() -> None:
    count = 4 * limits.STALE_ENTRIES_MIN
    line = filled(count)
    for sequence in range(1, count):
        line.take_single(line.find(sequence, sequence + 1))
        assert line.holes <= limits.STALE_ENTRIES_MIN + len(line)
    check(line, {0})


def test_everything_that_is_taken_out_at_once_has_no_holes_in_it() -> None:
    line = filled(5)
    line.take_single(2)
    assert [run.sequence for run in line.clear()] == [0, 1, 3, 4]
    assert (len(line), line.holes, line.batch_bytes) == (0, 0, 0)
