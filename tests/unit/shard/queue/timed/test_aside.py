"""Aside: deferred messages are nobody's until they are asked for, whatever else happens to their queue."""

import pytest

from lightrail.model.attempts import DEFERRED
from lightrail.shard.queue.changes import removals
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    Change,
    Detach,
    Enqueue,
    Fetched,
    LockDeferred,
    Open,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    RenewLock,
    Restore,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.counters import RUN
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Effect,
    Fetch,
    LockAnswer,
    LockedDeferred,
    Peeked,
    PeekedState,
    Purged,
    Reason,
    Removed,
    Replaced,
    Returned,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.asides import DEFER, on_disk
from tests.support.shard.checked_queue import (
    DELAY,
    GROUPS,
    LAST_VALUE,
    SORTED,
    Bench,
    PlainBench,
    delivered,
    numbered,
    payloads,
    removed,
)

PRIORITIES = Policy(priorities=3)


def deferring(*messages: bytes, policy: Policy | None = None, **attributes: object) -> PlainBench:
    """A queue whose consumer 1 has got the messages."""
    bench = PlainBench(policy=policy)
    bench.put(*messages, **attributes)
    bench.consumer(1)
    bench.dispatch()
    return bench


def lock(bench: PlainBench | Bench, *sequences: int, key: str = "key", holder: int = 1_000) -> LockedDeferred:
    answer = bench.do(LockDeferred(holder, key, sequences, 60))[-1]
    assert isinstance(answer, LockedDeferred)
    return answer


def texts(answer: LockedDeferred) -> list[bytes]:
    return [message for run in answer.runs for message in run.messages()]


def states(bench: PlainBench | Bench) -> list[tuple[int, PeekedState]]:
    (peeked,) = bench.do(Peek(0, 100))
    assert isinstance(peeked, Peeked)
    return [
        (sequence, state)
        for run, state in zip(peeked.runs, peeked.states, strict=True)
        for sequence in range(run.sequence, run.end)
    ]


def test_a_deferred_message_is_delivered_to_nobody_and_seen_by_those_who_peek() -> None:
    bench = deferring(b"a", b"b", b"c")
    (returned,) = bench.do(Settle(1, 1, 2, DEFER))
    assert isinstance(returned, Returned)
    assert [(run.sequence, run.attempts) for run in returned.runs] == [(1, DEFERRED)]
    bench.do(Detach(1))
    bench.consumer(2)
    assert payloads(bench.dispatch(), 2) == [b"a", b"c"]
    assert states(bench) == [(1, PeekedState.DEFERRED)]
    gauges = bench.machine.view.gauges
    assert (gauges.ready, gauges.in_flight, gauges.deferred, gauges.bytes) == (0, 2, 1, 3)


def test_it_is_locked_for_who_asks_by_its_sequence_and_settled_by_its_lock() -> None:
    bench = deferring(*numbered(4))
    bench.do(Settle(1, 0, 4, DEFER))
    answer = lock(bench, 3, 1, 3)
    assert (texts(answer), answer.until_ms) == ([b"m1", b"m3"], 60)
    assert [run.sequence for run in answer.runs] == [1, 3]
    assert bench.machine.view.gauges.deferred == 2
    assert removed(bench.do(SettleLocked("key", 3, ACCEPTED, 3)), Reason.ACCEPTED) == [3]
    assert bench.do(RenewLock("key", 1, 1)) == [LockAnswer(True, 60)]
    assert bench.do(SettleLocked("key", 0))[-1] == LockAnswer(False, 0)
    assert states(bench) == [(0, PeekedState.DEFERRED), (2, PeekedState.DEFERRED)]


def test_all_messages_of_a_request_are_locked_or_none() -> None:
    bench = deferring(*numbered(3))
    bench.do(Settle(1, 0, 2, DEFER))
    lock(bench, 0)
    for sequences in ((0, 1), (1, 2), (1, 9), ()):
        assert lock(bench, *sequences, key="other", holder=1_001).runs == []
    assert texts(lock(bench, 1, key="other", holder=1_001)) == [b"m1"]


