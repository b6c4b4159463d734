"""Invariants: each of them finds the state that breaks it."""

from collections.abc import Callable

import pytest

from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard import invariants
from tests.support.shard.checked_queue import DELAY, GROUPS, Bench


def running(policy: Policy) -> Machine:
    """Two messages are in flight at one of two consumers, one is ready and expires, one is delayed."""
    bench = Bench(policy)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=2)
    bench.dispatch()
    bench.consumer(2, credit=0)
    bench.put("group=b 3", expires_at_ms=5_000)
    bench.put("delay=1000 4")
    return bench.machine


def breaks_conservation(machine: Machine) -> None:
    machine.contents.counters.accepted += 1


def breaks_the_sums(machine: Machine) -> None:
    machine.contents.ready.bytes += 1


def breaks_the_order_of_a_line(machine: Machine) -> None:
    ready = machine.contents.ready
    ready.keys.append(ready.keys[-1])
    ready.runs.append(ready.runs[-1])


def breaks_credit(machine: Machine) -> None:
    machine.contents.consumers.by_id[1].limit = 0


def breaks_the_ring(machine: Machine) -> None:
    machine.contents.consumers.by_id[2].limit = 10


def breaks_the_sum_in_flight(machine: Machine) -> None:
    machine.contents.deliveries.count -= 1
    machine.contents.counters.accepted += 1


def delivers_a_ready_message(machine: Machine) -> None:
    contents = machine.contents
    run = contents.ready.waiting()[0]
    contents.consumers.by_id[1].in_flight.append(2, run)
    contents.consumers.by_id[1].next = contents.consumers.by_id[1].limit = 3
    contents.deliveries.take_over(run)
    contents.counters.enqueued += 1


def forgets_a_deadline(machine: Machine) -> None:
    machine.contents.deadlines.heap.clear()


def forgets_a_lock(machine: Machine) -> None:
    machine.contents.locks.heap.clear()


def evicts_without_a_location(machine: Machine) -> None:
    ready = machine.contents.ready
    batch = ready.waiting()[0].batch
    batch.data = batch.ends = None


def exceeds_a_bound(machine: Machine) -> None:
    machine.contents.policy = Policy(max_length=1, overflow="discard_existing")


def replaces_the_owner_of_a_group(machine: Machine) -> None:
    consumers = machine.contents.consumers
    consumers.by_id[9] = consumers.by_id.pop(1)


@pytest.mark.parametrize(
    ("break_it", "policy", "law"),
    [
        (breaks_conservation, Policy(), "4 arrived, but 4 are present and 1 left"),
        (breaks_the_sums, Policy(), None),
        (breaks_the_order_of_a_line, Policy(), "lies in the run before it"),
        (breaks_credit, Policy(), "consumer 1 has negative credit"),
        (breaks_the_ring, Policy(), None),
        (breaks_the_sum_in_flight, Policy(), None),
        (delivers_a_ready_message, Policy(), "the message with sequence 2 is there twice"),
        (forgets_a_deadline, Policy(), "nobody will expire"),
        (forgets_a_deadline, DELAY, "nobody will expire"),
        (forgets_a_lock, Policy(lock_ms=1_000), "is locked for ever"),
        (evicts_without_a_location, Policy(), None),
        (exceeds_a_bound, Policy(), None),
        (replaces_the_owner_of_a_group, GROUPS, "the owner has left"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_broken_law_is_found(break_it: Callable[[Machine], None], policy: Policy, law: str | None) -> None:
    machine = running(policy)
    invariants.check(machine)
    break_it(machine)
    with pytest.raises(AssertionError, match=law):
        invariants.check(machine)
