"""Deferred outcomes: deliveries that are only on disk, and what is done to the queue until they were read."""

import pytest

from lightrail.shard.queue.values.commands import (
    RELEASED,
    Cancel,
    Change,
    Command,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Outcome,
    OutcomeKind,
    Purge,
    Settle,
)
from lightrail.shard.queue.values.effects import DeadLetter, Effect, Fetch, Reason
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import GROUPS, NOT_HERE, Bench, delivered, removed

TEXTS = [f"group={group} " + "x" * 2_000 for group in "aba"]


def delivered_and_evicted(policy: Policy) -> Bench:
    """Three messages are with consumer 1, and only on disk."""
    queue = Bench(policy)
    queue.consumer(1)
    batch = batch_of(
        [text.encode() for text in TEXTS],
        durable=True,
        enqueued_at_ms=queue.now,
        location=Location(1, 0, 7_000),
    )
    queue.do(Enqueue(batch))
    assert queue.get(1) == TEXTS
    queue.machine.footprint.evict(10_000)
    assert queue.machine.contents.deliveries.evicted_count == 3
    return queue


def read(first: int, last: int) -> Run:
    """Messages as they come from disk."""
    return Run(batch_of([text.encode() for text in TEXTS[first:last]]), 0, last - first, first)


def received_by(queue: Bench, consumer: int) -> list[str]:
    """What a new consumer gets, with everything read that it has to be read for."""
    queue.consumer(consumer)
    found: list[str] = []
    for _ in range(len(TEXTS) + 1):
        effects = queue.dispatch()
        found += delivered(effects, consumer)
        for fetch in effects:
            if isinstance(fetch, Fetch):
                run = fetch.run
                queue.do(Fetched(run.sequence, [read(run.sequence, run.end)]))
    return found


@pytest.mark.parametrize("command", [Cancel(1), Purge()], ids=["a cancellation", "a purge"])
def test_what_is_in_flight_comes_back_to_its_group_whatever_was_done_to_the_queue_meanwhile(
    command: Command,
) -> None:
    queue = delivered_and_evicted(Policy(groups=True, delay=True))
    assert not removed(queue.do(command), Reason.CANCELLED)
    queue.do(Detach(1))
    assert received_by(queue, 2) == TEXTS


def test_of_a_delivery_that_is_damaged_in_part_only_that_is_lost() -> None:
    """Another policy has to look into it, so it is read."""
    queue = delivered_and_evicted(Policy())
    queue.do(Change(GROUPS))
    (fetch,) = [effect for effect in queue.dispatch() if isinstance(effect, Fetch)]
    assert (fetch.run.sequence, fetch.run.end) == (0, 3)
    effects = queue.do(Fetched(0, [read(0, 1), read(2, 3)], True))
    assert removed(effects, Reason.LOST) == [1]
    queue.do(Detach(1))
    assert received_by(queue, 2) == [TEXTS[0], TEXTS[2]]


def test_a_group_whose_messages_are_lost_is_free_for_others() -> None:
    queue = delivered_and_evicted(GROUPS)
    queue.do(Settle(1, 0, 3, RELEASED))
    (fetch,) = [effect for effect in queue.dispatch() if isinstance(effect, Fetch)]
    assert removed(queue.do(Fetched(fetch.run.sequence, [], True)), Reason.LOST) == [0, 1, 2]
    queue.do(Credit(1, 3))
    assert not queue.dispatch()
    queue.put("group=a next")
    queue.consumer(2)
    assert queue.get(2) == ["group=a next"]


def test_who_is_barred_from_a_message_on_disk_does_not_wait_for_it() -> None:
    queue = Bench(Policy(priorities=3))
    queue.consumer(1)
    batch = batch_of([b"first"], durable=True, enqueued_at_ms=queue.now, location=Location(1, 0, 50))
    queue.do(Enqueue(batch))
    assert queue.get(1) == ["first"]
    queue.machine.footprint.evict(10_000)
    queue.do(Settle(1, 0, 1, NOT_HERE))
    queue.put("second")
    assert queue.get(1) == ["second"]


def test_a_deferred_outcome_bars_its_consumer_though_the_queue_is_arranged_anew_meanwhile() -> None:
    queue = delivered_and_evicted(Policy())
    queue.do(Settle(1, 0, 3, Outcome(OutcomeKind.MODIFIED, undeliverable_here=True, annotations=b" seen")))
    queue.do(Change(GROUPS))
    queue.do(Fetched(0, [read(0, 3)]), Credit(1, 6))
    assert not queue.get(1)
    assert received_by(queue, 2) == [text + " seen" for text in TEXTS]


@pytest.mark.parametrize("rewritten", [0, 1])
def test_each_deferred_message_has_its_own_outcome_though_the_cleaner_rewrites_one(rewritten: int) -> None:
    queue = Bench(Policy(max_delivery_count=1))
    queue.consumer(1, credit=1)
    queue.consumer(2, credit=1)
    for number in (0, 1):
        location = Location(1, 100 * number, 100)
        batch = batch_of([b"%d" % number], durable=True, enqueued_at_ms=queue.now, location=location)
        queue.do(Enqueue(batch))
    assert queue.get() == ["0", "1"]
    queue.machine.footprint.evict(10_000)
    deliveries = [run for consumer in queue.machine.contents.consumers for run in consumer.in_flight.runs]
    effects = queue.do(Settle(1, 0, 1, Outcome(OutcomeKind.REJECTED)))
    effects += queue.do(Settle(2, 0, 1, Outcome(OutcomeKind.MODIFIED, delivery_failed=True)))
    queue.machine.footprint.relocate([(deliveries[rewritten], Location(1, 300, 100))])
    letters: list[Effect] = []
    for number in (0, 1):
        message = Run(batch_of([b"%d" % number]), 0, 1, number)
        letters += queue.do(Fetched(number, [message]))
    assert [(each.run.sequence, each.reason) for each in letters if isinstance(each, DeadLetter)] == [
        (0, Reason.REJECTED),
        (1, Reason.MAX_DELIVERY_COUNT),
    ]
