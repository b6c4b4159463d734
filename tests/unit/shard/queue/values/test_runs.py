"""Batches and runs: cutting, joining, and columns that are moved as one number."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.queue.values.runs import Batch, Run, batch_of, ends_of, joined, shifted

MESSAGES = [b"one", b"", b"three", b"4"]


def test_a_batch_gives_its_messages_back() -> None:
    batch = batch_of(MESSAGES)
    assert [batch.message(index) for index in range(4)] == MESSAGES
    assert bytes(batch.blob(1, 3)) == b"three"
    assert bytes(batch.blob()) == b"onethree4"
    assert batch.size == 9


def test_a_batch_may_be_a_whole_frame_with_the_messages_at_its_base() -> None:
    ends = array("I", [2, 3]).tobytes()
    frame = memoryview(b"HEAD" + ends + b"abc")
    batch = Batch(frame, frame[4:12].cast("I"), 2, 3, base=12)
    assert [batch.message(0), batch.message(1)] == [b"ab", b"c"]
    run = Run(batch, 1, 2, sequence=41)
    assert run.size == 1
    assert list(ends_of(run)) == [1]
    assert run.messages() == [b"c"]


def test_an_evicted_batch_says_where_it_is() -> None:
    batch = Batch(None, None, 2, 3)
    assert batch.evicted
    with pytest.raises(ValueError, match="fetch it first"):
        batch.blob()


def test_parts_of_an_evicted_batch_add_up() -> None:
    batch = Batch(None, None, 7, 100)
    for cut in range(8):
        before, after = Run(batch, 0, 7, 0).split(cut)
        assert before.size + after.size == 100


def test_a_split_run_keeps_its_past() -> None:
    before, after = Run(batch_of(MESSAGES), 0, 4, 10, attempts=2, barred=(7,)).split(3)
    assert (before.sequence, before.end, after.sequence, after.end) == (10, 13, 13, 14)
    assert (after.attempts, after.barred) == (2, (7,))
    assert before.messages() + after.messages() == MESSAGES


def test_a_batch_keeps_messages_out_of_its_repr() -> None:
    assert "three" not in repr(batch_of(MESSAGES))


@given(st.lists(st.integers(0, 2**31), max_size=300), st.integers(0, 2**31 - 1))
def test_a_column_moves_as_one_number(column: list[int], delta: int) -> None:
    raw = array("I", column)
    moved = array("I")
    moved.frombytes(shifted(raw, delta))
    assert list(moved) == [item + delta for item in column]
    assert shifted(moved, -delta) == raw.tobytes()


@given(st.lists(st.tuples(st.lists(st.binary(max_size=5), min_size=1, max_size=6), st.data()), min_size=1))
def test_joined_runs_hold_the_same_messages(parts: list[tuple[list[bytes], st.DataObject]]) -> None:
    runs = []
    sequence = 0
    for messages, data in parts:
        first = data.draw(st.integers(0, len(messages) - 1))
        runs.append(Run(batch_of(messages), first, len(messages), sequence))
        sequence = runs[-1].end
    batch = joined(runs, None)
    expected = [message for run in runs for message in run.messages()]
    assert [batch.message(index) for index in range(batch.count)] == expected
    assert batch.size == sum(map(len, expected))
