"""Retry delays: a message that failed waits, in every order, and nothing else waits with it."""

from dataclasses import replace

import pytest

from lightrail.model import limits
from lightrail.model.attempts import DEFERRED, waiting, waits_until_ms
from lightrail.model.links import Ending
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Attach,
    Cancel,
    Conclude,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    LockDeferred,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    Reserve,
    Return,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Deliver,
    Peeked,
    PeekedState,
    Purged,
    Reason,
    Removed,
    Replaced,
    Returned,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.asides import IN_GROUPS, at, failing, outcome
from tests.support.shard.checked_queue import Bench, numbered, payloads
from tests.support.work import lines


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
