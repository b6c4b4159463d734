"""Locking: single deliveries that requests settle and renew, and what the requests are answered."""

import pytest

from lightrail.model.attempts import failures
from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.values.commands import (
    FAILED,
    RELEASED,
    Change,
    Conclude,
    Detach,
    LockDeferred,
    Outcome,
    OutcomeKind,
    RenewByKeys,
    RenewSession,
    Reserve,
    Return,
    Settle,
    SettleDeliveries,
    SettleLocked,
)
from lightrail.shard.queue.values.effects import (
    LockAnswer,
    LockedDeferred,
    Reason,
    SessionLost,
    SettledDeliveries,
)
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import Bench, PlainBench, payloads, removed


def test_deliveries_are_settled_one_by_one_wherever_they_lie_in_their_run() -> None:
    bench = PlainBench()
    bench.put(b"a", b"b", b"c")
    bench.consumer(1, 3)
    bench.dispatch()
    effects = bench.do(SettleDeliveries(1, [1, 0, 1, 7], RELEASED))
    assert effects[-1] == SettledDeliveries([True, True, False, False])
    bench.consumer(2)
    assert payloads(bench.dispatch(), 2) == [b"a", b"b"]


def test_what_a_request_settles_leaves_the_queue() -> None:
    bench = PlainBench()
    bench.put(b"a", b"b")
    bench.consumer(1, 2)
    bench.dispatch()
    effects = bench.do(SettleDeliveries(1, [1], SettleLocked("", 0).outcome))
    assert removed(effects, Reason.ACCEPTED) == [1]
    assert effects[-1] == SettledDeliveries([True])


def test_a_lock_that_has_expired_is_ended_before_its_message_is_settled() -> None:
    bench = PlainBench(policy=Policy(lock_ms=10))
    bench.put(b"a", b"b")
    bench.consumer(1, 2, lock_key="key")
    bench.dispatch()
    bench.now += 10
    assert bench.do(SettleLocked("key", 0))[-1] == LockAnswer(False, 0)
    assert bench.do(SettleDeliveries(1, [0, 1], RELEASED)) == [SettledDeliveries([False, False])]


def in_session() -> Bench:
    """Consumer 1 has session `a` until 1100, and message 0 of it, deferred, under the key `d`."""
    bench = Bench(Policy(groups=True, lock_ms=100, max_delivery_count=5))
    bench.put("group=a 0", "group=a 1")
    bench.consumer(1, credit=1, session="a", lock_key="key", lock_ends=LockEnding.BY_TIME)
    assert bench.get(1) == ["group=a 0"]
    bench.do(Settle(1, 0, 1, Outcome(OutcomeKind.MODIFIED, defers=True)))
    (found,) = bench.do(LockDeferred(9, "d", [0], 50, session_of=1))
    assert isinstance(found, LockedDeferred)
    assert (found.until_ms, len(found.runs)) == (1_100, 1)
    return bench


def deferred_attempts(bench: Bench) -> list[int]:
    return [failures(run.attempts) for run in bench.machine.contents.aside]


def test_the_lock_of_a_session_is_that_of_its_deferred_messages() -> None:
    bench = in_session()
    bench.now = 1_090
    bench.do(RenewSession(1))
    bench.now = 1_150
    bench.dispatch()
    assert LockAnswer(True, 0) in bench.do(SettleLocked("d", 0))
    assert bench.machine.view.held == 1


def test_a_deferred_message_fails_with_the_end_of_its_sessions_lock() -> None:
    bench = in_session()
    bench.now = 1_100
    assert bench.do(SettleLocked("d", 0)) == [LockAnswer(False, 0)]
    assert SessionLost(1) in bench.dispatch()
    assert deferred_attempts(bench) == [1]
    assert bench.do(SettleLocked("d", 0)) == [LockAnswer(False, 0)]


@pytest.mark.parametrize("ending", Ending)
def test_a_deferred_message_is_deferred_again_when_its_sessions_link_ends(ending: Ending) -> None:
    bench = in_session()
    bench.do(Detach(1, ending))
    assert deferred_attempts(bench) == [0]
    bench.consumer(2, session="a")
    assert bench.get(2) == ["group=a 1"]
    # Who has no session any more locks none of its messages.
    assert bench.do(LockDeferred(10, "e", [0], 50, session_of=1)) == [LockedDeferred([], 0)]


@pytest.mark.parametrize("ends", [False, True])
def test_a_rollback_leaves_a_deferred_message_with_its_session(ends: bool) -> None:
    bench = in_session()
    bench.do(Reserve(-1, 9, 0, 1, "d"))
    if ends:
        bench.do(Detach(1))
    bench.do(Return(-1) if not ends else Conclude(-1, FAILED))
    assert deferred_attempts(bench) == ([1] if ends else [])
    assert (LockAnswer(True, 0) in bench.do(SettleLocked("d", 0))) is not ends


def test_another_policy_gives_a_deferred_message_no_lock_beside_that_of_its_session() -> None:
    bench = in_session()
    bench.do(Change(Policy(groups=True, lock_ms=100, max_delivery_count=6)))
    bench.do(RenewByKeys([("d", 0)]))
    bench.now = 1_090
    bench.do(RenewSession(1))
    bench.now = 1_110
    bench.do(Reserve(-1, 9, 0, 1, "d"))
    bench.do(Detach(1))
    bench.do(Return(-1))
    assert deferred_attempts(bench) == [1]
    assert bench.machine.view.gauges.in_flight == 0


def test_deferred_messages_that_are_asked_for_again_are_locked_until_the_end_that_they_have() -> None:
    bench = Bench(Policy(lock_ms=100))
    bench.put("a")
    bench.consumer(1)
    assert bench.get(1) == ["a"]
    bench.do(Settle(1, 0, 1, Outcome(OutcomeKind.MODIFIED, defers=True)))
    (first,) = bench.do(LockDeferred(9, "d", [0], 50))
    bench.now += 60
    (again,) = bench.do(LockDeferred(9, "d", [0], 50))
    assert isinstance(first, LockedDeferred)
    assert again == first
    assert first.until_ms == 1_100
