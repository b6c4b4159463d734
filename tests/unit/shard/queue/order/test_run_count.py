"""Run count: the runs in flight are known to a fourth of the messages, whatever was delivered and settled."""

from random import Random

import pytest

from lightrail.model import limits
from lightrail.shard.queue.changes.locking import RENEWED_LOCKS_UNCOUNTED_MAX
from lightrail.shard.queue.order.run_count import RENEWED_LOCK_BYTES
from lightrail.shard.queue.values.commands import ACCEPTED, RenewDeliveries, Settle
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
