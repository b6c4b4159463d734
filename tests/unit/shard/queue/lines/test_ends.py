"""Ends: each lock has one end, the newest of its number."""

from lightrail.model import limits
from lightrail.shard.queue.lines.ends import Blame, Ends


def test_a_lock_has_the_end_of_the_deliveries_that_begin_at_or_before_it() -> None:
    ends = Ends()
    ends.add(3, 100)
    ends.add(5, 100)
    ends.add(7, 250)
    assert [ends.of(number) for number in (0, 3, 6, 7, 99)] == [0, 100, 100, 250, 250]
    assert list(ends.parts(0, 9)) == [(0, 3, 0), (3, 7, 100), (7, 9, 250)]


def test_a_number_that_is_given_again_has_its_new_end_alone() -> None:
    ends = Ends()
    for first, until_ms in ((0, 100), (1, 200), (2, 300)):
        ends.add(first, until_ms)
    ends.add(1, 900)
    assert [ends.of(number) for number in (0, 1, 2)] == [100, 900, 900]


def test_entries_without_deliveries_are_dropped_and_the_others_have_their_ends() -> None:
    ends = Ends()
    count = limits.STALE_ENTRIES_MIN + 1
    for number in range(count):
        ends.add(number, 1_000 + number)
    assert ends.is_crowded
    ends.thin(lambda first, last: first <= 7 < last)
    assert ends.of(7) == 1_007
    assert list(ends.parts(0, count)) == [(0, 7, 0), (7, count - 1, 1_007), (count - 1, count, 999 + count)]


def test_what_counts_is_the_oldest_delivery_of_a_client_that_failed_and_what_was_renewed_since() -> None:
    blame = Blame(oldest=2)
    for number in (4, 9):
        blame.renew(number)
    assert list(blame.parts(2, 6)) == [(2, 3, True), (3, 4, False), (4, 5, True), (5, 6, False)]
    assert list(blame.parts(6, 9)) == [(6, 9, False)]
    assert blame.renewed == {9}
    assert list(Blame().parts(0, 3)) == [(0, 3, False)]
