"""A queue with messages in every place, for tests of what a queue shows, under each kind of order."""

import pytest

from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench

POLICIES = pytest.mark.parametrize(
    "policy", [Policy(), Policy(priorities=3), SORTED, LAST_VALUE, GROUPS, DELAY], ids=str
)


def mixed(policy: Policy) -> Bench:
    """Four messages in two segments: one is in flight, one may be delayed, two are ready."""
    bench = Bench(policy)
    bench.put("key=1 a", durable=True, location=Location(1, 0, 40))
    bench.consumer(1, credit=1)
    bench.dispatch()
    bench.put("key=2 b", "key=3 delay=50 c", durable=True, location=Location(1, 40, 80))
    bench.put("key=4 d", durable=True, location=Location(2, 0, 40))
    return bench


def sequences(runs: list[Run]) -> list[int]:
    return sorted(sequence for run in runs for sequence in range(run.sequence, run.end))
