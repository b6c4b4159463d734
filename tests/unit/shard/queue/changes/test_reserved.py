"""Reserved messages: from Reserve to Conclude they belong to a transaction, whatever else happens."""

from typing import Any

import pytest

from lightrail.model.attempts import DEFERRED, failures
from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Change,
    Conclude,
    ConsumerOptions,
    Credit,
    Detach,
    Holder,
    LockDeferred,
    Open,
    Outcome,
    OutcomeKind,
    Purge,
    RenewByKeys,
    Reserve,
    Restore,
    Resume,
    Return,
    Settle,
    SettleDetached,
    SettleLocked,
    Suspend,
    Tick,
)
from lightrail.shard.queue.values.effects import LockAnswer, LockedDeferred, Removed, Renewed
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.support.shard.checked_queue import GROUPS, Bench

DEFERS = Outcome(OutcomeKind.MODIFIED, defers=True)
POLICIES = {
    "plain": Policy(),
    "groups": GROUPS,
    "priorities": Policy(priorities=4),
    "locks": Policy(lock_ms=1_000),
}


def reserved(policy: Policy, count: int = 3) -> Bench:
    """Of messages 0 … count-1, which consumer 1 has, number 1 is reserved by holder -1."""
    bench = Bench(policy)
    bench.put(*(f"group=a {number}" for number in range(count)))
    bench.consumer(1, credit=count)
    assert len(bench.get(1)) == count
    bench.do(Reserve(-1, 1, 1, 2))
    assert -1 in bench.machine.contents.consumers.departed
    return bench


def left(bench: Bench) -> list[str]:
    """What consumers that have credit get now; who has a group keeps it."""
    bench.do(Credit(1, 99))
    bench.consumer(2, credit=99)
    return sorted(bench.get())


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_message_that_is_accepted_leaves_the_queue(policy: Policy) -> None:
    bench = reserved(policy)
    gone = [each for each in bench.do(Conclude(-1, ACCEPTED)) if isinstance(each, Removed)]
    assert [(each.first_sequence, each.last_sequence) for each in gone] == [(1, 2)]
    assert not bench.machine.contents.consumers.departed
    bench.do(Settle(1, 0, 3, RELEASED))
    assert left(bench) == ["group=a 0", "group=a 2"]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_message_that_is_given_back_comes_again(policy: Policy) -> None:
    bench = reserved(policy)
    bench.do(Conclude(-1, FAILED), Settle(1, 0, 3))
    assert left(bench) == ["group=a 1"]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_message_that_returns_to_its_consumer_is_in_flight_under_its_number(policy: Policy) -> None:
    bench = reserved(policy)
    bench.do(Return(-1))
    assert bench.machine.contents.in_flight_count == 3
    gone = [each for each in bench.do(Settle(1, 1, 2)) if isinstance(each, Removed)]
    assert [(each.first_sequence, each.last_sequence) for each in gone] == [(1, 2)]
    bench.do(Settle(1, 0, 3, RELEASED))
    assert left(bench) == ["group=a 0", "group=a 2"]


def test_the_lock_of_a_message_that_returns_begins_again() -> None:
    bench = reserved(POLICIES["locks"])
    bench.now += 5_000
    bench.do(Tick(), Return(-1))
    bench.now += 999
    bench.do(Tick())
    assert bench.machine.contents.in_flight_count == 1
    bench.now += 1
    bench.do(Tick())
    assert bench.machine.contents.in_flight_count == 0


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("ends", [Detach(1), Detach(1, Ending.FAILED)], ids=str)
def test_a_message_whose_consumer_has_detached_fails_instead_of_returning(
    policy: Policy, ends: Detach
) -> None:
    bench = reserved(policy)
    bench.do(ends, Return(-1))
    assert not bench.machine.contents.consumers.departed
    bench.consumer(2, credit=99)
    assert sorted(bench.get()) == ["group=a 0", "group=a 1", "group=a 2"]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("what", [Settle(1, 0, 3), Detach(1), Detach(1, Ending.FAILED), Purge()], ids=str)
def test_nothing_else_changes_a_reserved_message(policy: Policy, what: Settle | Detach | Purge) -> None:
    bench = reserved(policy)
    bench.do(what)
    bench.now += 5_000
    bench.do(Tick())
    assert "group=a 1" not in left(bench)
    bench.do(Conclude(-1, RELEASED))
    assert "group=a 1" in bench.get()


