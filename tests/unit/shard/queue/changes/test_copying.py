"""Copying: a copy becomes exactly what the source has, or is known to be incomplete."""

import pytest

from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.copying import Copy, IncompleteCopyError, Stretch, holders_of
from lightrail.shard.queue.values.commands import ConsumerOptions, Holder
from lightrail.shard.queue.values.counters import unlimited
from lightrail.shard.queue.values.runs import Run, batch_of


def run_of(first: int, last: int, attempts: int = 0, body: bytes = b"%d") -> Run:
    """Messages with these sequences, which are their bodies."""
    return Run(batch_of([body % each for each in range(first, last)]), 0, last - first, first, attempts)


def copy_of(*ranges: tuple[int, int]) -> Contents:
    copy = Contents(unlimited())
    for first, last in ranges:
        Copy(copy).add(run_of(first, last))
    return copy


def spans(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.sequence, run.end) for run in runs]


def test_a_copy_grows_at_its_end() -> None:
    copy = copy_of((10, 13), (15, 20))
    assert spans(copy.waiting()) == [(10, 13), (15, 20)]
    assert (copy.next_sequence, copy.counters.restored) == (20, 8)
    with pytest.raises(AssertionError, match="grows at its end"):
        Copy(copy).add(run_of(19, 21))


def test_what_is_below_a_sequence_leaves_the_copy_also_out_of_the_middle_of_a_run() -> None:
    copy = copy_of((0, 5), (5, 10))
    assert spans(Copy(copy).drop_below(7)) == [(0, 5), (5, 7)]
    assert spans(copy.waiting()) == [(7, 10)]
    assert copy.counters.restored == 3
    assert Copy(copy).drop_below(7) == []


def test_messages_are_replaced_with_their_past_and_missing_ones_are_added() -> None:
    copy = copy_of((0, 2), (4, 8))
    copy.ready.runs[1].attempts = 3
    new, old = Copy(copy).put_over(run_of(1, 6, body=b"new %d"))
    assert (spans(new), spans(old)) == ([(1, 2), (2, 4), (4, 6)], [(1, 2), (4, 6)])
    assert [each.attempts for each in new] == [0, 0, 3]
    assert spans(Copy(copy).put_over(run_of(7, 10, body=b"new %d"))[0]) == [(7, 8), (8, 10)]
    bodies = [body for run in copy.waiting() for body in run.messages()]
    assert bodies == [
        b"0",
        *(b"new %d" % number for number in range(1, 6)),
        b"6",
        b"new 7",
        b"new 8",
        b"new 9",
    ]
    assert copy.counters.restored == 10


def test_a_copy_is_made_to_hold_what_the_source_has() -> None:
    copy = copy_of((0, 4), (4, 9))
    found = Copy(copy).reconcile([Stretch(1, 3, 0, ()), Stretch(3, 6, 2, ()), Stretch(8, 9, 0, (7,))], 12)
    assert spans(found.removed) == [(0, 1), (6, 8)]
    assert [(run.sequence, run.end, run.attempts) for run in found.changed] == [(3, 4, 2), (4, 6, 2)]
    assert spans(copy.waiting()) == [(1, 3), (3, 4), (4, 6), (8, 9)]
    assert copy.waiting()[-1].barred == (7,)
    assert (copy.next_sequence, copy.counters.restored) == (12, 6)


@pytest.mark.parametrize(
    ("first", "last", "missing"), [(3, 6, "4 to 5"), (0, 20, "4 to 5"), (8, 12, "10 to 11")]
)
def test_a_copy_that_lacks_a_message_says_which_and_stays_as_it_is(
    first: int, last: int, missing: str
) -> None:
    copy = copy_of((0, 4), (6, 10))
    with pytest.raises(IncompleteCopyError, match=f"messages {missing} are at the source"):
        Copy(copy).reconcile([Stretch(first, last, 0, ())], last)
    assert spans(copy.waiting()) == [(0, 4), (6, 10)]


def test_deliveries_leave_the_ready_line_under_the_numbers_that_they_have() -> None:
    copy = copy_of((0, 10))
    options = ConsumerOptions()
    holders = [Holder(1, options, 9, [(5, 7, 2), (8, 0, 1)]), Holder(2, options, 3)]
    first, second = [consumer for _, consumer in holders_of(holders, copy.ready)]
    assert first.in_flight.keys == [5, 8]
    assert spans(first.in_flight.runs) == [(7, 9), (0, 1)]
    assert (first.next, first.limit) == (9, 9)
    assert (second.next, len(second.in_flight)) == (3, 0)
    assert spans(copy.waiting()) == [(1, 7), (9, 10)]
