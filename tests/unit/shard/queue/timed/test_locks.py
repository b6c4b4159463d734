"""Locks: deliveries with a time limit return when it is over, and not before."""

from lightrail.model import limits
from lightrail.shard.queue.values.commands import (
    Attach,
    Change,
    ConsumerOptions,
    Detach,
    RenewLock,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import LockAnswer, Refused, Returned
from lightrail.shard.queue.values.policy import Policy
from tests.support.now import now
from tests.support.shard.checked_queue import Bench


def test_a_policy_with_timed_locks_locks_what_is_in_flight_already() -> None:
    bench = Bench(Policy())
    bench.put("a")
    bench.consumer(1, lock_key="key")
    bench.dispatch()
    bench.do(Change(Policy(lock_ms=20)), Detach(1))
    assert bench.machine.next_deadline_ms == 1_020
    bench.now = 1_020
    bench.consumer(2)
    assert bench.get(2) == ["a"]


def test_a_lock_that_is_renewed_for_a_shorter_time_ends_when_it_is_said_to() -> None:
    bench = Bench(Policy(lock_ms=100))
    bench.put("a")
    bench.consumer(1, lock_key="key")
    bench.dispatch()
    bench.do(Change(Policy(lock_ms=20)))
    assert bench.do(RenewLock("key", 0)) == [LockAnswer(True, 1_020)]
    assert bench.do(RenewLock("key", 0)) == [LockAnswer(True, 1_020)]
    assert bench.machine.next_deadline_ms == 1_020
    bench.now = 1_020
    assert bench.get(1) == ["a"]


def test_a_lock_that_runs_out_is_a_failed_delivery() -> None:
    bench = Bench(Policy(lock_ms=20))
    bench.put("a", "b")
    bench.consumer(1, credit=2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1))
    bench.now += 19
    assert not bench.do(Tick())
    assert bench.machine.next_deadline_ms == bench.now + 1
    bench.now += 1
    (returned,) = bench.do(Tick())
    assert isinstance(returned, Returned)
    assert [(run.sequence, run.attempts) for run in returned.runs] == [(1, 1)]
    assert bench.machine.contents.counters.locks_expired == 1
    assert now(bench.machine.next_deadline_ms) is None


def test_a_consumer_has_its_own_lock_time_and_one_that_needs_no_settlement_has_none() -> None:
    bench = Bench(Policy(lock_ms=20))
    bench.put("a")
    bench.consumer(1, credit=1, lock_ms=50)
    bench.dispatch()
    assert bench.machine.next_deadline_ms == bench.now + 50
    bench.put("b")
    bench.consumer(2, presettled=True)
    assert bench.get(2) == ["b"]
    assert bench.machine.next_deadline_ms == bench.now + 50


def test_locks_with_a_key_outlive_their_consumer_and_anybody_ends_them() -> None:
    bench = Bench(Policy(lock_ms=20))
    bench.put("a", "b")
    bench.consumer(1, credit=2, lock_key="key")
    bench.dispatch()
    assert not bench.do(Detach(1))
    assert bench.machine.view.gauges.in_flight == 2
    assert bench.do(SettleLocked("key", 0, sequence=7)) == [LockAnswer(False, 0)], "another message"
    assert bench.do(SettleLocked("key", 0, sequence=0))[-1] == LockAnswer(True, 0)
    bench.now += 10
    assert bench.do(RenewLock("key", 1)) == [LockAnswer(True, bench.now + 20)]
    bench.now += 20
    bench.do(Tick())
    assert bench.do(RenewLock("key", 1)) == [LockAnswer(False, 0)]
    assert bench.machine.contents.locks.by_key == {}


def test_a_key_has_one_consumer_and_the_next_one_goes_on_behind_its_deliveries() -> None:
    bench = Bench(Policy(lock_ms=20))
    bench.put("a", "b")
    bench.consumer(1, credit=1, lock_key="key")
    bench.dispatch()
    (refused,) = bench.do(Attach(2, ConsumerOptions(lock_key="key", first=1)))
    assert isinstance(refused, Refused)
    assert "found an attached consumer with the same one" in refused.description
    bench.do(Detach(1))
    (refused,) = bench.do(Attach(3, ConsumerOptions(lock_key="key")))
    assert isinstance(refused, Refused)
    assert "locked under it up to number 0, this one begins with 0" in refused.description
    bench.consumer(4, credit=10, lock_key="key", first=1)
    assert bench.get(4) == ["b"]
    bench.do(Settle(4, 0, 2))
    assert bench.machine.view.gauges[:2] == (0, 0)


def test_entries_of_settled_deliveries_do_not_pile_up() -> None:
    bench = Bench(Policy(lock_ms=1_000_000))
    bench.consumer(1, credit=1_000_000)
    for number in range(4 * limits.STALE_ENTRIES_MIN):
        bench.put("a")
        bench.dispatch()
        bench.do(Settle(1, number, number + 1))
        assert len(bench.machine.contents.locks.heap) <= limits.STALE_ENTRIES_MIN + 2
