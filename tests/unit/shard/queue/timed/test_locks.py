"""Locks: deliveries with a time limit return when it is over, and not before."""

from unittest.mock import patch

from lightrail.model import limits
from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.values.commands import (
    Attach,
    Change,
    ConsumerOptions,
    Detach,
    Holder,
    Open,
    RenewDeliveries,
    RenewLock,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import LockAnswer, Refused, Returned
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
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


def test_locks_that_were_renewed_end_while_others_begin_to_wait_after_their_failure() -> None:
    """Waits are entries of the same heap, which is thinned meanwhile."""
    with patch.object(limits, "STALE_ENTRIES_MIN", 2):
        bench = Bench(Policy(lock_ms=100, retry_delay_ms=1_000, max_delivery_count=9))
        bench.put(*"abcdefghij")
        bench.consumer(1, credit=10)
        assert len(bench.get(1)) == 10
        bench.now = 1_050
        bench.do(RenewDeliveries(1, [2, 4, 6, 8]))
        bench.now = 1_100
        bench.do(Tick())
        assert bench.machine.view.gauges.in_flight == 4
        bench.now = 1_150
        bench.do(Tick())
        assert bench.machine.view.gauges.in_flight == 0


def test_a_consumer_that_returns_its_deliveries_piece_by_piece_drops_no_key_of_the_next_one() -> None:
    with patch("lightrail.shard.queue.changes.outcomes.RETURNED_AT_ONCE", 1):
        bench = Bench(Policy(lock_ms=100))
        bench.put(*"abc")
        bench.consumer(1, lock_key="key", lock_ends=LockEnding.BY_LINK)
        assert bench.get(1) == [*"abc"]
        bench.do(Detach(1, Ending.BY_BROKER))
        bench.consumer(2, first=3, lock_key="key", lock_ends=LockEnding.BY_LINK)
        bench.now = 1_100
        bench.do(Tick())
        bench.put("d")
        assert "d" in bench.get(2)
        number = bench.machine.contents.consumers.by_id[2].next - 1
        assert LockAnswer(True, 0) in bench.do(SettleLocked("key", number))


def moved(*locks: tuple[int, int], renewed: dict[int, int] | None = None) -> Bench:
    """Consumer 7 has deliveries 0 ... 3 of a queue that has lost its lock time, and has moved.

    `locks` that end at 1100, from one number to before another; others have no end.
    """
    bench = Bench(Policy())
    bench.machine.as_copy().add(Run(batch_of([b"a", b"b", b"c", b"d"]), 0, 4, 0))
    options = ConsumerOptions(lock_key="key", lock_ends=LockEnding.BY_TIME)
    holder = Holder(7, options, 4, [(0, 0, 4)], lock_ms_before=100, renewed=renewed or {})
    entries = [(1_100, 7, first, last) for first, last in locks]
    bench.do(Open(Policy(), [holder], entries, seen_to=4))
    return bench


def test_after_a_move_locks_without_an_end_have_none_beside_those_that_have_one() -> None:
    bench = moved((0, 1), (2, 3))
    bench.do(Detach(7))
    bench.consumer(8)
    assert bench.get(8) == ["b", "d"]
    bench.now = 1_100
    assert bench.get(8) == ["a", "c"]


def test_after_a_move_a_lock_without_an_end_that_was_renewed_ends() -> None:
    bench = moved(renewed={1: 1_100})
    bench.do(Detach(7))
    bench.consumer(8)
    assert bench.get(8) == ["a", "c", "d"]
    bench.now = 1_100
    assert bench.get(8) == ["b"]


def test_a_link_that_opens_again_has_its_renewed_locks_whatever_is_thinned_meanwhile() -> None:
    with patch.object(limits, "STALE_ENTRIES_MIN", 2):
        bench = Bench(Policy(lock_ms=100))
        bench.put(*"abcdefghij")
        bench.consumer(1, lock_key="key", lock_ends=LockEnding.BY_TIME)
        assert len(bench.get(1)) == 10
        bench.now = 1_050
        bench.do(RenewDeliveries(1, list(range(10))))
        bench.do(*(SettleLocked("key", number) for number in range(9)))
        bench.do(Detach(1, Ending.BY_BROKER))
        bench.consumer(2, first=10, lock_key="key", lock_ends=LockEnding.BY_TIME)
        bench.now = 1_149
        assert bench.do(Tick()) == []
        bench.now = 1_150
        assert bench.get(2) == ["j"]
