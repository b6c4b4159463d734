"""Sharing: what the cleaner moves one by one shares batches as before, and counts as resident as before."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue import invariants
from lightrail.shard.queue.lines.merging import LOCATION_SINGLES_BYTES
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench

POLICIES = {
    "plain": Policy(),
    "priorities": Policy(priorities=10),
    "sorted": SORTED,
    "last values": LAST_VALUE,
    "groups": GROUPS,
    "delay": DELAY,
}


def filled(policy: Policy, messages: int, batches: int = 1) -> Bench:
    """Tiny messages, all of them on disk as well."""
    bench = Bench(policy)
    bench.machine.contents.eviction.head_bytes = 0
    for batch in range(batches):
        texts = [f"key={batch * messages + each:05d}" for each in range(messages)]
        bench.put(*texts, durable=True, location=Location(0, 1_000 * batch, 900))
    return bench


def singly(machine: Machine, segment: int) -> None:
    """The cleaner writes each message again as a record of its own."""
    offset = 0
    for run in machine.footprint.runs_in(segment):
        for index in range(run.count):
            machine.footprint.relocate([(run.cut(index, index + 1), Location(segment + 1, offset, 40))])
            invariants.check(machine)
            offset += 40
    assert not machine.footprint.runs_in(segment)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moved", [False, True])
def test_an_eviction_of_parts_of_a_batch_makes_it_smaller(policy: str, moved: bool) -> None:
    bench = filled(POLICIES[policy], 8)
    bench.consumer(1, 2)
    bench.get()
    if moved:
        singly(bench.machine, 0)
    for _ in range(9):
        before = bench.machine.footprint.sizes()[1]
        freed = bench.machine.footprint.evict(1)
        assert bool(freed) == (bench.machine.footprint.sizes()[1] < before)
        assert bench.machine.footprint.sizes()[1] <= before
    special = bench.machine.contents.special
    # What an order has to keep of such small messages is larger than they are.
    stays = bench.machine.contents.in_flight_bytes if special is not None and special.keys.are_read else 0
    assert bench.machine.contents.resident_message_bytes == stays


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_moved_in_memory_counts_by_the_batch(policy: str) -> None:
    bench = filled(POLICIES[policy], 100)
    before = bench.machine.footprint.sizes()[1]
    singly(bench.machine, 0)
    batches = {id(run.batch) for run in bench.machine.contents.waiting()}
    assert len(batches) == 100
    assert bench.machine.footprint.sizes()[1] == before + 99 * limits.RUN_BYTES


@pytest.mark.parametrize("policy", ["sorted", "last values", "groups", "delay"])
def test_what_was_moved_on_disk_shares_batches_as_before(policy: str) -> None:
    bench = filled(POLICIES[policy], 20, batches=50)
    bench.machine.footprint.evict(1 << 40)
    before = bench.machine.footprint.sizes()[1]
    for segment in range(3):
        singly(bench.machine, segment)
        runs = bench.machine.contents.waiting()
        assert all(run.batch.evicted for run in runs)
        assert len({id(run.batch) for run in runs}) <= 1_000 // limits.SINGLES_SHARING_MAX + 16
        assert bench.machine.footprint.sizes()[1] == before
    for run in runs:
        location = run.batch.location
        assert location is not None
        assert location.length <= LOCATION_SINGLES_BYTES
        assert location.offset <= 40 * run.sequence < location.offset + location.length


def test_holes_between_what_is_moved_stay_holes() -> None:
    bench = filled(SORTED, 100)
    bench.consumer(1, 50)
    bench.get()
    bench.machine.footprint.evict(1 << 40)
    singly(bench.machine, 0)
    assert len({id(run.batch) for run in bench.machine.contents.waiting()}) < 8


def test_single_messages_are_moved_on_disk_by_the_batch() -> None:
    bench = Bench(SORTED)
    bench.put("key=3", "key=1", "key=2", durable=True, location=Location(1, 0, 99))
    (run,) = bench.machine.footprint.runs_in(1)
    assert (run.sequence, run.count) == (0, 3)
    bench.machine.footprint.relocate([(run, Location(2, 0, 99))])
    (run,) = bench.machine.footprint.runs_in(2)
    assert run.count == 3
    assert not bench.machine.footprint.runs_in(1)
    bench.consumer(1)
    assert bench.get() == ["key=1", "key=2", "key=3"]
