"""LockEnds: which locks may have ended."""

from lightrail.service_bus.links.deliveries import LOCK_DOUBT_MS, LOCK_ENDS_APART_MS, LOCK_ENDS_MAX, LockEnds

SECOND = 1_000
LONG = 100 * SECOND


def test_a_lock_is_certain_until_shortly_before_its_end() -> None:
    ends = LockEnds()
    ends.add(0, 3, LONG)
    ends.add(3, 2, 2 * LONG)
    certain = LONG - LOCK_DOUBT_MS
    assert [ends.doubtful(at) for at in (0, certain - 1, certain, LONG)] == [0, 0, 3, 3]
    assert ends.doubtful(3 * LONG) == 5
    ends.add(5, 1, 4 * LONG)
    assert (ends.doubtful(3 * LONG), ends.doubtful(4 * LONG)) == (5, 6)


def test_locks_that_end_at_nearly_the_same_time_end_with_the_first() -> None:
    ends = LockEnds()
    ends.add(0, 1, LONG)
    ends.add(1, 1, LONG + LOCK_ENDS_APART_MS - 1)
    assert ends.doubtful(LONG - LOCK_DOUBT_MS) == 2


def test_locks_that_become_shorter_end_at_their_own_time() -> None:
    ends = LockEnds()
    ends.add(0, 1, LONG)
    ends.add(1, 1, 3 * LONG)
    ends.add(2, 1, 2 * LONG)
    assert ends.doubtful(2 * LONG) == 3


def test_ends_beyond_the_bound_are_taken_for_the_last_one_within_it() -> None:
    ends = LockEnds()
    for number in range(LOCK_ENDS_MAX + 10):
        ends.add(number, 1, (number + 1) * LONG)
    assert ends.doubtful(LOCK_ENDS_MAX * LONG) == LOCK_ENDS_MAX + 10
