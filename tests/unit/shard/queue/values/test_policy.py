"""The policy of a queue machine: what does not go together, and what each field asks of the machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.queue.values.policy import (
    Policy,
    excess,
    first_too_large,
    is_full,
    largest_message,
    refusal_text,
    refuses_batches,
    room_for,
)
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(groups=True, priorities=2), "groups and priorities"),
        (Policy(groups=True, order="sorted", order_key="key"), "groups and order sorted"),
        (Policy(priorities=3, order="last_value", order_key="key"), "priorities and order last_value"),
        (Policy(order="sorted"), "order_key: expected"),
        (Policy(order_key="key"), "order_key: expected none"),
        (Policy(order="random"), "one of fifo, last_value, sorted, found random"),
        (Policy(priorities=11), "1 to 10 levels, found 11"),
    ],
)
def test_a_policy_says_what_does_not_go_together(policy: Policy, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        policy.check()


@pytest.mark.parametrize(
    ("policy", "guarded", "examines", "reads", "special"),
    [
        (Policy(), False, False, False, False),
        (Policy(priorities=2), False, False, False, True),
        (SORTED, False, True, True, True),
        (LAST_VALUE, False, True, True, True),
        (GROUPS, False, True, True, True),
        (DELAY, False, True, True, True),
        (Policy(duplicate_window_ms=1), True, True, False, False),
        (Policy(durable="never"), True, False, False, False),
        (Policy(max_age_ms=1), True, False, False, False),
        (Policy(max_length=1), True, False, False, False),
        (Policy(max_bytes=1), True, False, False, False),
        (Policy(max_message_bytes=1), True, False, False, False),
        (Policy(lock_ms=1, max_consumers=1, exclusive=True), False, False, False, False),
    ],
)
def test_what_a_policy_asks_of_new_messages(
    policy: Policy, guarded: bool, examines: bool, reads: bool, special: bool
) -> None:
    found = policy.guarded, policy.examines, policy.reads_messages, policy.is_special
    assert found == (guarded, examines, reads, special)


def test_only_another_order_arranges_messages_anew() -> None:
    assert Policy().arrangement == Policy(max_length=5, lock_ms=20, dead_letter=False).arrangement
    # Where no message is delayed, none is scheduled; policies of former versions do not say so.
    assert SORTED.arrangement == replace(SORTED, enqueues_due=True).arrangement
    enqueues = replace(DELAY, enqueues_due=True)
    others = (Policy(), Policy(priorities=2), SORTED, LAST_VALUE, GROUPS, DELAY, enqueues)
    assert len({each.arrangement for each in others}) == len(others)


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
    assert room_for(policy, *held, batch, len(done)) == fits


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
    assert refuses_batches(Policy(max_length=1, overflow=overflow)) is refuses
    assert refuses_batches(Policy(max_bytes=1, overflow=overflow)) is refuses
    assert not refuses_batches(Policy(overflow=overflow))


def test_the_excess_is_that_of_each_bound() -> None:
    assert excess(Policy(max_length=3, max_bytes=10), 5, 12) == (2, 2)
    assert excess(Policy(max_length=3), 2, 12) == (-1, 0)
    assert excess(Policy(), 5, 12) == (0, 0)


def test_a_queue_is_full_where_no_message_without_a_byte_fits() -> None:
    assert is_full(Policy(max_length=3), 3, 0)
    assert not is_full(Policy(max_length=3), 2, 1_000)
    assert is_full(Policy(max_bytes=10), 0, 11)
    assert not is_full(Policy(max_bytes=10), 0, 10)


def test_a_message_is_too_large_by_its_own_limit_or_where_an_empty_queue_would_refuse_it() -> None:
    batch = batch_of([b"1234", b"123456", b"12345678"])
    assert first_too_large(Policy(max_message_bytes=6), batch, 0) == 2
    assert first_too_large(Policy(max_bytes=4), batch, 0) == 1
    assert first_too_large(Policy(max_bytes=4), batch, 2) == 2
    assert first_too_large(Policy(max_bytes=4, overflow="discard_existing"), batch, 0) is None
    assert largest_message(Policy(max_bytes=7, max_message_bytes=5)) == 5
    assert largest_message(Policy()) is None


def test_a_refusal_names_the_queue_its_bounds_and_what_it_holds() -> None:
    text = refusal_text(Policy(max_length=3, max_bytes=10), "shop", 3, 9)
    assert "queue shop is full: it may have at most 3 messages and at most 10 bytes" in text
    assert "it has 3 messages of 9 bytes" in text
