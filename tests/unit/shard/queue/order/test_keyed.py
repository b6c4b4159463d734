"""Replacing, one behaviour per test: a newer message replaces the older one with its key."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue.order.keyed import LastValues
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Cancel,
    Change,
    Credit,
    Peek,
    Purge,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import DeadLetter, Due, Peeked, PeekedState, Reason
from lightrail.shard.queue.values.keys import Key
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.support.now import now
from tests.support.shard.checked_queue import BOUNDED, DELAY, LAST_VALUE, NOT_HERE, Bench, delivered, removed


def test_a_delayed_message_becomes_ready_at_its_position_when_it_is_due() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b", "time=1030 c")
    bench.consumer(1, credit=1)
    assert bench.get() == ["b"]
    assert bench.machine.view.gauges.delayed == 2
    assert bench.machine.next_deadline_ms == 1_030
    bench.now = 1_050
    assert not bench.do(Tick())
    assert bench.machine.view.gauges.ready == 2
    bench.do(Credit(1, 9))
    assert bench.get() == ["delay=50 a", "time=1030 c"]


def test_the_time_of_service_bus_counts_where_there_is_no_other() -> None:
    bench = Bench(DELAY)
    bench.put("scheduled=1050 a", "scheduled=1050 time=1010 b", "scheduled=soon c")
    bench.consumer(1)
    assert bench.get() == ["scheduled=soon c"]
    assert bench.machine.next_deadline_ms == 1_010
    bench.now = 1_050
    assert bench.get() == ["scheduled=1050 a", "scheduled=1050 time=1010 b"]


def test_a_scheduled_message_leaves_when_it_is_due_and_does_not_expire_before() -> None:
    bench = Bench(Policy(delay=True, enqueues_due=True))
    bench.put("scheduled=1050 a", "scheduled=1040 b", expires_at_ms=1_010)
    bench.put("delay=40 c", "scheduled=1050 delay=45 d")
    bench.consumer(1)
    bench.now = 1_030
    assert not bench.do(Tick())
    assert not bench.get()
    assert bench.machine.next_deadline_ms == 1_040
    bench.now = 1_050
    effects = bench.dispatch()
    assert delivered(effects) == ["delay=40 c", "scheduled=1050 delay=45 d"]
    due = [effect.run for effect in effects if isinstance(effect, Due)]
    assert [(run.sequence, run.messages()) for run in due] == [
        (1, [b"scheduled=1040 b"]),
        (0, [b"scheduled=1050 a"]),
    ]
    gauges = bench.machine.view.gauges
    assert (gauges.delayed, gauges.ready) == (0, 0)
    assert bench.machine.next_deadline_ms is None


def test_a_scheduled_message_that_is_purged_or_cancelled_is_never_due() -> None:
    bench = Bench(Policy(delay=True, enqueues_due=True))
    bench.put("scheduled=1050 a", "scheduled=1050 b")
    bench.do(Cancel(0))
    bench.do(Purge())
    bench.now = 1_050
    assert not bench.dispatch()
    assert bench.machine.next_deadline_ms is None


def test_a_dispatch_wakes_what_is_due() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a")
    bench.consumer(1)
    assert not bench.get()
    bench.now = 1_049
    assert not bench.get()
    bench.now = 1_050
    assert bench.get() == ["delay=50 a"]
    assert bench.machine.next_deadline_ms is None


def test_an_old_value_that_was_delayed_never_comes_after_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALE_RANGES_MIN", 2)
    bench = Bench(Policy(order="last_value", order_key="key", delay=True))
    bench.put("key=a delay=50 old", "key=b delay=50 old", "key=a new", "key=b new")
    bench.consumer(1)
    assert bench.get() == ["key=a new", "key=b new"]
    bench.do(Settle(1, 0, 2))
    bench.dispatch()
    bench.put("key=c 1", "key=d 1")
    bench.dispatch()
    bench.now = 1_050
    effects = bench.dispatch()
    assert delivered(effects) == []
    assert removed(effects, Reason.REPLACED) == [0, 1]


def test_a_delayed_message_is_seen_by_a_consumer_that_passed_over_later_ones() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b")
    bench.consumer(1)
    assert bench.get() == ["b"]
    bench.do(Settle(1, 0, 1, NOT_HERE))
    assert bench.get() == []
    bench.now = 1_050
    assert bench.get() == ["delay=50 a"]


def test_a_delayed_message_can_be_cancelled_once() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b")
    assert removed(bench.do(Cancel(0)), Reason.CANCELLED) == [0]
    assert not bench.do(Cancel(0))
    assert not bench.do(Cancel(1))
    assert bench.machine.next_deadline_ms is None


def test_a_delayed_message_expires() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", expires_at_ms=1_020)
    bench.now = 1_020
    (effect,) = bench.do(Tick())
    assert isinstance(effect, DeadLetter)
    assert effect.reason is Reason.EXPIRED


def test_a_peek_says_what_is_ready_and_what_is_delayed() -> None:
    bench = Bench(DELAY)
    bench.put("a", "delay=50 b", "c")
    (peeked,) = bench.do(Peek(0, 10))
    assert isinstance(peeked, Peeked)
    assert [(run.sequence, state) for run, state in zip(peeked.runs, peeked.states, strict=True)] == [
        (0, PeekedState.READY),
        (1, PeekedState.DELAYED),
        (2, PeekedState.READY),
    ]


def test_a_purge_takes_what_is_delayed() -> None:
    bench = Bench(DELAY)
    bench.put("a", "delay=50 b")
    assert removed(bench.do(Purge()), Reason.PURGED) == [0, 1]
    assert bench.machine.view.gauges.delayed == 0


def test_a_message_is_as_late_after_a_restart_as_it_was_to_be() -> None:
    bench = Bench(DELAY)
    batch = batch_of([b"delay=50 a", b"b"], durable=True, enqueued_at_ms=980)
    later = batch_of([b"delay=50 c"], durable=True, enqueued_at_ms=990)
    bench.do(Restore([Run(batch, 0, 2, 0), Run(later, 0, 1, 2)], 3))
    assert bench.machine.next_deadline_ms == 1_030
    bench.consumer(1)
    assert bench.get() == ["b"]
    bench.now = 1_030
    assert bench.get() == ["delay=50 a"]
    bench.now = 1_040
    assert bench.get() == ["delay=50 c"]


def test_priorities_and_delays_go_together() -> None:
    bench = Bench(Policy(priorities=2, delay=True))
    bench.put("n1", "delay=10 n2")
    bench.put("delay=10 e1", priority=9)
    bench.now = 1_010
    bench.consumer(1)
    assert bench.get() == ["delay=10 e1", "n1", "delay=10 n2"]


def test_what_was_delayed_is_ready_when_delays_are_no_more() -> None:
    bench = Bench(DELAY)
    bench.put("delay=500 a", "b")
    bench.do(Change(Policy()))
    bench.consumer(1)
    assert bench.get() == ["delay=500 a", "b"]


def test_what_was_delayed_gives_way_when_it_is_ready() -> None:
    bench = Bench(BOUNDED)
    bench.put("delay=50 a", "delay=50 b", "delay=50 c")
    bench.now = 1_050
    assert removed(bench.do(Tick()), Reason.DISCARDED) == [0]
    bench.put("delay=50 d", "delay=50 e")
    bench.now = 1_100
    assert removed(bench.dispatch(), Reason.DISCARDED) == []
    assert bench.machine.contents.held == 2


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
