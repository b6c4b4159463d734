"""Outcomes, one behaviour per test: what becomes of delivered messages."""

import pytest

from lightrail.model.links import Ending
from lightrail.shard.queue.changes.outcomes import RETURNED_AT_ONCE
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Credit,
    Detach,
    Outcome,
    OutcomeKind,
    Purge,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import DeadLetter, Deliver, Reason, Removed, Replaced, Returned
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import NOT_HERE, PlainBench, numbered, payloads

MODIFIED = Outcome(OutcomeKind.MODIFIED, undeliverable_here=True)
REJECTED = Outcome(OutcomeKind.REJECTED, "amqp:invalid-field", "no such order")


def test_accepted_ranges_are_removed_in_any_order(bench: PlainBench) -> None:
    bench.put(*numbered(10))
    bench.consumer(1)
    bench.dispatch()
    (removed,) = bench.do(Settle(1, 4, 6))
    assert isinstance(removed, Removed)
    assert (removed.first_sequence, removed.last_sequence, removed.size) == (4, 6, 4)
    assert removed.reason is Reason.ACCEPTED
    spans = [
        (effect.first_sequence, effect.last_sequence)
        for effect in bench.do(Settle(1, 0, 10))
        if isinstance(effect, Removed)
    ]
    assert spans == [(0, 4), (6, 10)]
    assert not bench.do(Settle(1, 0, 10), Settle(99, 0, 10))


def test_released_messages_go_back_to_their_position_with_the_same_count(bench: PlainBench) -> None:
    bench.put(*numbered(6))
    bench.consumer(1, credit=4)
    bench.dispatch()
    assert not bench.do(Settle(1, 2, 4, RELEASED), Settle(1, 0, 1, RELEASED))
    bench.do(Credit(1, 100))
    effects = bench.dispatch()
    assert payloads(effects) == [b"m0", b"m2", b"m3", b"m4", b"m5"]
    assert {effect.run.attempts for effect in effects if isinstance(effect, Deliver)} == {0}
    assert bench.machine.contents.counters.redelivered == 3


def test_what_was_released_becomes_one_run_again(bench: PlainBench) -> None:
    bench.put(*numbered(6))
    bench.consumer(1, credit=6)
    bench.dispatch()
    for number in (1, 3, 0, 5, 2, 4):
        bench.do(Settle(1, number, number + 1, RELEASED))
    (run,) = bench.machine.contents.ready.waiting()
    assert (run.first, run.last, run.sequence) == (0, 6, 0)


def test_failed_deliveries_count(bench: PlainBench) -> None:
    bench.put(*numbered(3))
    bench.consumer(1, credit=2)
    bench.dispatch()
    (returned,) = bench.do(Settle(1, 0, 2, FAILED))
    assert isinstance(returned, Returned)
    assert [(run.sequence, run.count, run.attempts) for run in returned.runs] == [(0, 2, 1)]
    bench.do(Credit(1, 100))
    runs = [effect.run for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert [(run.sequence, run.count, run.attempts) for run in runs] == [(0, 2, 1), (2, 1, 0)]


def test_too_many_failures_dead_letter() -> None:
    bench = PlainBench(policy=Policy(max_delivery_count=2))
    bench.put(b"poison")
    bench.consumer(1)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, FAILED))
    bench.dispatch()
    (effect,) = bench.do(Settle(1, 1, 2, FAILED))
    assert isinstance(effect, DeadLetter)
    assert (effect.reason, effect.run.attempts, effect.run.messages()) == (
        "max-delivery-count",
        2,
        [b"poison"],
    )
    assert bench.machine.contents.counters.dead_lettered == {"max-delivery-count": 1}


@pytest.mark.parametrize(
    ("name", "policy"),
    [("orders", Policy(max_delivery_count=0)), ("orders/$dlq", Policy()), ("x", Policy(dead_letter=False))],
)
def test_without_a_limit_failures_go_on(name: str, policy: Policy) -> None:
    bench = PlainBench(name, policy)
    bench.put(b"again")
    bench.consumer(1)
    for number in range(30):
        assert len(payloads(bench.dispatch())) == 1
        bench.do(Settle(1, number, number + 1, FAILED))
    assert bench.machine.contents.ready.waiting()[0].attempts == 30


def test_rejected_messages_are_dead_lettered_with_the_error(bench: PlainBench) -> None:
    bench.put(b"bad")
    bench.consumer(1)
    bench.dispatch()
    (effect,) = bench.do(Settle(1, 0, 1, REJECTED))
    assert isinstance(effect, DeadLetter)
    assert effect[1:] == ("rejected", "amqp:invalid-field", "no such order", None)


