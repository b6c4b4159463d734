"""Scheduling: messages under numbers that were taken before, and those that stay delayed until a decision."""

import pytest

from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    Cancel,
    Change,
    Credit,
    Peek,
    Purge,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import Due, Peeked, Reason
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
from lightrail.shard.queue.values.schedules import EnqueueUnder, Release, TakeNumbers, Withhold
from tests.support.shard.checked_queue import DELAY, Bench, removed

SCHEDULES = Policy(delay=True, enqueues_due=True)


def peeked(bench: Bench) -> list[tuple[int, str]]:
    (found,) = bench.do(Peek(0, 100))
    assert isinstance(found, Peeked)
    return [
        (run.sequence + at, message.decode())
        for run in found.runs
        for at, message in enumerate(run.messages())
    ]


def under(sequence: int, *messages: str) -> EnqueueUnder:
    return EnqueueUnder(batch_of([each.encode() for each in messages]), sequence)


@pytest.mark.parametrize("policy", [DELAY, Policy(delay=True, groups=True), Policy(delay=True, priorities=3)])
def test_messages_come_in_the_place_of_their_numbers(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put("a")
    assert not bench.do(TakeNumbers(2))
    bench.put("d")
    view = bench.machine.view
    assert view.are_free([(1, 2), (2, 3)])
    assert not any(view.are_free([each]) for each in ((0, 2), (2, 4), (4, 5)))
    bench.do(under(1, "time=1050 b", "time=1 c"))
    assert view.is_delayed(1)
    assert not view.is_delayed(0)
    bench.do(Tick())
    assert [sequence for sequence, _ in peeked(bench)] == [0, 1, 2, 3]
    bench.consumer(1)
    assert bench.get() == ["a", "time=1 c", "d"]
    assert not any(view.are_free(each) for each in ([(2, 3)], [(0, 1), (5, 6)], [(3, 4)]))
    bench.do(Settle(1, 0, 3, ACCEPTED))
    bench.now = 1_050
    bench.do(Credit(1, 9))
    assert bench.get() == ["time=1050 b"]


def test_a_queue_without_delays_takes_no_message_under_a_number() -> None:
    bench = Bench(Policy())
    bench.do(TakeNumbers(1))
    with pytest.raises(ValueError, match="a queue with delays"):
        bench.machine.apply(under(0, "a"), bench.now)


@pytest.mark.parametrize("policy", [DELAY, SCHEDULES])
def test_a_message_that_is_withheld_is_due_when_it_is_released(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put("scheduled=1010 a", "scheduled=1020 b", "scheduled=1030 c")
    bench.do(Withhold([0, 1, 7]))
    bench.now = 1_100
    bench.consumer(1)
    due = [each.run.sequence for each in bench.dispatch() if isinstance(each, Due)]
    assert due == ([2] if policy is SCHEDULES else [])
    assert bench.machine.next_deadline_ms is None
    assert removed(bench.do(Cancel(1)), Reason.CANCELLED) == [1]
    bench.do(Release([0, 1, 7]))
    bench.do(Tick())
    found = bench.dispatch()
    assert [each.run.sequence for each in found if isinstance(each, Due)] == [0] * (policy is SCHEDULES)
    assert not bench.machine.view.is_delayed(0)


def test_a_release_before_the_time_changes_nothing() -> None:
    bench = Bench(DELAY)
    bench.put("time=1050 a")
    bench.do(Withhold([0]), Release([0]))
    assert bench.machine.next_deadline_ms == 1_050


def test_a_change_of_the_policy_or_a_restart_releases_nothing_and_a_purge_does() -> None:
    bench = Bench(DELAY)
    bench.put("time=1050 a")
    bench.do(Withhold([0]))
    bench.do(Change(Policy(delay=True, priorities=3)))
    again = Bench(DELAY)
    again.do(Restore([Run(batch_of([b"time=1050 a"]), 0, 1, 0)], 1, withheld=[0]))
    for each in (bench, again):
        each.now = 1_100
        each.do(Tick())
        each.dispatch()
        assert each.machine.view.is_delayed(0)
    bench.do(Purge())
    bench.do(Release([0]))
    assert not peeked(bench)
