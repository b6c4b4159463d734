"""Views: the lowest rank that is ready comes first, and what is not ready falls out."""

from random import Random

import pytest

from lightrail.model import limits
from lightrail.shard.queue.changes.locking import RENEWED_LOCKS_UNCOUNTED_MAX
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.order import unoffered
from lightrail.shard.queue.order.unoffered import RENEWED_LOCK_BYTES, RUNS_BETWEEN_COUNTS_MAX, Unoffered
from lightrail.shard.queue.values.commands import ACCEPTED, RenewDeliveries, Settle
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.support.shard.checked_queue import PlainBench

MESSAGES = 2_000


def lines(bench: PlainBench) -> int:
    """The runs in flight, counted one by one."""
    return sum(len(each.in_flight) for each in bench.machine.contents.consumers)


def close(bench: PlainBench) -> bool:
    """Whether the count is within its tolerance, a fourth of what was in flight when it was made."""
    deliveries = bench.machine.contents.deliveries
    counted = deliveries.runs
    return abs(counted - lines(bench)) <= max(deliveries.run_count.tolerance, limits.RUNS_UNCOUNTED_MAX)


@pytest.mark.parametrize("size", [1, 7, 500])
def test_the_count_follows_deliveries_and_settlements(bench: PlainBench, size: int) -> None:
    random = Random(size)
    bench.consumer(1, 10 * MESSAGES)
    sent = 0
    unsettled: list[int] = []
    while sent < MESSAGES:
        bench.put(*[b"%d" % (sent + each) for each in range(size)])
        bench.dispatch()
        unsettled += range(sent, sent + size)
        sent += size
        assert close(bench)
        for _ in range(random.randrange(size + 1)):
            number = unsettled.pop(random.randrange(len(unsettled)))
            bench.do(Settle(1, number, number + 1, ACCEPTED))
        assert close(bench)
    while unsettled:
        number = unsettled.pop(random.randrange(len(unsettled)))
        bench.do(Settle(1, number, number + 1, ACCEPTED))
        assert close(bench)
    assert bench.machine.contents.deliveries.runs == 0


def test_the_count_is_not_wrong_by_more_however_many_are_in_flight(
    bench: PlainBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second message of a batch is settled, which leaves a run of each other one."""
    most = 40
    monkeypatch.setattr(unoffered, "RUNS_BETWEEN_COUNTS_MAX", most)
    assert most < RUNS_BETWEEN_COUNTS_MAX
    for consumer in (1, 2):
        bench.consumer(consumer, MESSAGES)
    bench.put(*[b"m"] * MESSAGES)
    bench.dispatch()
    deliveries = bench.machine.contents.deliveries
    assert deliveries.runs <= most
    for number in range(1, 500, 2):
        bench.do(Settle(1, number, number + 1, ACCEPTED))
        assert abs(deliveries.runs - lines(bench)) <= most, number


def test_what_was_noted_as_outdated_is_counted_again(bench: PlainBench) -> None:
    bench.consumer(1, MESSAGES)
    for number in range(100):
        bench.put(b"%d" % number)
        bench.dispatch()
    deliveries = bench.machine.contents.deliveries
    assert deliveries.runs <= 100
    deliveries.run_count.outdate()
    assert deliveries.runs == lines(bench)


def test_locks_that_were_renewed_one_by_one_count(bench: PlainBench) -> None:
    """A batch of thousands is one run, and its locks are as many notes."""
    count = 8 * RENEWED_LOCKS_UNCOUNTED_MAX
    bench.consumer(1, count, lock_ms=1_000)
    bench.put(*[b"m"] * count)
    bench.dispatch()
    deliveries = bench.machine.contents.deliveries
    before = deliveries.runs
    bench.do(RenewDeliveries(1, [*range(count)]))
    assert deliveries.runs * limits.RUN_BYTES >= before + count * RENEWED_LOCK_BYTES


def line_of(*sequences: int) -> Sparse:
    line = Sparse()
    for each in sequences:
        line.add(Run(batch_of([b"x"]), 0, 1, each))
    return line


def drained(view: Unoffered, line: Sparse) -> list[int]:
    """The sequences that a consumer of this view is offered, in their order."""
    found = []
    while (index := view.top(line)) >= 0:
        run = line.runs[index]
        found.append(run.sequence)
        view.advance(run.end)
    return found


def test_lower_ranks_come_first_and_lower_sequences_in_them() -> None:
    view = Unoffered()
    view.push(1, 0, 2)
    view.push(0, 4, 5)
    view.push(0, 2, 4)
    assert drained(view, line_of(0, 1, 2, 3, 4)) == [2, 3, 4, 0, 1]


def test_what_is_not_ready_is_passed_over_and_forgotten() -> None:
    view = Unoffered()
    view.push(0, 0, 2)
    view.push(1, 2, 6)
    assert drained(view, line_of(3, 5)) == [3, 5]
    assert view.heap == []
    assert view.top(line_of(0, 1)) == -1


def test_a_copy_goes_on_by_itself() -> None:
    view = Unoffered([(0, 0, 3)])
    line = line_of(0, 1, 2)
    copy = view.copy()
    view.advance(2)
    assert drained(copy, line) == [0, 1, 2]
    assert drained(view, line) == [2]


def test_neighbours_become_one_range_when_there_are_many() -> None:
    count = limits.STALE_RANGES_MIN
    line = line_of(*range(count))
    view = Unoffered()
    for sequence in range(count - 1):
        view.push(0, sequence, sequence + 1)
        view.thin(line)
    assert len(view.heap) == count - 1
    view.push(0, count - 1, count)
    view.thin(line)
    assert view.heap == [(0, 0, count)]


def test_single_messages_with_a_rank_of_their_own_are_kept_apart_and_stale_ones_dropped() -> None:
    count = limits.STALE_RANGES_MIN
    line = line_of(*range(0, 4 * count, 4))
    view = Unoffered(joins=False)
    for sequence in range(4 * count):
        view.push(0, sequence, sequence + 1)
        view.thin(line)
    assert len(view.heap) <= 3 * count + 1
    assert drained(view, line) == list(range(0, 4 * count, 4))


def test_a_view_is_filled_at_once_in_any_order() -> None:
    view = Unoffered()
    view.fill([(1, 5, 6), (0, 3, 4), (0, 1, 3)])
    assert view.heap == [(0, 1, 4), (1, 5, 6)]