@pytest.mark.parametrize("before", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("after", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("outcome", [ACCEPTED, FAILED])
def test_another_policy_leaves_them_reserved(before: Policy, after: Policy, outcome: Outcome) -> None:
    bench = reserved(before)
    bench.do(Change(after))
    bench.dispatch()
    bench.do(Conclude(-1, outcome), Settle(1, 0, 3))
    bench.put("group=a 9")
    assert left(bench) == (["group=a 9"] if outcome is ACCEPTED else ["group=a 1", "group=a 9"])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("outcome", [ACCEPTED, FAILED])
def test_after_a_restart_they_are_reserved(policy: Policy, outcome: Outcome) -> None:
    bench = Bench(policy)
    batch = batch_of([b"group=a %d" % number for number in range(4)], durable=True)
    run = Run(batch, 0, 4, 0)
    bench.do(Restore([run], 4, reserved={-1: [(0, 1), (2, 3)]}))
    bench.consumer(1, credit=9)
    bench.put("group=b 9")
    assert sorted(bench.get(1)) == ["group=a 1", "group=a 3", "group=b 9"] or policy.groups
    bench.do(Settle(1, 0, 3))
    bench.do(Conclude(-1, outcome))
    found = sorted(bench.get())
    if policy.groups:
        # Who has a group keeps its order: what waits behind a reserved message comes after it.
        found = [each for each in found if each in ("group=a 0", "group=a 2")]
    assert found == ([] if outcome is ACCEPTED else ["group=a 0", "group=a 2"])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_after_a_restart_they_are_reserved_beside_deliveries_of_suspended_links(policy: Policy) -> None:
    """Which are restored as those of a queue that moves; a message that both have is reserved."""
    bench = Bench(Policy(max_delivery_count=0, dead_letter=False))
    batch = batch_of([b"group=a %d" % number for number in range(5)], durable=True)
    restore = Restore([Run(batch, 0, 5, 0)], 5, reserved={-1: [(0, 2)]}, joins=False, is_copy=True)
    holder = Holder(7, ConsumerOptions(first=9), 9, [(6, 1, 1), (7, 3, 1)])
    bench.do(restore, Open(policy, [holder]), Suspend(7))
    consumers = bench.machine.contents.consumers
    assert [run.sequence for run in consumers.by_id[7].in_flight.runs] == [3]
    assert bench.machine.contents.in_flight_count == 3
    gone = [each for each in bench.do(Conclude(-1, ACCEPTED)) if isinstance(each, Removed)]
    assert sum(each.last_sequence - each.first_sequence for each in gone) == 2
    bench.do(Resume(7), Settle(7, 7, 8, RELEASED), Credit(7, 99))
    assert sorted(bench.get(7)) == ["group=a 2", "group=a 3", "group=a 4"]


def test_what_was_concluded_is_concluded_once() -> None:
    bench = reserved(Policy())
    bench.do(Conclude(-1, ACCEPTED))
    assert bench.do(Conclude(-1, ACCEPTED)) == []
    assert bench.do(Conclude(-9, FAILED)) == []


def deferred_ones(policy: Policy, count: int = 3) -> Bench:
    """Messages 0 … count-1 are deferred, and locked under the key `k`; consumer 1 can receive others."""
    bench = Bench(policy)
    bench.put(*(f"group=a {number}" for number in range(count)))
    bench.consumer(1, credit=count)
    assert len(bench.get(1)) == count
    bench.do(Settle(1, 0, count, DEFERS))
    (answer,) = bench.do(LockDeferred(5, "k", list(range(count)), 60_000))
    assert isinstance(answer, LockedDeferred)
    assert sum(run.count for run in answer.runs) == count
    return bench


def aside(bench: Bench) -> dict[int, int]:
    """The failed deliveries of each deferred message that is not locked."""
    found = bench.machine.contents.aside
    return {sequence: failures(run.attempts) for run in found for sequence in range(run.sequence, run.end)}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("outcome", [ACCEPTED, FAILED, DEFERS])
def test_a_deferred_message_is_reserved_from_its_lock(policy: Policy, outcome: Outcome) -> None:
    bench = deferred_ones(policy)
    bench.do(Reserve(-1, 5, 1, 2, "k"))
    assert bench.do(SettleLocked("k", 1, sequence=1)) == [LockAnswer(False, 0)]
    # The end of the lock is for the other two.
    bench.now += 100_000
    bench.do(Tick())
    assert aside(bench) == {0: 1, 2: 1}
    assert bench.machine.view.holder_of("k") is None
    gone = [each for each in bench.do(Conclude(-1, outcome)) if isinstance(each, Removed)]
    assert len(gone) == (outcome is ACCEPTED)
    there = {} if outcome is ACCEPTED else {1: int(outcome is FAILED)}
    assert aside(bench) == {0: 1, 2: 1} | there
    assert not bench.machine.contents.consumers.departed


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_lock_ends_with_its_last_message(policy: Policy) -> None:
    bench = deferred_ones(policy)
    bench.do(SettleDetached("k", 0, 1, ACCEPTED), SettleDetached("k", 1, 2, FAILED))
    assert bench.machine.view.holder_of("k") is not None
    bench.do(SettleDetached("k", 2, 3, ACCEPTED))
    assert bench.machine.view.holder_of("k") is None
    assert aside(bench) == {1: 1}
    assert bench.do(SettleDetached("k", 2, 3, ACCEPTED)) == []


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("outcome", [ACCEPTED, FAILED])
@pytest.mark.parametrize("is_copy", [False, True])
def test_after_a_restart_deferred_messages_are_reserved(
    policy: Policy, outcome: Outcome, is_copy: bool
) -> None:
    """Of messages 0 … 4 all but the last are deferred; 1, 2 and 4 are in a transaction."""
    bench = Bench(Policy(max_delivery_count=0, dead_letter=False) if is_copy else policy)
    batch = batch_of([b"group=a %d" % number for number in range(5)], durable=True)
    runs = [Run(batch, 0, 4, 0, DEFERRED), Run(batch, 4, 5, 4)]
    restore = Restore(runs, 5, reserved={-1: [(1, 3), (4, 5)]}, joins=not is_copy, is_copy=is_copy)
    # In a copy deferred messages are ready, which is against a law of queues, until it is opened.
    bench.machine.apply(restore, bench.now)
    if is_copy:
        bench.do(Open(policy))
    bench.dispatch()
    assert aside(bench) == {0: 0, 3: 0}
    (nothing,) = bench.do(LockDeferred(5, "k", [1], 60_000))
    assert nothing == LockedDeferred([], 0)
    gone = [each for each in bench.do(Conclude(-1, outcome)) if isinstance(each, Removed)]
    assert sum(each.last_sequence - each.first_sequence for each in gone) == (3 if outcome is ACCEPTED else 0)
    assert aside(bench) == {0: 0, 3: 0} | ({} if outcome is ACCEPTED else {1: 1, 2: 1})
    bench.consumer(1, credit=9)
    assert bench.get() == ([] if outcome is ACCEPTED else ["group=a 4"])


@pytest.mark.parametrize("outcome", [ACCEPTED, FAILED])
def test_after_a_restart_a_session_waits_for_the_decision(outcome: Outcome) -> None:
    """Message 1 of its messages 0 … 2 is in a transaction: who accepts it gets the others afterwards."""
    bench = Bench(GROUPS)
    batch = batch_of([b"group=a %d" % number for number in range(3)], durable=True)
    bench.do(Restore([Run(batch, 0, 3, 0)], 3, reserved={-4: [(1, 2)]}))
    bench.consumer(1, credit=9, session="a")
    assert bench.get() == []
    bench.do(Conclude(-4, outcome))
    back = [] if outcome is ACCEPTED else ["group=a 1"]
    assert bench.get() == ["group=a 0", *back, "group=a 2"]


KEYED: dict[str, Any] = {"lock_key": "key", "lock_ends": LockEnding.BY_TIME}


def locked_and_reserved() -> Bench:
    """Of messages 0 … 2, which consumer 1 has until 1100, number 1 is reserved."""
    bench = Bench(Policy(lock_ms=100))
    bench.put("a", "b", "c")
    bench.consumer(1, **KEYED)
    assert bench.get(1) == ["a", "b", "c"]
    bench.do(Reserve(-1, 1, 1, 2))
    return bench


def test_a_rollback_changes_no_lock_whatever_became_of_the_link() -> None:
    bench = locked_and_reserved()
    assert bench.do(SettleLocked("key", 1)) == [LockAnswer(False, 0)]
    bench.do(Detach(1), Settle(1, 0, 3))
    bench.now = 1_099
    bench.do(Return(-1), Tick())
    assert bench.machine.view.gauges.in_flight == 3
    assert LockAnswer(True, 0) in bench.do(SettleLocked("key", 1))


def test_a_lock_whose_end_was_passed_over_fails_after_a_rollback() -> None:
    bench = locked_and_reserved()
    bench.now = 1_100
    bench.do(Tick(), Detach(1))
    bench.do(Return(-1))
    bench.consumer(2)
    assert bench.get(2) == ["a", "b", "c"]


def test_a_link_that_opened_again_has_the_lock_after_a_rollback() -> None:
    bench = locked_and_reserved()
    bench.do(Detach(1, Ending.BY_BROKER))
    bench.consumer(2, first=3, **KEYED)
    bench.do(Return(-1))
    removed = bench.do(Settle(2, 0, 3))
    assert [effect.first_sequence for effect in removed if isinstance(effect, Removed)] == [0, 1, 2]
    assert bench.machine.view.held == 0


def test_a_lock_without_an_end_gets_one_at_a_rollback_if_its_link_has_ended() -> None:
    bench = Bench(Policy(lock_ms=100))
    bench.put("a")
    bench.consumer(1, **KEYED)
    bench.do(Change(Policy()))
    assert bench.get(1) == ["a"]
    bench.do(Reserve(-1, 1, 0, 1), Detach(1), Return(-1))
    bench.consumer(2)
    bench.now = 1_099
    assert bench.get(2) == []
    bench.now = 1_100
    assert bench.get(2) == ["a"]


def test_the_end_of_a_lock_does_not_count_after_a_rollback_if_its_link_had_nothing_else() -> None:
    bench = Bench(Policy(lock_ms=100, max_delivery_count=1))
    bench.put("a")
    bench.consumer(1, **KEYED)
    assert bench.get(1) == ["a"]
    bench.do(Reserve(-1, 1, 0, 1), Detach(1, Ending.BY_CLIENT), Return(-1))
    bench.now = 1_100
    bench.consumer(2)
    assert bench.get(2) == ["a"]


def test_a_lock_without_an_end_that_was_reserved_ends_with_those_that_got_an_end_meanwhile() -> None:
    bench = Bench(Policy())
    bench.put("a", "b")
    bench.consumer(1, **KEYED)
    assert bench.get(1) == ["a", "b"]
    bench.do(Reserve(-1, 1, 1, 2), Change(Policy(lock_ms=100)), Change(Policy()))
    bench.do(Return(-1), Detach(1))
    bench.consumer(2)
    bench.now = 1_100
    assert bench.get(2) == ["a", "b"]


def test_a_number_that_a_link_gives_again_is_not_that_of_a_message_that_was_reserved_under_it() -> None:
    """The message has failed after a rollback: what the number settles now is another one."""
    bench = locked_and_reserved()
    bench.do(Detach(1, Ending.BY_BROKER))
    bench.consumer(2, credit=2, first=1, **KEYED)
    assert bench.get(2) == ["c"]
    bench.do(Return(-1))
    removed = [each for each in bench.do(Settle(2, 1, 2)) if isinstance(each, Removed)]
    assert [each.first_sequence for each in removed] == [2]
    bench.consumer(3)
    assert bench.get(3) == ["b"]


@pytest.mark.parametrize(
    "policy", [Policy(lock_ms=100), Policy(lock_ms=100, groups=True)], ids=["plain", "groups"]
)
def test_a_rollback_after_a_restart_changes_no_lock(policy: Policy) -> None:
    """Of messages 0 … 2, which are locked under a key, number 1 is reserved."""
    bench = Bench(Policy(max_delivery_count=0, dead_letter=False))
    batch = batch_of([b"group=a %d" % number for number in range(3)], durable=True)
    options = ConsumerOptions(first=3, **KEYED)
    holder = Holder(7, options, 3, [(0, 0, 3)], lock_ms=100, departed=True, blame=(None, []))
    restore = Restore([Run(batch, 0, 3, 0)], 3, reserved={-1: [(1, 2)]}, joins=False, is_copy=True)
    bench.do(restore, Open(policy, [holder], [(bench.now + 100, 7, 0, 3)]), Return(-1))
    for number in range(3):
        assert LockAnswer(True, 0) in bench.do(SettleLocked("key", number))
    assert bench.machine.view.held == 0
    bench.put("group=a 3")
    bench.consumer(8)
    assert bench.get(8) == ["group=a 3"]


@pytest.mark.parametrize("lock_ms", [50, 200])
def test_after_a_rollback_a_renewal_uses_the_present_policy(lock_ms: int) -> None:
    bench = Bench(Policy(lock_ms=100))
    bench.put("a")
    bench.consumer(1, **KEYED)
    assert bench.get(1) == ["a"]
    bench.do(Detach(1), Reserve(-1, 1, 0, 1, "key"), Change(Policy(lock_ms=lock_ms)), Return(-1))
    assert bench.do(RenewByKeys([("key", 0)])) == [Renewed([lock_ms])]
