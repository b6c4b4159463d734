"""The queue machine, one behaviour per test: who gets what, and what becomes of it."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.shard.queue.commands import (
    ACCEPTED,
    RELEASED,
    Attach,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.effects import (
    DeadLetter,
    Deliver,
    Drained,
    Effect,
    Peeked,
    Reason,
    Refused,
    Removed,
    Replaced,
    Returned,
    Stored,
)
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.runs import Run, batch_of
from tests.support.checked_queue import NOT_HERE, Checked
from tests.support.now import now

HOUR_MS = 3_600_000
REJECTED = Outcome(OutcomeKind.REJECTED, "amqp:invalid-field", "no such order")
FAILED = Outcome(OutcomeKind.MODIFIED, delivery_failed=True)


class Bench(Checked):
    """One that takes messages as they are."""

    def __init__(self, name: str = "orders", policy: Policy | None = None, **options: Any) -> None:
        super().__init__(Machine(name, policy, **options), now=0)

    def put(self, *messages: bytes, **attributes: Any) -> list[Effect]:
        return self.do(Enqueue(batch_of(messages, **attributes)))


def delivered(effects: Iterable[Effect], consumer: int | None = None) -> list[bytes]:
    return [
        message
        for effect in effects
        if isinstance(effect, Deliver) and consumer in (None, effect.consumer)
        for message in effect.run.messages()
    ]


def numbered(count: int) -> list[bytes]:
    return [f"m{index}".encode() for index in range(count)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- order, credit, turns ------------------------------------------------------------------------------


def test_messages_arrive_in_order_with_rising_numbers(bench: Bench) -> None:
    (stored,) = bench.put(b"a", b"b")
    assert isinstance(stored, Stored)
    assert (stored.run.sequence, stored.run.end) == (0, 2)
    bench.put(b"c")
    bench.consumer(1, credit=10)
    effects = bench.dispatch()
    assert delivered(effects) == [b"a", b"b", b"c"]
    assert [effect.first_number for effect in effects if isinstance(effect, Deliver)] == [0, 2]
    assert bench.machine.contents.gauges[:2] == (0, 3)


def test_credit_is_an_absolute_limit(bench: Bench) -> None:
    bench.put(*numbered(10))
    bench.consumer(1, credit=3)
    assert delivered(bench.dispatch()) == numbered(3)
    bench.do(Credit(1, 3))
    assert not bench.dispatch()
    bench.do(Credit(1, 5))
    assert delivered(bench.dispatch()) == [b"m3", b"m4"]
    bench.do(Credit(1, 2))
    assert not bench.dispatch()


def test_a_consumer_may_go_on_with_a_later_number(bench: Bench) -> None:
    bench.put(b"a")
    bench.consumer(1, credit=41, first=40)
    (effect,) = bench.dispatch()
    assert isinstance(effect, Deliver)
    assert effect.first_number == 40


def test_everybody_with_credit_gets_a_share(bench: Bench) -> None:
    for identity in range(4):
        bench.consumer(identity)
    bench.put(*numbered(100))
    effects = bench.dispatch()
    shares = Counter({identity: len(delivered(effects, identity)) for identity in range(4)})
    assert sum(shares.values()) == 100
    assert max(shares.values()) <= 26
    assert sum(isinstance(effect, Deliver) for effect in effects) <= 8


def test_single_messages_go_round(bench: Bench) -> None:
    for identity in range(3):
        bench.consumer(identity)
    order = []
    for message in numbered(6):
        bench.put(message)
        order += [effect.consumer for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert order == [0, 1, 2, 0, 1, 2]


def test_slices_are_bounded_by_messages_and_bytes(bench: Bench) -> None:
    bench.consumer(1, credit=5_000)
    bench.put(*[b"x"] * 2_000)
    counts = [effect.run.count for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert max(counts) == limits.DELIVERY_SLICE_MESSAGES
    assert sum(counts) == 2_000
    bench.put(*[b"x" * 100_000] * 10)
    sizes = [effect.run.size for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert max(sizes) <= limits.DELIVERY_SLICE_BYTES
    bench.put(b"x" * 1_000_000)
    assert len(delivered(bench.dispatch())) == 1


def test_higher_priority_gets_everything_while_it_has_credit(bench: Bench) -> None:
    bench.consumer(1)
    bench.consumer(2, credit=4, priority=9)
    bench.put(*numbered(10))
    effects = bench.dispatch()
    assert delivered(effects, 2) == numbered(4)
    assert len(delivered(effects, 1)) == 6


def test_exclusive(bench: Bench) -> None:
    bench.consumer(1, exclusive=True)
    (refused,) = bench.do(Attach(2))
    assert isinstance(refused, Refused)
    assert refused.condition == "amqp:resource-locked"
    bench.consumer(3, browse=True)
    bench.do(Detach(1))
    bench.consumer(4)
    (refused,) = bench.do(Attach(5, ConsumerOptions(exclusive=True)))
    assert isinstance(refused, Refused)


def test_drain_sends_what_is_there_and_takes_the_rest(bench: Bench) -> None:
    bench.put(b"a", b"b")
    bench.consumer(1, credit=0)
    bench.do(Credit(1, 10, drain=True))
    effects = bench.dispatch()
    assert delivered(effects) == [b"a", b"b"]
    assert effects[-1] == Drained(1, 2)
    bench.put(b"c")
    assert not bench.dispatch()
    bench.do(Credit(1, 3))
    assert delivered(bench.dispatch()) == [b"c"]


def test_a_drain_of_an_empty_queue_answers_at_once(bench: Bench) -> None:
    bench.consumer(1, credit=0)
    bench.do(Credit(1, 10, drain=True))
    assert bench.dispatch() == [Drained(1, 0)]


# --- browsing and presettled ---------------------------------------------------------------------------


def test_a_browser_gets_copies(bench: Bench) -> None:
    bench.put(*numbered(5))
    bench.consumer(1, credit=3, browse=True)
    assert delivered(bench.dispatch()) == numbered(3)
    assert not bench.do(Settle(1, 0, 3, REJECTED))
    assert bench.machine.contents.gauges[:2] == (5, 0)
    bench.do(Credit(1, 10))
    assert delivered(bench.dispatch()) == [b"m3", b"m4"]
    bench.put(b"new")
    assert delivered(bench.dispatch()) == [b"new"]
    bench.consumer(2)
    assert len(delivered(bench.dispatch(), 2)) == 6
    assert not bench.do(Detach(1))


def test_presettled_deliveries_are_gone_at_once(bench: Bench) -> None:
    bench.put(b"a", b"b")
    bench.consumer(1, presettled=True)
    effects = bench.dispatch()
    assert [type(effect) for effect in effects] == [Deliver, Removed]
    assert bench.machine.contents.gauges[:2] == (0, 0)
    assert not bench.do(Detach(1))


# --- outcomes ------------------------------------------------------------------------------------------


def test_accepted_ranges_are_removed_in_any_order(bench: Bench) -> None:
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


def test_released_messages_go_back_to_their_place_with_the_same_count(bench: Bench) -> None:
    bench.put(*numbered(6))
    bench.consumer(1, credit=4)
    bench.dispatch()
    assert not bench.do(Settle(1, 2, 4, RELEASED), Settle(1, 0, 1, RELEASED))
    bench.do(Credit(1, 100))
    effects = bench.dispatch()
    assert delivered(effects) == [b"m0", b"m2", b"m3", b"m4", b"m5"]
    assert {effect.run.attempts for effect in effects if isinstance(effect, Deliver)} == {0}
    assert bench.machine.contents.counters.redelivered == 3


def test_what_was_released_becomes_one_run_again(bench: Bench) -> None:
    bench.put(*numbered(6))
    bench.consumer(1, credit=6)
    bench.dispatch()
    for number in (1, 3, 0, 5, 2, 4):
        bench.do(Settle(1, number, number + 1, RELEASED))
    (run,) = bench.machine.contents.ready.waiting()
    assert (run.first, run.last, run.sequence) == (0, 6, 0)


def test_failed_deliveries_count(bench: Bench) -> None:
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
    bench = Bench(policy=Policy(max_delivery_count=2))
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
    bench = Bench(name, policy)
    bench.put(b"again")
    bench.consumer(1)
    for number in range(30):
        assert len(delivered(bench.dispatch())) == 1
        bench.do(Settle(1, number, number + 1, FAILED))
    assert bench.machine.contents.ready.waiting()[0].attempts == 30


def test_rejected_messages_are_dead_lettered_with_the_error(bench: Bench) -> None:
    bench.put(b"bad")
    bench.consumer(1)
    bench.dispatch()
    (effect,) = bench.do(Settle(1, 0, 1, REJECTED))
    assert isinstance(effect, DeadLetter)
    assert effect[1:] == ("rejected", "amqp:invalid-field", "no such order", None)


def test_a_dead_letter_queue_removes_what_is_rejected() -> None:
    bench = Bench("orders/$dlq")
    bench.put(b"bad")
    bench.consumer(1)
    bench.dispatch()
    (effect,) = bench.do(Settle(1, 0, 1, REJECTED))
    assert isinstance(effect, Removed)
    assert effect.reason is Reason.REJECTED


def test_undeliverable_here_goes_to_others_and_else_waits(bench: Bench) -> None:
    bench.put(b"a", b"b", b"c")
    bench.consumer(1, credit=2)
    bench.dispatch()
    assert not bench.do(Settle(1, 0, 2, NOT_HERE), Credit(1, 100))
    assert delivered(bench.dispatch()) == [b"c"]
    assert bench.machine.contents.gauges.ready == 2
    bench.consumer(2)
    assert delivered(bench.dispatch(), 2) == [b"a", b"b"]
    bench.do(Settle(2, 0, 2, NOT_HERE))
    assert not bench.dispatch()
    bench.do(Detach(1), Detach(2))
    bench.consumer(3)
    assert delivered(bench.dispatch()) == [b"a", b"b", b"c"]


def test_annotations_replace_the_message_in_place() -> None:
    bench = Bench(annotate=lambda message, annotations: message + annotations)
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
    assert delivered(bench.dispatch()) == [b"b!", b"c"]


def test_the_loss_of_a_link_is_a_failed_delivery(bench: Bench) -> None:
    bench.put(*numbered(3))
    bench.consumer(1)
    bench.dispatch()
    (returned,) = bench.do(Detach(1))
    assert isinstance(returned, Returned)
    assert bench.machine.contents.ready.waiting()[0].attempts == 1


def test_the_loss_of_a_link_is_its_default_outcome(bench: Bench) -> None:
    bench.put(*numbered(3))
    bench.consumer(1, default_outcome=ACCEPTED)
    bench.dispatch()
    (removed,) = bench.do(Detach(1))
    assert isinstance(removed, Removed)
    bench.put(b"x")
    bench.consumer(2, default_outcome=RELEASED)
    bench.dispatch()
    assert not bench.do(Detach(2))
    assert bench.machine.contents.ready.waiting()[0].attempts == 0


# --- time, purge, peek, restore ------------------------------------------------------------------------


def test_a_tick_expires_on_time_also_behind_what_stays(bench: Bench) -> None:
    bench.put(b"stays")
    bench.put(b"late", expires_at_ms=200)
    bench.put(b"soon", expires_at_ms=100)
    assert bench.machine.next_deadline_ms == 100
    bench.now = 99
    assert not bench.do(Tick())
    bench.now = 100
    (effect,) = bench.do(Tick())
    assert isinstance(effect, DeadLetter)
    assert (effect.reason, effect.run.messages()) == (Reason.EXPIRED, [b"soon"])
    assert bench.machine.next_deadline_ms == 200
    bench.now = 200
    bench.consumer(1)
    effects = bench.dispatch()
    assert delivered(effects) == [b"stays"]
    assert any(isinstance(effect, DeadLetter) for effect in effects)
    assert bench.machine.next_deadline_ms is None


@pytest.mark.parametrize("hours", [1, 7])
def test_messages_that_were_delivered_leave_no_deadline_though_theirs_is_far_away(
    bench: Bench, hours: int
) -> None:
    """Nothing is due meanwhile, and no Tick comes; with one time to live, and with several in turn."""
    bench.consumer(1, credit=1_000_000)
    for index in range(8 * limits.STALE_ENTRIES_MIN):
        bench.put(b"x", expires_at_ms=index + HOUR_MS * (1 + index % hours))
        bench.dispatch()
        bench.do(Settle(1, index, index + 1, ACCEPTED))
        assert len(bench.machine.contents.deadlines.heap) <= limits.STALE_ENTRIES_MIN + 1


def test_a_deadline_that_was_forgotten_is_back_with_its_message(bench: Bench) -> None:
    bench.consumer(1, credit=2)
    bench.put(b"a", b"b", expires_at_ms=100)
    bench.dispatch()
    assert now(bench.machine.next_deadline_ms) is None
    bench.do(Settle(1, 0, 2, RELEASED))
    assert bench.machine.next_deadline_ms == 100
    bench.now = 100
    (expired,) = bench.do(Tick())
    assert isinstance(expired, DeadLetter)
    assert (expired.run.count, expired.reason) == (2, Reason.EXPIRED)


def test_what_is_in_flight_expires_when_it_comes_back(bench: Bench) -> None:
    bench.put(b"a", b"b", expires_at_ms=100)
    bench.consumer(1)
    bench.dispatch()
    bench.now = 150
    assert not bench.do(Tick(), Settle(1, 0, 1, RELEASED))
    (effect,) = bench.dispatch()
    assert isinstance(effect, DeadLetter)
    (removed,) = bench.do(Settle(1, 1, 2))
    assert isinstance(removed, Removed)


def test_settled_messages_leave_no_deadlines_behind(bench: Bench) -> None:
    bench.consumer(1, credit=1_000_000, presettled=True)
    for index in range(5_000):
        bench.machine.apply(Enqueue(batch_of([b"x"], expires_at_ms=1_000_000 + index)), index)
        bench.machine.dispatch(index)
    bench.now = 5_000
    bench.do(Tick())
    assert len(bench.machine.contents.deadlines.heap) < 1_000


def test_purge_takes_what_is_ready(bench: Bench) -> None:
    bench.put(*numbered(5))
    bench.consumer(1, credit=2)
    bench.dispatch()
    (removed,) = bench.do(Purge())
    assert isinstance(removed, Removed)
    assert (removed.first_sequence, removed.last_sequence, removed.reason) == (2, 5, Reason.PURGED)
    assert bench.machine.contents.gauges[:2] == (0, 2)


def test_peek_locks_nothing(bench: Bench) -> None:
    bench.put(*numbered(5))
    (peeked,) = bench.do(Peek(1, 3))
    assert isinstance(peeked, Peeked)
    assert [message for run in peeked.runs for message in run.messages()] == [b"m1", b"m2", b"m3"]
    assert bench.machine.contents.gauges[:2] == (5, 0)


def test_restore_brings_sequences_and_attempts_back(bench: Bench) -> None:
    batch = batch_of(numbered(10))
    assert not bench.do(Restore([Run(batch, 0, 2, 40, 3), Run(batch, 5, 10, 45)], 60))
    bench.consumer(1)
    runs = [effect.run for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert [(run.sequence, run.count, run.attempts) for run in runs] == [(40, 2, 3), (45, 5, 0)]
    (stored,) = bench.put(b"new")
    assert isinstance(stored, Stored)
    assert stored.run.sequence == 60
    assert bench.machine.contents.counters.restored == 7


def test_cost_is_per_run_not_per_message(bench: Bench) -> None:
    """A batch of 100,000 messages makes as few objects as one of ten."""
    bench.put(*[b"x"] * 100_000)
    bench.consumer(1, credit=100_000)
    assert len(bench.dispatch()) == 100_000 // limits.DELIVERY_SLICE_MESSAGES
    assert len(bench.do(Settle(1, 0, 100_000))) == 100_000 // limits.DELIVERY_SLICE_MESSAGES
