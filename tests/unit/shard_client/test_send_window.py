"""Laws of the send window that producers of the frontend, the gateway and lanes share."""

from dataclasses import dataclass

import pytest

from lightrail.shard_client.sending.window import SendWindow


@dataclass(slots=True)
class Frame:
    part: bytes


@pytest.fixture
def window() -> SendWindow[Frame]:
    """Batches 1 to 4, unanswered."""
    window: SendWindow[Frame] = SendWindow()
    for each in (b"a", b"b", b"c", b"d"):
        window.add(window.next, Frame(each))
    return window


def parts(window: SendWindow[Frame]) -> list[bytes]:
    return [batch.part for batch in window]


def test_a_window_is_true_as_long_as_a_batch_is_unanswered(window: SendWindow[Frame]) -> None:
    assert len(window) == 4
    window.answer_run(1, 4)
    assert not window


def test_numbers_rise_and_no_answer_makes_one_free(window: SendWindow[Frame]) -> None:
    window.answer_run(1, 4)
    assert window.next == 5


def test_what_is_unanswered_is_repeated_in_order(window: SendWindow[Frame]) -> None:
    window.answer(2)
    assert parts(window) == [b"a", b"c", b"d"]
    assert window.first == 1


def test_a_number_chosen_by_the_caller_is_the_one_that_is_answered() -> None:
    window: SendWindow[Frame] = SendWindow()
    window.add(7 << 16, Frame(b"first"))
    window.add(7 << 16 | 1, Frame(b"second"))
    assert window.first == 7 << 16
    answered = window.answer(7 << 16)
    assert answered is not None
    assert answered.part == b"first"
    assert window.first == 7 << 16 | 1


def test_a_second_answer_finds_no_batch(window: SendWindow[Frame]) -> None:
    assert window.answer(3) is not None
    assert window.answer(3) is None
    assert [batch.part for batch in window.answer_run(2, 2)] == [b"b"]


def test_only_what_was_under_way_when_the_shard_was_lost_may_be_stored(window: SendWindow[Frame]) -> None:
    assert not window.may_be_stored(1)
    window.mark_sent()
    window.add(window.next, Frame(b"e"))
    assert window.may_be_stored(4)
    assert not window.may_be_stored(5)


def test_what_is_given_up_is_not_repeated(window: SendWindow[Frame]) -> None:
    found = window.take(lambda batch: batch.part in b"bd")
    assert [(number, batch.part) for number, batch in found] == [(2, b"b"), (4, b"d")]
    assert parts(window) == [b"a", b"c"]
    assert [batch.part for batch in window.clear()] == [b"a", b"c"]
    assert window.first == 0


def test_what_was_sent_to_a_lost_shard_is_told_from_what_was_not(window: SendWindow[Frame]) -> None:
    assert window.sent_below == 0
    window.mark_sent()
    window.add(window.next, Frame(b"new"))
    assert window.sent_below == 5
    window.answer_run(1, 3)
    assert window.sent_below == 5
    window.answer(4)
    assert window.sent_below == 0
