"""Arrangement: messages lie as the policy says, after a restart and after a change of policy."""

import pytest

from lightrail.shard.queue.values.commands import (
    RELEASED,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    Holder,
    Open,
    RenewLock,
    Restore,
    Settle,
)
from lightrail.shard.queue.values.effects import Deliver, LockAnswer, Stored
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.now import now
from tests.support.shard.checked_queue import SORTED, Bench, PlainBench, numbered, payloads


def test_restore_brings_sequences_and_attempts_back(bench: PlainBench) -> None:
    batch = batch_of(numbered(10))
    assert not bench.do(Restore([Run(batch, 0, 2, 40, 3), Run(batch, 5, 10, 45)], 60))
    bench.consumer(1)
    runs = [effect.run for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert [(run.sequence, run.count, run.attempts) for run in runs] == [(40, 2, 3), (45, 5, 0)]
    (stored,) = bench.put(b"new")
    assert isinstance(stored, Stored)
    assert stored.run.sequence == 60
    assert bench.machine.contents.counters.restored == 7


def test_a_plain_queue_becomes_a_sorted_one_and_plain_again() -> None:
    bench = Bench(Policy())
    bench.put("key=3", "key=2", "key=1", "key=0")
    bench.consumer(1, credit=1)
    assert bench.get() == ["key=3"]
    bench.do(Change(SORTED), Credit(1, 2))
    assert bench.get() == ["key=0"]
    bench.do(Change(Policy()))
    assert len(bench.machine.contents.ready) == 1
    bench.do(Settle(1, 0, 2, RELEASED), Credit(1, 100))
    assert bench.get() == ["key=3", "key=2", "key=1", "key=0"]


def test_a_dead_letter_queue_makes_no_dead_letters_whatever_its_policy() -> None:
    for name, dead_letter in (("orders", True), ("orders/$dlq", False)):
        bench = PlainBench(name, Policy())
        assert bench.machine.contents.policy.dead_letter is dead_letter
        bench.do(Change(Policy(max_length=5)))
        assert bench.machine.contents.policy.dead_letter is dead_letter


def test_a_policy_that_cannot_be_changes_nothing(bench: PlainBench) -> None:
    before = bench.machine.contents.policy
    with pytest.raises(ValueError, match="groups and priorities"):
        bench.do(Change(Policy(groups=True, priorities=3)))
    assert bench.machine.contents.policy is before


def test_a_plain_queue_has_an_order_as_long_as_a_consumer_selects(bench: PlainBench) -> None:
    bench.put(b"a", b"b")
    contents = bench.machine.contents
    assert contents.deliveries.order is None
    bench.consumer(1, selects=lambda message: message == b"b")
    assert bench.machine.view.may_keep
    assert payloads(bench.dispatch()) == [b"b"]
    bench.do(Detach(1))
    assert now(contents.deliveries.order) is None
    assert not bench.machine.view.may_keep


def test_recovered_neighbours_are_joined_in_memory_and_on_disk(bench: PlainBench) -> None:
    runs = []
    for number in range(4):
        batch = batch_of([b"%d" % number], durable=True, location=Location(1, 100 * number, 100))
        if number >= 2:
            batch.data = batch.ends = None
        runs.append(Run(batch, 0, 1, number))
    bench.do(Restore(runs, 4))
    found = bench.machine.contents.waiting()
    assert [(run.sequence, run.end, run.batch.evicted) for run in found] == [(0, 2, False), (2, 4, True)]
    assert found[1].batch.location == Location(1, 200, 200)


def test_a_copy_becomes_the_queue_with_its_consumers_their_deliveries_and_locks() -> None:
    bench = Bench(Policy())
    bench.machine.as_copy().add(Run(batch_of([b"key=2", b"key=1", b"key=3"]), 0, 3, 0))
    holder = Holder(7, ConsumerOptions(lock_key="key", lock_ms=20), 5, [(4, 1, 1)], lock_ms=20)
    bench.do(Open(SORTED, [holder], [(1_020, 7, 4, 5)], seen_to=2))
    contents = bench.machine.contents
    assert bench.machine.view.gauges[:2] == (2, 1)
    assert bench.do(RenewLock("key", 4)) == [LockAnswer(True, 1_020)]
    bench.do(Credit(7, 20))
    assert bench.get(7) == ["key=2", "key=3"]
    assert contents.counters.redelivered == 1
    assert contents.consumers.by_id[7].in_flight.keys == [4, 5, 6]