def test_a_request_that_is_repeated_finds_the_same_messages() -> None:
    bench = deferring(*numbered(3))
    bench.do(Settle(1, 0, 3, DEFER))
    first = lock(bench, 0, 2)
    assert texts(lock(bench, 0, 2, holder=1_001)) == texts(first)
    bench.do(SettleLocked("key", 0))
    assert lock(bench, 0, 2, holder=1_002).runs == []


@pytest.mark.parametrize("outcome", [FAILED, DEFER, Outcome(OutcomeKind.RELEASED)], ids=str)
def test_what_comes_back_from_its_lock_is_deferred_still(outcome: Outcome) -> None:
    bench = deferring(b"a")
    bench.do(Settle(1, 0, 1, DEFER))
    lock(bench, 0)
    bench.do(SettleLocked("key", 0, outcome))
    bench.consumer(2)
    assert not bench.dispatch()
    (run,) = lock(bench, 0, holder=1_001).runs
    assert run.attempts == DEFERRED + outcome.delivery_failed


def test_a_lock_that_ends_is_a_failed_delivery_until_there_were_too_many() -> None:
    bench = deferring(b"a", policy=Policy(max_delivery_count=2, lock_ms=10))
    bench.do(Settle(1, 0, 1, DEFER))
    for holder, expected in ((1_000, Returned), (1_001, DeadLetter)):
        assert lock(bench, 0, holder=holder).until_ms == bench.now + 10
        bench.now += 10
        assert bench.machine.next_deadline_ms == bench.now
        (effect,) = bench.do(Tick())
        assert isinstance(effect, expected)
    assert isinstance(effect, DeadLetter)
    assert effect.reason is Reason.MAX_DELIVERY_COUNT
    assert effect.run.attempts == 2, "the dead letter is not deferred"


def test_a_deferral_with_annotations_writes_the_message_anew() -> None:
    bench = Bench(DELAY)
    bench.put("a")
    bench.consumer(1)
    bench.dispatch()
    (effect,) = bench.do(Settle(1, 0, 1, DEFER._replace(annotations=b" delay=50")))
    assert isinstance(effect, Replaced)
    assert effect.run.attempts == DEFERRED
    assert effect.run.messages() == [b"a delay=50"]
    assert states(bench) == [(0, PeekedState.DEFERRED)], "it is deferred, and not delayed"


@pytest.mark.parametrize("policy", [Policy(), PRIORITIES, GROUPS, SORTED, LAST_VALUE, DELAY], ids=str)
def test_in_every_order_the_messages_around_it_go_on(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put("key=1 group=a first", "key=2 group=a second", "key=3 group=b third")
    bench.consumer(1, 1)
    (first,) = bench.get(1)
    bench.do(Settle(1, 0, 1, DEFER), Detach(1))
    bench.consumer(2)
    assert len(bench.get(2)) == 2
    bench.put("key=9 group=a last")
    bench.do(Settle(2, 0, 2))
    assert bench.get(2) == ["key=9 group=a last"]
    ((sequence, state),) = states(bench)
    assert state is PeekedState.DEFERRED
    assert texts(lock(bench, sequence)) == [first.encode()]


@pytest.mark.parametrize("policy", [PRIORITIES, GROUPS, SORTED, LAST_VALUE, DELAY], ids=str)
def test_it_stays_so_through_changes_of_the_policy(policy: Policy) -> None:
    bench = Bench(Policy())
    bench.put("key=1 group=a first", "key=1 group=a second")
    bench.consumer(1, 2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, DEFER), Settle(1, 1, 2, DEFER))
    lock(bench, 1)
    for each in (policy, GROUPS, policy, Policy()):
        bench.do(Change(each))
        bench.put("key=1 group=a next")
        bench.do(Detach(1))
        bench.consumer(1)
        assert bench.get(1) == ["key=1 group=a next"]
        bench.do(Settle(1, 0, 1))
    bench.do(SettleLocked("key", 1, FAILED))
    assert states(bench) == [(0, PeekedState.DEFERRED), (1, PeekedState.DEFERRED)]