def test_a_dead_letter_queue_keeps_what_is_rejected_for_other_consumers() -> None:
    bench = PlainBench("orders/$dlq")
    bench.put(b"bad", b"next")
    bench.consumer(1, credit=1)
    bench.dispatch()
    assert not bench.do(Settle(1, 0, 1, REJECTED), Credit(1, 100))
    # The consumer gets the messages behind it, and does not get it in a loop.
    assert payloads(bench.dispatch()) == [b"next"]
    assert bench.machine.contents.counters.rejected == 1
    bench.consumer(2)
    (delivered,) = [effect for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert (delivered.consumer, delivered.run.messages(), delivered.run.attempts) == (2, [b"bad"], 0)


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize(
    "outcome",
    [FAILED, REJECTED, NOT_HERE, RELEASED, FAILED._replace(defers=True), REJECTED._replace(defers=True)],
)
def test_nothing_but_accepted_and_a_purge_remove_a_dead_letter(outcome: Outcome, delay: bool) -> None:
    policy = Policy(max_delivery_count=2, delay=delay, lock_ms=1_000, retry_delay_ms=10 if delay else None)
    bench = PlainBench("orders/$dlq", policy)
    bench.put(b"dead")
    numbers = range(1, 20)
    for number in numbers:
        bench.consumer(number)
        bench.dispatch()
        bench.do(Settle(number, 0, 1, outcome))
        bench.now += 5_000
        bench.dispatch()
        if number % 2:
            # A lock ends, and a client is lost with its deliveries.
            bench.now += 5_000
            bench.do(Tick())
            bench.dispatch()
        bench.do(Detach(number, (Ending.FAILED, Ending.BY_CLIENT, Ending.BY_BROKER)[number % 3]))
    gauges = bench.machine.view.gauges
    assert gauges.ready + gauges.delayed + gauges.deferred == 1
    bench.do(Purge())
    gauges = bench.machine.view.gauges
    assert gauges.ready + gauges.delayed + gauges.deferred == 0


def test_undeliverable_here_goes_to_others_and_else_waits(bench: PlainBench) -> None:
    bench.put(b"a", b"b", b"c")
    bench.consumer(1, credit=2)
    bench.dispatch()
    assert not bench.do(Settle(1, 0, 2, NOT_HERE), Credit(1, 100))
    assert payloads(bench.dispatch()) == [b"c"]
    assert bench.machine.view.gauges.ready == 2
    bench.consumer(2)
    assert payloads(bench.dispatch(), 2) == [b"a", b"b"]
    bench.do(Settle(2, 0, 2, NOT_HERE))
    assert not bench.dispatch()
    bench.do(Detach(1), Detach(2))
    bench.consumer(3)
    assert payloads(bench.dispatch()) == [b"a", b"b", b"c"]


def test_annotations_replace_the_message_in_place() -> None:
    bench = PlainBench(annotate=lambda message, annotations: message + annotations)
    bench.put(b"a", b"b", b"c", durable=True)
    bench.consumer(1, credit=2)
    bench.dispatch()
    outcome = Outcome(OutcomeKind.MODIFIED, delivery_failed=True, annotations=b"!")
    (effect,) = bench.do(Settle(1, 1, 2, outcome))
    assert isinstance(effect, Replaced)
    assert (effect.run.messages(), effect.run.sequence, effect.run.attempts) == ([b"b!"], 1, 1)
    assert effect.old.messages() == [b"b"]
    assert effect.run.batch.durable
    bench.do(Credit(1, 100))
    assert payloads(bench.dispatch()) == [b"b!", b"c"]


@pytest.mark.parametrize("default", [ACCEPTED, REJECTED, FAILED], ids=lambda each: each.kind.name)
@pytest.mark.parametrize("count", [4, RETURNED_AT_ONCE + 4])
def test_a_client_that_failed_has_failed_with_the_oldest_message_alone(
    bench: PlainBench, count: int, default: Outcome
) -> None:
    bench.put(*numbered(count))
    bench.consumer(1, default_outcome=default)
    bench.dispatch()
    bench.do(Settle(1, 0, 1), Detach(1, Ending.FAILED))
    bench.dispatch()
    while bench.machine.outcomes.returning:
        bench.dispatch()
    waiting = bench.machine.contents.ready.waiting()
    assert [(run.sequence, run.count) for run in waiting if run.attempts] == [(1, 1)]
    assert sum(run.count for run in waiting) == count - 1


# The field of modified has its default in the openings of sources with another outcome.
RELEASED_AS_OPENED = RELEASED._replace(delivery_failed=True)


@pytest.mark.parametrize("default", [RELEASED_AS_OPENED, MODIFIED], ids=["released", "modified"])
def test_a_client_that_failed_has_failed_with_no_message_if_its_source_counts_none(
    bench: PlainBench, default: Outcome
) -> None:
    bench.put(*numbered(3))
    bench.consumer(1, default_outcome=default)
    bench.dispatch()
    bench.do(Detach(1, Ending.FAILED))
    assert [(run.count, run.attempts) for run in bench.machine.contents.ready.waiting()] == [(3, 0)]


@pytest.mark.parametrize("default", [RELEASED, FAILED, MODIFIED], ids=["released", "failed", "modified"])
def test_a_client_that_ends_in_order_has_failed_with_no_message(bench: PlainBench, default: Outcome) -> None:
    bench.put(*numbered(3))
    bench.consumer(1, default_outcome=default)
    bench.dispatch()
    assert not bench.do(Detach(1))
    assert [run.attempts for run in bench.machine.contents.ready.waiting()] == [0]


@pytest.mark.parametrize("default", [RELEASED, ACCEPTED, REJECTED, FAILED], ids=lambda each: each.kind.name)
def test_a_consumer_that_the_broker_ends_returns_everything_uncounted(
    bench: PlainBench, default: Outcome
) -> None:
    bench.put(*numbered(3))
    bench.consumer(1, default_outcome=default)
    bench.dispatch()
    assert not bench.do(Detach(1, Ending.BY_BROKER))
    assert [(run.count, run.attempts) for run in bench.machine.contents.ready.waiting()] == [(3, 0)]


@pytest.mark.parametrize("default", [ACCEPTED, REJECTED], ids=lambda each: each.kind.name)
def test_a_default_outcome_that_decides_is_applied_where_the_client_ends_in_order(
    bench: PlainBench, default: Outcome
) -> None:
    bench.put(*numbered(3))
    bench.consumer(1, default_outcome=default)
    bench.dispatch()
    assert bench.do(Detach(1))
    assert bench.machine.contents.ready.count == 0
