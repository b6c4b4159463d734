"""Deliveries that are only on disk: what is done to the queue meanwhile, and what of them can't be read."""

import pytest

from lightrail.shard.queue.commands import Cancel, Change, Command, Detach, Enqueue, Fetched, Purge
from lightrail.shard.queue.effects import Fetch, Reason
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.runs import Place, Run, batch_of
from tests.support.checked_queue import GROUPS, Bench, delivered, removed

TEXTS = [f"group={group} " + "x" * 2_000 for group in "aba"]


def delivered_and_evicted(policy: Policy) -> Bench:
    """Three messages are with consumer 1, and only on disk."""
    queue = Bench(policy)
    queue.consumer(1)
    batch = batch_of(
        [text.encode() for text in TEXTS],
        durable=True,
        enqueued_at_ms=queue.now,
        place=Place(1, 0, 7_000),
    )
    queue.do(Enqueue(batch))
    assert queue.get(1) == TEXTS
    queue.machine.evict(10_000)
    assert queue.machine.deliveries.evicted_count == 3
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
