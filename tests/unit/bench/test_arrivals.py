"""lightrail.bench.arrivals: what is lost, doubled or out of order is found, and nothing else is."""

import random

from hypothesis import given
from hypothesis import strategies as st

from lightrail.bench.arrivals import Arrivals, total

A, B = 0x4C42_0000_0000_0001, 0x4C42_0000_0000_0002


def faults(arrivals: Arrivals) -> tuple[int, int]:
    return arrivals.duplicates, arrivals.disordered


def test_all_in_order_is_no_fault() -> None:
    arrivals, link = Arrivals(), dict[int, int]()
    arrivals.note(link, A, 0, 100)
    arrivals.note(link, B, 0, 7)
    arrivals.note(link, A, 100, 200)
    assert faults(arrivals) == (0, 0)
    assert arrivals.missing(A, 200) == []
    assert arrivals.missing(B, 7) == []


def test_lost_messages_are_named_unless_they_are_excused() -> None:
    arrivals, link = Arrivals(), dict[int, int]()
    arrivals.note(link, A, 0, 10)
    arrivals.note(link, A, 12, 20)
    assert arrivals.missing(A, 25) == [(10, 11), (20, 24)]
    assert arrivals.missing(A, 25, [(11, 11), (20, 24)]) == [(10, 10)]
    assert total(arrivals.missing(A, 25)) == 7
    assert arrivals.missing(B, 3) == [(0, 2)]
    assert arrivals.gaps(A) == [(10, 11)]


def test_a_duplicate_is_not_counted_as_disorder() -> None:
    arrivals, link = Arrivals(), dict[int, int]()
    arrivals.note(link, A, 0, 10)
    arrivals.note(link, A, 4, 6)
    arrivals.note(link, A, 10, 11)
    assert faults(arrivals) == (2, 0)
    assert "duplicate" in arrivals.examples[0]


def test_a_late_message_is_out_of_order() -> None:
    arrivals, link = Arrivals(), dict[int, int]()
    arrivals.note(link, A, 0, 5)
    arrivals.note(link, A, 6, 10)
    arrivals.note(link, A, 5, 6)
    assert faults(arrivals) == (0, 1)


def test_without_an_order_a_late_message_is_no_fault_and_a_double_one_is() -> None:
    arrivals = Arrivals(ordered=False)
    last_of: dict[int, int] = {}
    for first, end in ((5, 9), (0, 5), (3, 4)):
        arrivals.note(last_of, 7, first, end)
    assert (arrivals.disordered, arrivals.duplicates, arrivals.missing(7, 9)) == (0, 1, [])


def test_links_that_share_a_queue_each_see_a_rising_part() -> None:
    arrivals, one, other = Arrivals(), dict[int, int](), dict[int, int]()
    arrivals.note(one, A, 10, 20)
    arrivals.note(other, A, 0, 10)
    assert faults(arrivals) == (0, 0)
    assert arrivals.missing(A, 20) == []


def test_redelivered_ones_may_be_late_and_again() -> None:
    arrivals, link = Arrivals(), dict[int, int]()
    arrivals.note(link, A, 0, 10)
    arrivals.note_redelivered(A, 3)
    arrivals.note_redelivered(A, 12)
    arrivals.note(link, A, 12, 13)
    assert faults(arrivals) == (0, 0)
    assert (arrivals.redelivered, arrivals.redelivered_duplicates) == (2, 2)
    assert arrivals.missing(A, 13) == [(10, 11)]


def test_the_same_message_at_two_processes_is_a_duplicate_unless_one_is_a_redelivery() -> None:
    one, other = Arrivals(), Arrivals()
    one.note({}, A, 0, 10)
    one.note_redelivered(A, 20)
    other.note({}, A, 8, 12)
    other.note_redelivered(A, 5)
    other.note({}, A, 20, 21)
    one.merge(other)
    assert one.duplicates == 2
    assert one.redelivered_duplicates == 2
    assert one.missing(A, 21) == [(12, 19)]


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 300))
def test_against_a_plain_count(seed: int, processes: int, count: int) -> None:
    """Runs of random length, lost and doubled at random, over several processes."""
    chance = random.Random(seed)
    parts = [Arrivals() for _ in range(processes)]
    times: dict[int, int] = {}
    position = 0
    while position < count:
        end = min(count, position + chance.randint(1, 40))
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            chance.choice(parts).note({}, A, position, end)
            for sequence in range(position, end):
                times[sequence] = times.get(sequence, 0) + 1
        position = end
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    assert total(merged.missing(A, count)) == count - len(times)
    assert merged.duplicates == sum(number - 1 for number in times.values())
