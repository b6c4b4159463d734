"""Ordering: what becomes of a message before it is ready, and what a queue keeps that reads messages."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.ordering import Ordering
from lightrail.shard.queue.order.ranked import Ranked
from lightrail.shard.queue.order.sessions import Sessions
from lightrail.shard.queue.values.commands import RELEASED, Change, Credit, Purge, Settle
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench

LATE_VALUE = Policy(order="last_value", order_key="key", delay=True)


def special(bench: Bench) -> Ordering:
    found = bench.machine.contents.special
    assert found is not None
    return found


def sequences(runs: list[Run]) -> list[int]:
    return [sequence for run in runs for sequence in range(run.sequence, run.end)]


@pytest.mark.parametrize(
    ("policy", "order", "singles"),
    [
        (GROUPS, Sessions, True),
        (SORTED, Ranked, True),
        (Policy(priorities=5), Ranked, False),
        (LAST_VALUE, Order, True),
        (DELAY, Order, True),
    ],
)
def test_each_policy_has_its_order_and_is_cut_into_messages_where_they_are_read(
    policy: Policy, order: type[Order], singles: bool
) -> None:
    bench = Bench(policy)
    bench.put("key=1", "key=2", "key=3")
    assert type(special(bench).order) is order
    assert special(bench).singles is singles
    assert len(bench.machine.contents.ready) == (3 if singles else 1)


def test_of_a_batch_the_delayed_wait_the_replaced_leave_and_the_rest_is_ready() -> None:
    bench = Bench(LATE_VALUE)
    bench.put("key=a 0", "key=b delay=50 1", "key=a 2", "key=c 3")
    assert sequences(bench.machine.contents.ready.waiting()) == [2, 3]
    assert sequences(bench.machine.contents.delayed.waiting()) == [1]
    assert sequences(special(bench).waiting()) == [1, 2, 3]
    assert bench.machine.contents.counters.replaced == 1
    assert bench.machine.next_deadline_ms == 0, "the message that was replaced has an effect"


def test_what_comes_back_is_not_delayed_again() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a")
    bench.consumer(1, credit=1)
    bench.now += 50
    assert bench.get() == ["delay=50 a"]
    bench.do(Settle(1, 0, 1, RELEASED), Credit(1, 2))
    assert bench.get() == ["delay=50 a"]


def test_many_that_come_back_at_once_are_as_those_that_come_back_one_by_one() -> None:
    count = 100
    bench = Bench(SORTED)
    bench.put(*[f"key={(7 * number) % count}" for number in range(count)])
    bench.consumer(1, credit=count)
    before = bench.get()
    bench.do(Settle(1, 0, count, RELEASED), Credit(1, 2 * count))
    assert bench.get() == before == sorted(before, key=lambda text: int(text[4:]))


def test_a_purge_leaves_no_index_of_what_was_delayed_or_ready() -> None:
    bench = Bench(LATE_VALUE)
    empty = bench.machine.footprint.sizes()[1][0]
    bench.put("key=a", "key=b delay=50", "key=c")
    assert bench.machine.footprint.sizes()[1][0] > empty + 3 * limits.SINGLE_BYTES
    bench.do(Purge(), Change(Policy()))
    contents = bench.machine.contents
    assert (contents.special, contents.deliveries.order) == (None, None)
    assert bench.machine.footprint.sizes()[1][0] == 0


def test_an_index_counts_each_message_whether_it_is_in_memory_or_on_disk() -> None:
    bench = Bench(SORTED)
    bench.put("key=1", "key=2")
    two = special(bench).index_bytes
    bench.put("key=3", "key=4")
    assert special(bench).index_bytes == 2 * two
    assert two >= 2 * limits.SINGLE_BYTES
