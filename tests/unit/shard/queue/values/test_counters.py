"""Counters account for every message: what arrived is here or has left, once."""

from dataclasses import fields

import pytest

from lightrail.shard.queue.values.commands import RELEASED, Settle
from lightrail.shard.queue.values.counters import Counters
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import LAST_VALUE, Bench

ARRIVED = {"enqueued", "restored"}
LEFT = {"accepted", "purged", "replaced", "cancelled", "lost", "dead_lettered", "discarded"}


@pytest.mark.parametrize("name", [each.name for each in fields(Counters)])
def test_each_counter_is_an_arrival_or_an_end_or_neither(name: str) -> None:
    """A rejected message is counted as that, and once more as the dead letter that it becomes."""
    counters = Counters()
    by_reason = isinstance(getattr(counters, name), dict)
    setattr(counters, name, {"one": 1, "other": 2} if by_reason else 3)
    assert counters.arrived == (3 if name in ARRIVED else 0)
    assert counters.left == (3 if name in LEFT else 0)


def test_the_counters_of_a_queue_agree_with_what_it_holds() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a 1", "key=a 2", "key=b 1", "key=c 1")
    bench.consumer(1, credit=2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1), Settle(1, 1, 2, RELEASED))
    counters = bench.machine.contents.counters
    assert (counters.enqueued, counters.replaced, counters.accepted, counters.released) == (4, 1, 1, 1)
    assert counters.arrived - counters.left == bench.machine.view.gauges.ready == 2


def test_what_expires_is_counted_as_expired_and_by_what_becomes_of_it() -> None:
    for policy, ends in ((Policy(), "dead_lettered"), (Policy(dead_letter=False), "discarded")):
        bench = Bench(policy)
        bench.put("a", "b", expires_at_ms=1_010)
        bench.now = 1_010
        bench.dispatch()
        counters = bench.machine.contents.counters
        assert counters.expired == 2
        assert getattr(counters, ends) == {"expired": 2}
        assert counters.left == counters.arrived == 2
