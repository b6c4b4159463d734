"""Merging: the same messages in fewer batches, in memory and on disk, with every attribute they had."""

import pytest

from lightrail.shard.queue.lines.merging import LOCATION_BYTES, near
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import Enqueue, Fetched, Settle
from lightrail.shard.queue.values.effects import Fetch
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import GROUPS, SORTED, Bench, Checked


@pytest.mark.parametrize(
    ("other", "size", "expected"),
    [
        (Location(0, 100, 10), 20, True),
        (Location(1, 100, 10), 20, False),
        (None, 20, False),
        (Location(0, LOCATION_BYTES, 10), 20, False),
        (Location(0, LOCATION_BYTES, 10), 200_000, True),
        (Location(0, LOCATION_BYTES, 10), 500_000, False),
        (Location(0, 9 * LOCATION_BYTES, 10), 5_000_000, False),
    ],
)
def test_locations_are_merged_when_they_are_near(other: Location | None, size: int, expected: bool) -> None:
    assert near(Location(0, 0, 10), other, size) is expected


def test_single_messages_leave_memory_and_share_what_is_left_of_them() -> None:
    bench = Bench(SORTED)
    bench.machine.contents.eviction.head_bytes = 0
    bench.put("key=2", "key=1", durable=True, location=Location(1, 0, 9))
    bench.put("key=3 and more", durable=True, location=Location(1, 9, 9))
    assert bench.machine.footprint.spill_candidates(1_000) == []
    resident = bench.machine.footprint.sizes()[0]
    assert bench.machine.footprint.evict(1_000) >= 24
    assert bench.machine.footprint.sizes()[0] <= resident - 24
    runs = bench.machine.contents.ready.waiting()
    assert len({id(run.batch) for run in runs}) == 1
    assert [run.size for run in runs] == [5, 5, 14]
    bench.machine.contents.eviction.head_bytes = 100
    bench.consumer(1, 1)
    (fetch,) = bench.dispatch()
    assert isinstance(fetch, Fetch)
    assert (fetch.run.sequence, fetch.run.count) == (0, 3)
    read = batch_of([b"key=2", b"key=1", b"key=3 and more"], location=Location(1, 0, 18))
    bench.do(Fetched(0, [Run(read, 0, 3, 0)]))
    assert bench.get() == ["key=1"]


def test_what_little_is_left_of_large_batches_does_not_keep_them_in_memory() -> None:
    """A group that nobody settles has one message of each batch; the others come and go."""
    bench = Bench(GROUPS)
    bench.consumer(1, 1)
    bench.put("group=stuck")
    assert bench.get(1) == ["group=stuck"]
    bench.consumer(2, 1_000_000, presettled=True)
    for number in range(40):
        bench.put("group=stuck", *[f"group=g {number} {each}" + "x" * 1_000 for each in range(100)])
        bench.get()
    bench.dispatch()
    batches = {id(run.batch): run.batch for run in bench.machine.contents.ready.waiting()}
    assert sum(batch.size for batch in batches.values()) < 20 * 100_000
    assert bench.machine.contents.ready.count == 40


def test_nor_does_what_a_consumer_has_not_settled() -> None:
    bench = Checked(Machine("orders"), now=1_000)
    bench.consumer(1, 10_000)
    for number in range(20):
        bench.do(Enqueue(batch_of([b"%01000d" % each for each in range(100)])))
        bench.dispatch()
        bench.do(Settle(1, number * 100, number * 100 + 50), Settle(1, number * 100 + 51, number * 100 + 100))
    (consumer,) = bench.machine.contents.consumers
    held = consumer.in_flight.runs[consumer.in_flight.head :]
    assert [run.messages() for run in held] == [[b"%01000d" % 50]] * 20
    assert sum(run.batch.size for run in held) == 20_000
