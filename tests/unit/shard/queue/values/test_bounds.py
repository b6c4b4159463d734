"""Bounds: what fits into a queue, and by how much it is beyond its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.queue.values import bounds
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of

BOUND = st.none() | st.integers(0, 12)
HELD = st.integers(0, 12)


@given(BOUND, BOUND, st.tuples(HELD, HELD), st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4)))
def test_what_fits_is_what_fits_one_by_one(
    most: int | None, most_bytes: int | None, held: tuple[int, int], done: list[int], sizes: list[int]
) -> None:
    """The messages of a batch before the first one that is asked for do not count."""
    policy = Policy(max_length=most, max_bytes=most_bytes)
    fits, (count, size) = 0, held
    for each in sizes:
        count, size = count + 1, size + each
        if (most is not None and count > most) or (most_bytes is not None and size > most_bytes):
            break
        fits += 1
    batch = batch_of([bytes(each) for each in (*done, *sizes)])
    assert bounds.room_for(policy, *held, batch, len(done)) == fits


@pytest.mark.parametrize(
    ("overflow", "refuses"),
    [
        ("reject", True),
        ("discard_incoming", True),
        ("flow_control", True),
        ("discard_existing", False),
        ("flow_to_disk", False),
    ],
)
def test_where_old_messages_give_way_no_new_one_is_refused(overflow: str, refuses: bool) -> None:
    assert bounds.refuses_batches(Policy(max_length=1, overflow=overflow)) is refuses
    assert bounds.refuses_batches(Policy(max_bytes=1, overflow=overflow)) is refuses
    assert not bounds.refuses_batches(Policy(overflow=overflow))


def test_the_excess_is_that_of_each_bound() -> None:
    assert bounds.excess(Policy(max_length=3, max_bytes=10), 5, 12) == (2, 2)
    assert bounds.excess(Policy(max_length=3), 2, 12) == (-1, 0)
    assert bounds.excess(Policy(), 5, 12) == (0, 0)


def test_a_queue_is_full_where_no_message_without_a_byte_fits() -> None:
    assert bounds.is_full(Policy(max_length=3), 3, 0)
    assert not bounds.is_full(Policy(max_length=3), 2, 1_000)
    assert bounds.is_full(Policy(max_bytes=10), 0, 11)
    assert not bounds.is_full(Policy(max_bytes=10), 0, 10)


def test_a_message_is_too_large_by_its_own_limit_or_where_an_empty_queue_would_refuse_it() -> None:
    batch = batch_of([b"1234", b"123456", b"12345678"])
    assert bounds.first_too_large(Policy(max_message_bytes=6), batch, 0) == 2
    assert bounds.first_too_large(Policy(max_bytes=4), batch, 0) == 1
    assert bounds.first_too_large(Policy(max_bytes=4), batch, 2) == 2
    assert bounds.first_too_large(Policy(max_bytes=4, overflow="discard_existing"), batch, 0) is None
    assert bounds.largest_message(Policy(max_bytes=7, max_message_bytes=5)) == 5
    assert bounds.largest_message(Policy()) is None


def test_a_refusal_names_the_queue_its_bounds_and_what_it_holds() -> None:
    text = bounds.refusal_text(Policy(max_length=3, max_bytes=10), "shop", 3, 9)
    assert "queue shop is full: it may have at most 3 messages and at most 10 bytes" in text
    assert "it has 3 messages of 9 bytes" in text
