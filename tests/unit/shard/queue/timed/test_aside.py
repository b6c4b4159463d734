"""Aside: deferred messages are nobody's until they are asked for, whatever else happens to their queue."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from lightrail.model import limits
from lightrail.model.attempts import DEFERRED, waiting, waits_until_ms
from lightrail.model.links import Ending
from lightrail.shard.queue.changes import removals
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Attach,
    Cancel,
    Change,
    Conclude,
    ConsumerOptions,
    Credit,
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
    Reserve,
    Restore,
    Return,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.counters import RUN
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Deliver,
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
from tests.support.shard.checked_queue import (
    DELAY,
    GROUPS,
    LAST_VALUE,
    SORTED,
    Bench,
    Checked,
    PlainBench,
    delivered,
    numbered,
    payloads,
    removed,
)
from tests.support.work import lines

DEFER = Outcome(OutcomeKind.MODIFIED, defers=True)
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


def on_disk(policy: Policy, **attributes: object) -> Bench:
    """Two deferred messages that are only on disk."""
    bench = Bench(policy)
    messages = [f"key={number} group=a " + "x" * 2_000 for number in range(2)]
    batch = batch_of(
        [message.encode() for message in messages],
        durable=True,
        enqueued_at_ms=bench.now,
        location=Location(1, 0, 5_000),
        **attributes,  # type: ignore[arg-type]
    )
    bench.do(Enqueue(batch))
    bench.consumer(1)
    bench.dispatch()
    bench.do(Settle(1, 0, 2, DEFER))
    bench.machine.footprint.evict(10_000)
    assert bench.machine.contents.deliveries.evicted_count == 2
    return bench


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


WAIT = Policy(max_delivery_count=4, retry_delay_ms=100, retry_growth=2, retry_delay_max_ms=250)
IN_GROUPS = Policy(groups=True, retry_delay_ms=100)


def failing(*messages: bytes, policy: Policy = WAIT, **attributes: object) -> PlainBench:
    """A queue whose consumer 1 has got the messages, and more credit."""
    bench = PlainBench(policy=policy)
    bench.put(*messages, **attributes)
    bench.consumer(1)
    bench.dispatch()
    return bench


def at(bench: Checked, now: int) -> list[bytes]:
    bench.now = now
    return payloads(bench.do(Tick()) + bench.dispatch())


def recovered(
    *runs: Run,
    policy: Policy = WAIT,
    now: int = 0,
    reserved: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> PlainBench:
    bench = PlainBench(policy=policy)
    bench.now = now
    bench.do(Restore(runs, runs[-1].end, reserved=reserved or {}))
    return bench


# --- how long -----------------------------------------------------------------------------------------


def test_a_failed_message_is_delivered_again_after_the_delay() -> None:
    bench = failing(b"m")
    bench.do(Settle(1, 0, 1, FAILED))
    assert bench.machine.next_deadline_ms == 100
    assert at(bench, 99) == []
    assert at(bench, 100) == [b"m"]
    assert bench.machine.next_deadline_ms is None


def test_each_failure_waits_longer_up_to_the_bound_and_the_last_one_not_at_all() -> None:
    bench = failing(b"m")
    waits = []
    for number in range(3):
        bench.do(Settle(1, number, number + 1, FAILED))
        deadline = bench.machine.next_deadline_ms
        assert deadline is not None
        waits.append(deadline - bench.now)
        assert at(bench, deadline) == [b"m"]
    assert waits == [100, 200, 250]
    (letter,) = bench.do(Settle(1, 3, 4, FAILED))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.run.attempts) == (Reason.MAX_DELIVERY_COUNT, 4)


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (Policy(retry_delay_ms=100), [100, 100, 100]),
        (Policy(retry_delay_ms=100, retry_growth=1.5), [100, 150, 225]),
        (Policy(retry_delay_ms=100, retry_growth=100), [100, 10_000, 10_000]),
        (Policy(retry_delay_ms=100, retry_growth=100, retry_delay_max_ms=1 << 40), [100, 10_000, 1_000_000]),
        (Policy(), [0, 0, 0]),
    ],
)
def test_the_wait_grows_with_the_failures(policy: Policy, waits: list[int]) -> None:
    assert [policy.retry_ms(failures) for failures in (1, 2, 3)] == waits
    bound = policy.retry_delay_max_ms or (policy.retry_delay_ms or 0) * limits.RETRY_DELAY_FACTOR_MAX
    expected = bound if policy.retry_growth > 1 else policy.retry_delay_ms or 0
    assert policy.retry_ms(1_000_000) == expected


# --- which outcomes -----------------------------------------------------------------------------------


def test_released_and_modified_without_a_failure_do_not_wait() -> None:
    bench = failing(b"a", b"b")
    bench.do(Settle(1, 0, 1, RELEASED), Settle(1, 1, 2, Outcome(OutcomeKind.MODIFIED)))
    assert at(bench, 0) == [b"a", b"b"]


def test_rejected_messages_become_dead_letters_at_once() -> None:
    bench = failing(b"m")
    (letter,) = bench.do(Settle(1, 0, 1, Outcome(OutcomeKind.REJECTED)))
    assert isinstance(letter, DeadLetter)


def test_what_a_crashed_consumer_worked_on_waits_and_what_it_had_prefetched_does_not() -> None:
    bench = failing(*numbered(3))
    bench.do(Detach(1, Ending.FAILED))
    bench.consumer(2)
    assert at(bench, 0) == [b"m1", b"m2"]
    assert at(bench, 100) == [b"m0"]


def test_an_expired_lock_is_a_failure_that_waits() -> None:
    bench = failing(b"m", policy=Policy(retry_delay_ms=100, lock_ms=50))
    assert at(bench, 50) == []
    assert at(bench, 149) == []
    assert at(bench, 150) == [b"m"]


def test_a_message_that_is_deferred_does_not_wait() -> None:
    bench = failing(b"m")
    bench.do(Settle(1, 0, 1, Outcome(OutcomeKind.MODIFIED, delivery_failed=True, defers=True)))
    bench.do(LockDeferred(1_000, "key", [0], 60))
    bench.do(SettleLocked("key", 0, FAILED))
    assert bench.machine.contents.aside.lowest == 0
    assert [run.attempts for run in bench.machine.contents.aside] == [DEFERRED | 2]
    assert bench.machine.contents.retries is None


def test_a_rollback_counts_nothing_and_a_commit_waits_from_then_on() -> None:
    bench = failing(b"a", b"b")
    bench.do(Reserve(-10, 1, 0, 1), Return(-10))
    assert bench.machine.contents.in_flight_count == 2
    bench.do(Reserve(-11, 1, 0, 1))
    bench.now = 50
    bench.do(Conclude(-11, FAILED))
    assert at(bench, 149) == []
    assert at(bench, 150) == [b"a"]


# --- others pass --------------------------------------------------------------------------------------


def test_later_messages_pass_and_the_waiting_one_returns_to_its_position() -> None:
    bench = failing(*numbered(2))
    bench.do(Settle(1, 0, 1, FAILED))
    bench.put(b"m2")
    assert at(bench, 10) == [b"m2"]
    bench.do(Credit(1, 3))
    bench.put(b"m3")
    assert at(bench, 100) == []
    bench.do(Credit(1, 100))
    assert at(bench, 100) == [b"m0", b"m3"]


def test_a_consumer_that_must_not_get_it_again_does_not_after_the_wait() -> None:
    bench = failing(b"m")
    outcome = Outcome(OutcomeKind.MODIFIED, delivery_failed=True, undeliverable_here=True)
    bench.do(Settle(1, 0, 1, outcome))
    assert at(bench, 100) == []
    bench.consumer(2)
    effects = bench.dispatch()
    assert [effect.consumer for effect in effects if isinstance(effect, Deliver)] == [2]


def test_messages_of_one_failure_are_one_run_and_one_record() -> None:
    bench = failing(*numbered(1_000), policy=Policy(retry_delay_ms=100), durable=True)
    (returned,) = bench.do(Settle(1, 0, 100, FAILED))
    assert isinstance(returned, Returned)
    assert [(run.sequence, run.count) for run in returned.runs] == [(0, 100)]
    assert {run.attempts for run in returned.runs} == {waiting(1, 100)}
    bench.do(Credit(1, 200))
    assert at(bench, 100) == numbered(100)


@pytest.mark.parametrize("order", ["priorities", "sorted"])
def test_a_message_returns_to_its_rank(order: str) -> None:
    policy = Policy(priorities=3) if order == "priorities" else Policy(order="sorted", order_key="key")
    bench = Bench(replace(policy, retry_delay_ms=100))
    bench.put("key=1 first", priority=9)
    bench.consumer(1, credit=1)
    assert bench.get() == ["key=1 first"]
    bench.do(Settle(1, 0, 1, FAILED))
    bench.put("key=2 later")
    bench.now += 100
    bench.do(Credit(1, 100))
    assert bench.get() == ["key=1 first", "key=2 later"]


def test_a_newer_value_replaces_the_one_that_waits() -> None:
    bench = Bench(Policy(order="last_value", order_key="key", retry_delay_ms=100))
    bench.put("key=1 old")
    bench.consumer(1)
    bench.get()
    bench.do(Settle(1, 0, 1, FAILED))
    bench.put("key=1 new")
    assert bench.get() == ["key=1 new"]
    bench.now += 100
    assert bench.get() == []
    assert bench.machine.contents.retries_count == 0


# --- groups -------------------------------------------------------------------------------------------


def test_a_group_waits_with_its_message_and_others_do_not() -> None:
    bench = Bench(IN_GROUPS)
    bench.put("group=a 0", "group=a 1", "group=b 2", "3")
    bench.consumer(1, credit=1)
    assert bench.get() == ["group=a 0"]
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100))
    assert bench.get() == ["group=b 2", "3"]
    bench.put("group=a 4")
    assert bench.get() == []
    bench.now += 100
    assert bench.get() == ["group=a 0", "group=a 1", "group=a 4"]


def test_a_group_of_a_crashed_consumer_waits_for_its_message_and_goes_to_another_one() -> None:
    bench = Bench(IN_GROUPS)
    bench.put("group=a 0", "group=a 1")
    bench.consumer(1, credit=1)
    bench.get()
    bench.consumer(2)
    bench.do(Detach(1, Ending.FAILED))
    assert bench.get() == []
    bench.now += 100
    assert bench.get(2) == ["group=a 0", "group=a 1"]


def test_a_session_with_a_message_that_waits_is_not_the_next_one() -> None:
    bench = Bench(IN_GROUPS)
    bench.put("group=a 0", "group=b 1")
    bench.consumer(1, any_session=True)
    assert bench.get() == ["group=a 0"]
    bench.do(Settle(1, 0, 1, FAILED), Detach(1))
    bench.do(Tick())
    bench.dispatch()
    assert not bench.do()
    bench.consumer(2, any_session=True)
    assert bench.get() == ["group=b 1"]
    bench.now += 100
    bench.consumer(3, any_session=True)
    assert bench.get() == ["group=a 0"]


@pytest.mark.parametrize("leaves", ["purged", "expired"])
def test_a_group_goes_on_when_its_waiting_message_has_left(leaves: str) -> None:
    bench = Bench(IN_GROUPS)
    bench.put("group=a 0", expires_at_ms=1_050)
    bench.consumer(1)
    bench.get()
    bench.do(Settle(1, 0, 1, FAILED))
    if leaves == "purged":
        bench.do(Purge())
        bench.put("group=a 1")
    else:
        bench.put("group=a 1")
        assert bench.get() == []
        bench.now += 50
        bench.do(Tick())
    assert bench.get() == ["group=a 1"]


# --- how it leaves, counts and shows ------------------------------------------------------------------


def test_the_time_to_live_goes_on_while_a_message_waits() -> None:
    bench = failing(b"m", expires_at_ms=60)
    bench.do(Settle(1, 0, 1, FAILED))
    bench.now = 60
    (letter,) = bench.do(Tick())
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.run.attempts) == (Reason.EXPIRED, 1)
    assert bench.machine.view.gauges.delayed == 0
    assert at(bench, 100) == []


def test_a_message_that_waits_counts_as_delayed_and_against_the_bounds() -> None:
    bench = failing(*numbered(3))
    bench.do(Settle(1, 0, 1, FAILED))
    gauges = bench.machine.view.gauges
    assert (gauges.ready, gauges.delayed, gauges.in_flight, gauges.bytes) == (0, 1, 2, 6)
    assert bench.machine.contents.held == 3


def test_it_is_peeked_as_delayed_and_not_browsed() -> None:
    bench = failing(*numbered(2))
    bench.do(Settle(1, 0, 2, FAILED))
    bench.put(b"m2")
    bench.do(Credit(1, 2))
    bench.consumer(2, browse=True)
    assert payloads(bench.dispatch(), 2) == [b"m2"]
    (peeked,) = bench.do(Peek(0, 10))
    assert isinstance(peeked, Peeked)
    assert list(zip([run.sequence for run in peeked.runs], peeked.states, strict=True)) == [
        (0, PeekedState.DELAYED),
        (2, PeekedState.READY),
    ]
    assert bench.machine.view.due_ms(peeked.runs[0]) == 100
    assert bench.machine.view.due_ms(peeked.runs[1]) is None


def test_it_is_purged_and_not_cancelled() -> None:
    bench = failing(*numbered(2))
    bench.do(Settle(1, 0, 1, FAILED))
    assert bench.do(Cancel(0)) == []
    (gone,) = bench.do(Purge())
    assert isinstance(gone, Removed | Purged)
    assert bench.machine.contents.counters.purged == 1
    assert at(bench, 100) == []


def test_what_waits_ends_with_the_queue() -> None:
    bench = failing(*numbered(2))
    bench.do(Settle(1, 0, 1, FAILED))
    assert sorted(run.sequence for run in bench.machine.contents.surrender()) == [0, 1]


def test_when_it_is_ready_the_oldest_messages_beyond_the_bound_are_discarded() -> None:
    policy = Policy(retry_delay_ms=100, max_length=2, overflow="discard_existing")
    bench = failing(b"m0", policy=policy)
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 1))
    bench.put(b"m1", b"m2")
    assert [run.sequence for run in bench.machine.contents.ready.waiting()] == [2]
    assert at(bench, 100) == []
    assert bench.machine.contents.held == 2


# --- on disk ------------------------------------------------------------------------------------------


def evicted(bench: Checked) -> None:
    for run in bench.machine.contents.runs():
        run.batch.location = run.batch.location or Location(1, run.sequence, 1)
    bench.machine.footprint.evict(1 << 20)


def fetch(bench: Checked, messages: dict[int, bytes], effects: list[Effect]) -> list[Effect]:
    """Answers the fetches among these effects."""
    found: list[Effect] = []
    for effect in effects:
        run = getattr(effect, "run", None)
        if type(effect).__name__ == "Fetch" and run is not None:
            batch = batch_of([messages[each] for each in range(run.sequence, run.end)])
            batch.expires_at_ms = run.batch.expires_at_ms
            found += bench.do(Fetched(run.sequence, [Run(batch, 0, run.count, run.sequence)]))
    return found


def test_messages_on_disk_wait_and_are_read_when_they_are_delivered() -> None:
    bench = failing(*numbered(4))
    bench.do(Settle(1, 0, 4, FAILED))
    evicted(bench)
    assert bench.machine.contents.resident_message_bytes == 0
    bench.now = 100
    effects = bench.do(Tick()) + bench.dispatch()
    fetch(bench, dict(enumerate(numbered(4))), effects)
    assert payloads(bench.dispatch()) == numbered(4)


def test_a_failed_delivery_on_disk_waits_without_being_read() -> None:
    bench = failing(*numbered(4))
    evicted(bench)
    (returned,) = bench.do(Settle(1, 0, 4, FAILED))
    assert isinstance(returned, Returned)
    assert bench.machine.contents.retries_count == 4


def test_one_of_a_group_on_disk_keeps_its_group() -> None:
    bench = Bench(IN_GROUPS)
    bench.put("group=a long enough to be worth it " + "x" * 200, "group=a 1")
    bench.consumer(1, credit=1)
    bench.get()
    evicted(bench)
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100))
    bench.now += 99
    assert bench.get() == []
    bench.now += 1
    messages = {0: b"group=a long enough to be worth it " + b"x" * 200, 1: b"group=a 1"}
    fetch(bench, messages, bench.dispatch())
    assert [text[:9] for text in bench.get()] == ["group=a l", "group=a 1"]


def test_an_expired_message_on_disk_is_read_for_its_dead_letter() -> None:
    bench = failing(b"m", expires_at_ms=60)
    bench.do(Settle(1, 0, 1, FAILED))
    evicted(bench)
    bench.now = 60
    found = fetch(bench, {0: b"m"}, bench.do(Tick()))
    assert [type(each) for each in found] == [DeadLetter]


# --- annotations --------------------------------------------------------------------------------------


def outcome(text: str) -> Outcome:
    return Outcome(OutcomeKind.MODIFIED, delivery_failed=True, annotations=text.encode())


def test_annotations_are_merged_before_the_wait() -> None:
    bench = Bench(Policy(retry_delay_ms=100))
    bench.put("m")
    bench.consumer(1)
    bench.get()
    replaced, returned = bench.do(Settle(1, 0, 1, outcome(" noted")))
    assert isinstance(replaced, Replaced)
    assert isinstance(returned, Returned)
    assert [waits_until_ms(run.attempts) for run in returned.runs] == [1_100]
    bench.now += 100
    assert bench.get() == ["m noted"]


def test_a_time_that_the_consumer_names_counts_instead() -> None:
    bench = Bench(Policy(retry_delay_ms=100, delay=True))
    bench.put("m")
    bench.consumer(1)
    bench.get()
    bench.do(Settle(1, 0, 1, outcome(" time=1050")))
    bench.now = 1_050
    assert bench.get() == ["m time=1050"]
    bench.do(Settle(1, 1, 2, outcome(" other=1")))
    assert bench.get() == []
    bench.now = 1_150
    assert bench.get() == ["m time=1050 other=1"]


# --- restarts, moves and changes of the policy ----------------------------------------------------------


def test_the_time_survives_a_restart() -> None:
    batch = batch_of([b"m0", b"m1"], durable=True, location=Location(1, 0, 9))
    bench = recovered(Run(batch, 0, 1, 0, waiting(2, 150)), Run(batch, 1, 2, 1, waiting(1, 40)), now=50)
    bench.consumer(1)
    effects = bench.dispatch()
    assert payloads(effects) == [b"m1"]
    assert [effect.run.attempts for effect in effects if isinstance(effect, Deliver)] == [1]
    assert at(bench, 149) == []
    assert at(bench, 150) == [b"m0"]


def test_after_a_restart_with_another_clock_nothing_waits_longer_than_the_policy_says() -> None:
    bench = recovered(Run(batch_of([b"m"]), 0, 1, 0, waiting(1, 1 << 40)), now=50)
    assert bench.machine.next_deadline_ms == 150


def test_a_queue_without_the_policy_restores_them_as_ready() -> None:
    bench = recovered(Run(batch_of([b"m"]), 0, 1, 0, waiting(1, 150)), policy=Policy())
    bench.consumer(1)
    assert payloads(bench.dispatch()) == [b"m"]


def test_groups_wait_after_a_restart() -> None:
    bench = Bench(IN_GROUPS)
    batch = batch_of([b"group=a 0", b"group=a 1", b"group=b 2"], enqueued_at_ms=1_000)
    runs = [Run(batch, 0, 1, 0, waiting(1, 1_090)), Run(batch, 1, 3, 1)]
    bench.do(Restore(runs, 3))
    bench.consumer(1)
    assert bench.get() == ["group=b 2"]
    bench.now = 1_090
    assert bench.get() == ["group=a 0", "group=a 1"]


@pytest.mark.parametrize("policy", [WAIT, IN_GROUPS, Policy(retry_delay_ms=100, priorities=3)])
def test_messages_on_disk_wait_after_a_restart(policy: Policy) -> None:
    bench = Bench(policy)
    batch = batch_of([b"group=a 0", b"group=a 1"])
    on_disk = batch_of([])
    on_disk.data = on_disk.ends = None
    on_disk.count, on_disk.size, on_disk.location = 2, batch.size, Location(1, 0, 99)
    bench.do(Restore([Run(on_disk, 0, 2, 0, waiting(1, 1_100))], 2))
    bench.consumer(1)
    messages = {0: b"group=a 0", 1: b"group=a 1"}
    for _ in range(3):
        fetch(bench, messages, bench.dispatch())
    assert bench.machine.contents.retries_count == 2
    bench.now = 1_100
    found: list[str] = []
    for _ in range(6):
        effects = bench.dispatch()
        found += delivered(effects)
        fetch(bench, messages, effects)
    assert found == ["group=a 0", "group=a 1"]


def test_a_reserved_message_that_waited_once_is_reserved_after_a_restart() -> None:
    run = Run(batch_of([b"m"]), 0, 1, 0, waiting(1, 90))
    bench = recovered(run, now=50, reserved={-9: [(0, 1)]})
    assert bench.machine.contents.retries_count == 0
    (letter,) = bench.do(Conclude(-9, Outcome(OutcomeKind.REJECTED)))
    assert isinstance(letter, DeadLetter)
    assert letter.run.attempts == 1


def test_the_time_survives_a_move() -> None:
    copy = Machine("orders")
    bench = Checked(copy, 0)
    batch = batch_of([b"m0", b"m1"])
    runs = [Run(batch, 0, 1, 0, waiting(1, 90)), Run(batch, 1, 2, 1)]
    copy.apply(Restore(runs, 2, is_copy=True), 0)
    bench.do(Open(WAIT))
    bench.consumer(1)
    assert payloads(bench.dispatch()) == [b"m1"]
    assert at(bench, 89) == []
    assert at(bench, 90) == [b"m0"]


def test_without_the_policy_nothing_waits_any_longer() -> None:
    bench = failing(*numbered(2))
    bench.now = 1
    bench.do(Settle(1, 0, 2, FAILED), Change(Policy()))
    assert payloads(bench.dispatch()) == numbered(2)
    bench.do(Settle(1, 2, 4, FAILED))
    assert payloads(bench.dispatch()) == numbered(2)


def test_a_shorter_delay_counts_at_once_and_a_longer_one_with_the_next_failure() -> None:
    bench = failing(b"m")
    bench.do(Settle(1, 0, 1, FAILED), Change(Policy(retry_delay_ms=500)))
    assert bench.machine.next_deadline_ms == 100
    bench.do(Change(Policy(retry_delay_ms=30)))
    assert at(bench, 29) == []
    assert at(bench, 30) == [b"m"]
    bench.do(Settle(1, 1, 2, FAILED))
    # The locks of the former waits end nothing.
    bench.do(Change(Policy(retry_delay_ms=500)))
    assert at(bench, 59) == []
    assert at(bench, 60) == [b"m"]


def test_another_order_keeps_what_waits() -> None:
    bench = Bench(Policy(retry_delay_ms=100))
    bench.put("group=a 0", "group=a 1", "group=b 2")
    bench.consumer(1, credit=1)
    bench.get()
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100), Change(IN_GROUPS))
    assert bench.get() == ["group=b 2"]
    bench.now += 100
    assert bench.get() == ["group=a 0", "group=a 1"]


@pytest.mark.parametrize("outcome", [ACCEPTED, RELEASED])
def test_messages_that_do_not_fail_cost_no_line_more_with_the_policy(outcome: Outcome) -> None:
    """Nor without it: every line that only retries need comes after a failed delivery."""

    def counted(policy: Policy) -> int:
        machine = Machine("orders", policy)
        machine.apply(Attach(1, ConsumerOptions()), 0)

        def work() -> None:
            for number in range(0, 100, 10):
                machine.apply(Credit(1, number + 10), 0)
                machine.apply(Enqueue(batch_of(numbered(10), expires_at_ms=9_000)), 0)
                machine.dispatch(0)
                machine.apply(Settle(1, number, number + 10, outcome), 0)
                machine.footprint.sizes()
                assert machine.next_deadline_ms in (None, 9_000)

        return lines(work)

    assert counted(Policy(retry_delay_ms=100, retry_growth=2)) == counted(Policy())
