"""Last values: of two messages with one key the older one is named, whichever comes back later."""

from lightrail.model import limits
from lightrail.shard.queue.order.last_values import LastValues
from lightrail.shard.queue.values.keys import Key
from tests.support.now import now

A: Key = (4, "a")
B: Key = (4, "b")


def test_the_older_of_two_messages_with_a_key_is_named() -> None:
    values = LastValues()
    assert values.note(A, 5) == -1
    assert values.note(B, 6) == -1
    assert values.note(A, 7) == 5
    assert values.note(A, 5) == 5, "it came back, and is the older one"
    assert values.note(A, 7) == -1, "the newest came back"
    assert (values.newest(A), values.newest(B), values.newest((4, "c"))) == (7, 6, -1)
    assert len(values) == 2


def test_keys_without_a_message_are_forgotten_unless_an_older_one_may_come_back() -> None:
    values = LastValues()
    values.note(A, 1)
    values.note(B, 2)
    values.note((4, "c"), 3)
    values.thin({B}, 0, lambda sequence: sequence == 1)
    assert [values.newest((4, text)) for text in "abc"] == [1, 2, -1]


def test_it_is_thinned_when_twice_as_many_keys_are_known_as_were_left() -> None:
    values = LastValues()
    for number in range(limits.STALE_RANGES_MIN - 1):
        values.note((1, number), number)
    assert not now(values.many)
    values.note((1, -1), limits.STALE_RANGES_MIN)
    assert now(values.many)
    values.thin(set(), 0, lambda sequence: True)
    assert not now(values.many)
    for number in range(limits.STALE_RANGES_MIN, 2 * limits.STALE_RANGES_MIN):
        values.note((1, number), number)
    assert now(values.many)


def test_reading_many_messages_to_thin_puts_the_next_time_off() -> None:
    values = LastValues()
    for number in range(limits.STALE_RANGES_MIN):
        values.note((1, number), number)
    values.thin(set(), 3 * limits.STALE_RANGES_MIN, lambda sequence: True)
    for number in range(limits.STALE_RANGES_MIN, 4 * limits.STALE_RANGES_MIN - 1):
        values.note((1, number), number)
    assert not now(values.many)
    values.note((1, -1), 4 * limits.STALE_RANGES_MIN)
    assert now(values.many)
