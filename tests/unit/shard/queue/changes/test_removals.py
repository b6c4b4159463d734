"""Removals: messages that expire or give way leave in their order, as dead letters or for good."""

import pytest

from lightrail.model.links import Ending
from lightrail.shard.queue.changes.removals import EXPIRED_AT_ONCE, fails_oldest, outcome_of_rest
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Change,
    Credit,
    Enqueue,
    Fetched,
    Outcome,
    OutcomeKind,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import DeadLetter, Fetch, Reason, Removed, Stored
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import BOUNDED, Bench, removed

LOOKS = Outcome(OutcomeKind.MODIFIED)
"""The default-outcome of a program that only looks."""


@pytest.mark.parametrize("default", [ACCEPTED, RELEASED, FAILED, LOOKS])
@pytest.mark.parametrize("ending", Ending)
def test_only_a_failure_counts_and_only_where_the_source_lets_it(default: Outcome, ending: Ending) -> None:
    assert fails_oldest(default, ending) == (ending is Ending.FAILED and default in (ACCEPTED, FAILED))


@pytest.mark.parametrize("default", [ACCEPTED, RELEASED, FAILED, LOOKS])
@pytest.mark.parametrize("ending", Ending)
def test_the_rest_is_released_unless_the_client_has_decided(default: Outcome, ending: Ending) -> None:
    decided = default is ACCEPTED and ending is Ending.BY_CLIENT
    assert outcome_of_rest(default, ending) == (ACCEPTED if decided else RELEASED)


def test_a_policy_that_bounds_a_queue_lets_the_oldest_give_way_at_once() -> None:
    bench = Bench(Policy())
    bench.put("a", "b", "c", "d")
    assert removed(bench.do(Change(BOUNDED)), Reason.DISCARDED) == [0, 1]


def test_what_comes_back_to_a_queue_that_was_bounded_meanwhile_gives_way() -> None:
    bench = Bench(Policy())
    bench.put("a", "b", "c")
    bench.consumer(1)
    bench.dispatch()
    assert not removed(bench.do(Change(BOUNDED)), Reason.DISCARDED)
    assert removed(bench.do(Settle(1, 0, 2, RELEASED)), Reason.DISCARDED) == [0]


def test_the_oldest_ready_messages_give_way_by_count_and_by_bytes() -> None:
    bench = Bench(Policy(max_length=3, overflow="discard_existing"))
    bench.put("a", "b", "c")
    bench.consumer(1, credit=1)
    assert bench.get() == ["a"]
    bench.put("d")
    assert bench.machine.contents.counters.discarded == {"discarded": 1}
    assert bench.machine.view.gauges[:2] == (2, 1), "what is in flight stays"
    bench.do(Change(Policy(max_bytes=2, overflow="discard_existing")))
    bench.do(Credit(1, 9))
    assert bench.get() == ["d"]


def test_who_gives_way_is_a_dead_letter_where_the_policy_says_so() -> None:
    bench = Bench(Policy(max_length=1, overflow="discard_existing", discard_to_dead_letter=True))
    bench.put("a")
    effects = bench.do(Enqueue(batch_of([b"b"])))
    assert [(each.reason, each.run.messages()) for each in effects if isinstance(each, DeadLetter)] == [
        (Reason.QUEUE_FULL, [b"a"])
    ]


def test_a_message_that_is_to_be_a_dead_letter_is_read_before_it_gives_way() -> None:
    bench = Bench(Policy(max_length=1, overflow="discard_existing", discard_to_dead_letter=True))
    bench.machine.contents.eviction.head_bytes = 0
    bench.put("a", durable=True, location=Location(1, 0, 50))
    bench.machine.footprint.evict(100)
    effects = bench.do(Enqueue(batch_of([b"b"])))
    assert [type(each) for each in effects] == [Stored, Fetch]
    read = Run(batch_of([b"a"], durable=True, location=Location(1, 0, 50)), 0, 1, 0)
    (letter,) = bench.do(Fetched(0, [read]))
    assert isinstance(letter, DeadLetter)
    assert letter.run.messages() == [b"a"]


def test_messages_that_expire_are_dead_letters_or_leave_for_good() -> None:
    for dead_letter, kind in ((True, DeadLetter), (False, Removed)):
        bench = Bench(Policy(dead_letter=dead_letter))
        bench.put("a", "b", expires_at_ms=bench.now + 10)
        bench.put("c")
        bench.now += 10
        (effect,) = bench.do(Tick())
        assert isinstance(effect, kind)
        assert bench.machine.contents.counters.expired == 2
        assert bench.machine.view.gauges.ready == 1


def test_dead_letters_of_one_batch_leave_in_pieces() -> None:
    count = 2 * EXPIRED_AT_ONCE + 1
    bench = Bench(Policy())
    bench.put(*["x"] * count, expires_at_ms=bench.now + 10)
    bench.now += 10
    letters = [each.run.count for each in bench.do(Tick()) if isinstance(each, DeadLetter)]
    assert letters == [EXPIRED_AT_ONCE, EXPIRED_AT_ONCE, 1]


def test_expired_messages_are_removed_for_good_where_the_policy_says_so() -> None:
    bench = Bench(Policy(expired_to_dead_letter=False, max_delivery_count=1))
    bench.put("a", "b", expires_at_ms=1_010)
    bench.now = 1_010
    effects = bench.do(Tick())
    assert removed(effects, Reason.EXPIRED) == [0, 1]
    assert not [each for each in effects if isinstance(each, DeadLetter)]
    counters = bench.machine.contents.counters
    assert (counters.expired, counters.discarded, counters.dead_lettered) == (2, {"expired": 2}, {})