@pytest.mark.parametrize("policy", [Policy(), GROUPS, LAST_VALUE], ids=str)
def test_those_on_disk_are_locked_settled_and_purged_there(policy: Policy) -> None:
    bench = on_disk(policy)
    (run,) = lock(bench, 1).runs
    assert run.batch.evicted
    assert removed(bench.do(SettleLocked("key", 1)), Reason.ACCEPTED) == [1]
    assert removed(bench.do(Purge()), Reason.PURGED) == [0]
    assert bench.machine.view.gauges[:4] == (0, 0, 0, 0)


def test_the_cleaner_moves_them_on_disk() -> None:
    bench = on_disk(Policy())
    lock(bench, 0)
    footprint = bench.machine.footprint
    (run, *others) = footprint.runs_in(1)
    for each in (run, *others):
        footprint.relocate([(each, Location(2, 100, 5_000))])
    assert not footprint.runs_in(1)
    assert sum(each.count for each in footprint.runs_in(2)) == 2
    (again,) = lock(bench, 1, key="other", holder=1_001).runs
    assert again.batch.location == Location(2, 100, 5_000)


def test_expired_ones_leave_like_others() -> None:
    bench = deferring(b"a", b"b", policy=Policy(dead_letter=False), expires_at_ms=50)
    bench.do(Settle(1, 0, 2, DEFER))
    lock(bench, 1)
    bench.now = 50
    assert removed(bench.do(Tick()), Reason.EXPIRED) == [0]
    # One that is locked stays until its lock ends.
    bench.do(SettleLocked("key", 1, FAILED))
    assert removed(bench.do(Tick()), Reason.EXPIRED) == [1]
    assert bench.machine.contents.counters.expired == 2


@pytest.mark.parametrize("policy", [Policy(), GROUPS], ids=str)
def test_expired_ones_that_are_on_disk_are_read_to_become_dead_letters(policy: Policy) -> None:
    bench = on_disk(policy, expires_at_ms=2_000)
    bench.now = 2_000
    (fetch,) = bench.do(Tick())
    assert isinstance(fetch, Fetch)
    messages = [b"x"] * fetch.run.count
    found = Run(batch_of(messages, expires_at_ms=2_000), 0, fetch.run.count, fetch.run.sequence)
    effects = [
        each for each in bench.do(Fetched(fetch.run.sequence, [found])) if isinstance(each, DeadLetter)
    ]
    assert {(each.reason, each.run.attempts) for each in effects} == {(Reason.EXPIRED, 0)}
    assert sum(each.run.count for each in effects) == 2
    assert not bench.machine.contents.held


def test_many_expire_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "EXPIRED_AT_ONCE", 3)
    bench = deferring(*numbered(10), expires_at_ms=50)
    bench.do(Settle(1, 0, 10, DEFER))
    bench.now = 50
    work = bench.machine.contents.work
    letters: list[Effect] = []
    turns = 0
    while bench.machine.next_deadline_ms == 50:
        work.left = 3 * RUN
        turns += 1
        letters += [each for each in bench.do(Tick()) if isinstance(each, DeadLetter)]
    assert sum(each.run.count for each in letters if isinstance(each, DeadLetter)) == 10
    assert turns > 3


def test_a_message_that_is_ready_later_does_not_hide_when_an_earlier_one_expires() -> None:
    bench = deferring(b"a", expires_at_ms=50)
    bench.do(Settle(1, 0, 1, DEFER), Detach(1))
    bench.put(b"b")
    bench.dispatch()
    assert bench.machine.next_deadline_ms == 50


