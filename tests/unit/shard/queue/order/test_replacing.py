"""Replacing, one behaviour per test: a newer message replaces the older one with its key."""

from lightrail.shard.queue.values.commands import ACCEPTED, FAILED, RELEASED, Change, Credit, Settle
from lightrail.shard.queue.values.effects import Reason
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import LAST_VALUE, Bench, removed


def test_a_newer_message_replaces_the_ready_one_with_its_key() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a v1", "key=b v1", "plain")
    bench.put("key=a v2")
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]
    bench.consumer(1)
    assert bench.get() == ["key=b v1", "plain", "key=a v2"]
    assert bench.machine.contents.counters.replaced == 1


def test_a_message_in_flight_is_not_replaced_until_it_comes_back() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a v1")
    bench.consumer(1, credit=1)
    assert bench.get() == ["key=a v1"]
    bench.put("key=a v2")
    assert not bench.dispatch()
    bench.do(Settle(1, 0, 1, RELEASED))
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]
    bench.do(Credit(1, 9))
    assert bench.get() == ["key=a v2"]


def test_an_old_value_never_comes_after_a_new_one_that_was_taken_meanwhile() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a v1")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=1)
    bench.dispatch()
    bench.put("key=a v2")
    assert bench.get(2) == ["key=a v2"]
    bench.do(Settle(2, 0, 1, ACCEPTED), Settle(1, 0, 1, FAILED))
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]


def test_a_batch_may_replace_its_own_messages() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=1 v1", "key=1 v2", "key=1 v3")
    assert removed(bench.dispatch(), Reason.REPLACED) == [0, 1]


def test_last_values_are_found_among_what_is_ready() -> None:
    bench = Bench(Policy())
    bench.put("key=a 1", "key=a 2", "key=b 1")
    bench.do(Change(LAST_VALUE))
    assert removed(bench.dispatch(), Reason.REPLACED) == [0]
