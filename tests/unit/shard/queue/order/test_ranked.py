"""Ranked, one behaviour per test: queues with priorities, and those sorted by a key."""

from lightrail.shard.queue.values.commands import RELEASED, Credit, Enqueue, Fetched, Settle
from lightrail.shard.queue.values.effects import Fetch
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import NOT_HERE, SORTED, Bench


def test_higher_priorities_go_first_and_equals_by_sequence() -> None:
    bench = Bench(Policy(priorities=10))
    bench.put("low1", "low2", priority=1)
    bench.put("high1", "high2", priority=8)
    bench.put("low3", priority=1)
    bench.consumer(1)
    assert bench.get() == ["high1", "high2", "low1", "low2", "low3"]


def test_a_released_message_goes_back_to_its_position_in_its_level() -> None:
    bench = Bench(Policy(priorities=2))
    bench.put("n1", "n2", "n3")
    bench.put("e1", "e2", priority=9)
    bench.consumer(1, credit=3)
    assert bench.get() == ["e1", "e2", "n1"]
    bench.do(Settle(1, 1, 3, RELEASED), Credit(1, 100))
    assert bench.get() == ["e2", "n1", "n2", "n3"]


def test_a_browser_of_a_priority_queue_sees_the_order_of_sequences() -> None:
    bench = Bench(Policy(priorities=2))
    bench.put("n1")
    bench.put("e1", priority=9)
    bench.consumer(1, browse=True)
    assert bench.get() == ["n1", "e1"]


def test_an_evicted_run_of_a_higher_level_is_fetched_before_anything_lower_goes() -> None:
    bench = Bench(Policy(priorities=2))
    bench.machine.contents.eviction.head_bytes = 1
    bench.put("n1", "n2")
    high = batch_of([b"e1", b"e2"], priority=9, durable=True, location=Location(1, 0, 99))
    bench.do(Enqueue(high))
    assert bench.machine.footprint.evict(4) > 0
    bench.consumer(1)
    (fetch,) = bench.dispatch()
    assert isinstance(fetch, Fetch)
    again = batch_of([b"e1", b"e2"], priority=9, durable=True, location=Location(1, 0, 99))
    bench.do(Fetched(2, [Run(again, 0, 2, 2)]))
    assert bench.get() == ["e1", "e2", "n1", "n2"]


def test_whoever_is_barred_from_the_first_message_gets_the_next_and_others_get_it() -> None:
    bench = Bench(Policy(priorities=2))
    bench.put("n1")
    bench.put("e1", priority=9)
    bench.consumer(1, credit=1)
    assert bench.get() == ["e1"]
    bench.do(Settle(1, 0, 1, NOT_HERE), Credit(1, 5))
    assert bench.get() == ["n1"]
    bench.consumer(2)
    assert bench.get(2) == ["e1"]


def test_messages_are_delivered_by_key_and_equals_by_sequence() -> None:
    bench = Bench(SORTED)
    bench.put("key=7 first", "none", "key=x", "key=3", "key=7 second")
    bench.put("key=1")
    bench.consumer(1, credit=4)
    assert bench.get() == ["key=1", "key=3", "key=7 first", "key=7 second"]
    bench.put("key=2")
    bench.do(Settle(1, 1, 2, RELEASED), Credit(1, 100))
    assert bench.get() == ["key=2", "key=3", "key=x", "none"]