def test_what_is_purged_is_purged_with_the_deferred_ones() -> None:
    bench = deferring(*numbered(3))
    bench.do(Settle(1, 1, 2, DEFER))
    effects = bench.do(Purge())
    assert removed(effects, Reason.PURGED) == [1]
    assert not [each for each in effects if isinstance(each, Purged)]
    assert (bench.machine.contents.counters.purged, bench.machine.view.gauges.in_flight) == (1, 2)


def test_they_count_against_the_bounds_and_are_not_discarded_for_newer_ones() -> None:
    bench = deferring(*numbered(2), policy=Policy(max_length=3, overflow="discard_existing"))
    bench.do(Settle(1, 0, 2, DEFER), Detach(1))
    bench.put(b"a")
    effects = bench.do(Enqueue(batch_of([b"b"])))
    assert removed(effects, Reason.DISCARDED) == [2]
    assert states(bench) == [(0, PeekedState.DEFERRED), (1, PeekedState.DEFERRED), (3, PeekedState.READY)]


def restored(policy: Policy, *, is_copy: bool = False) -> Machine:
    """As recovery finds them: the second of three is deferred and has failed twice."""
    location = Location(1, 0, 500)
    evicted = batch_of([b""] * 2, durable=True, location=location)
    evicted.data = evicted.ends = None
    runs = [
        Run(batch_of([b"a"], durable=True, location=location), 0, 1, 0),
        Run(batch_of([b"b"], durable=True, location=location, expires_at_ms=90), 0, 1, 1, DEFERRED + 2),
        Run(evicted, 0, 2, 2, DEFERRED),
        Run(batch_of([b"d"], durable=True, location=location), 0, 1, 4),
    ]
    machine = Machine("orders", policy)
    machine.apply(Restore(runs, 5, is_copy=is_copy), 0)
    return machine


@pytest.mark.parametrize("policy", [Policy(), PRIORITIES], ids=str)
def test_they_are_deferred_after_a_restart(policy: Policy) -> None:
    bench = PlainBench()
    bench.machine = restored(policy)
    bench.consumer(2)
    assert payloads(bench.dispatch(), 2) == [b"a", b"d"]
    assert [sequence for sequence, state in states(bench) if state is PeekedState.DEFERRED] == [1, 2, 3]
    (run, third) = lock(bench, 1, 3).runs
    assert (run.messages(), run.attempts, third.batch.evicted) == ([b"b"], DEFERRED + 2, True)
    assert bench.machine.contents.counters.restored == 5


def test_a_copy_has_them_in_its_line_until_it_is_opened() -> None:
    bench = PlainBench()
    bench.machine = restored(Policy(), is_copy=True)
    assert [run.sequence for run in bench.machine.contents.ready.waiting()] == [0, 1, 2, 4]
    bench.do(Open(Policy()))
    assert [sequence for sequence, state in states(bench) if state is PeekedState.DEFERRED] == [1, 2, 3]
    assert bench.machine.next_deadline_ms == 90


def test_neighbours_of_one_batch_are_one_run_and_the_rest_of_a_large_batch_is_free() -> None:
    bench = deferring(*[b"%d" % number + b"x" * 4_000 for number in range(16)])
    bench.do(Settle(1, 0, 1, DEFER), Settle(1, 1, 2, DEFER), Settle(1, 8, 9, DEFER))
    runs = list(bench.machine.contents.aside)
    assert [run.batch.size for run in runs[-1:]] == [4_001]
    for sequence in (0, 1, 8):
        (run,) = lock(bench, sequence, key=f"key{sequence}", holder=2_000 + sequence).runs
        assert run.messages()[0].startswith(b"%dx" % sequence)


def test_nothing_is_delivered_as_a_copy_of_it() -> None:
    bench = deferring(b"a", b"b")
    bench.do(Settle(1, 0, 1, DEFER), Settle(1, 1, 2, FAILED), Detach(1))
    bench.consumer(2, browse=True)
    assert delivered(bench.dispatch(), 2) == ["b"]
    assert not [each for each in bench.do(Tick()) if isinstance(each, Removed)]
