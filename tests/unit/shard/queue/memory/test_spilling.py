"""Spilling: which messages without a location are written, and with which others they share a batch."""

from lightrail.model import limits
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.spilling import batches_to_spill, singles_to_spill
from lightrail.shard.queue.values.commands import RELEASED, Credit, Fetched, Settle
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import GROUPS, Bench


def test_transient_messages_of_one_batch_are_spilled_together_and_apart_from_what_is_in_flight() -> None:
    bench = Bench(GROUPS)
    bench.machine.contents.eviction.head_bytes = 0
    bench.consumer(1, 1)
    first = "group=a " + 1_000 * "1"
    bench.put(first, "group=a 2", "group=a 3")
    assert bench.get() == [first]
    run, held = bench.machine.footprint.spill_candidates(1_000)
    assert (run.sequence, run.count) == (1, 2)
    assert (held.sequence, held.count) == (0, 1)
    run.batch.location = Location(1, 0, 18)
    assert bench.machine.footprint.evict(1_000) >= 18
    assert next(iter(bench.machine.contents.consumers)).in_flight.runs[0].batch.location is None
    held.batch.location = Location(1, 18, 1_100)
    assert bench.machine.footprint.evict(1_000) == len(first) + limits.RUN_EVICTED_BYTES
    bench.do(Settle(1, 0, 1, RELEASED), Credit(1, 2))
    assert bench.get() == []
    again = batch_of([first.encode()], location=Location(1, 18, 1_100))
    bench.do(Fetched(0, [Run(again, 0, 1, 0)]))
    assert bench.get() == [first]


def ready_of(*counts: int, location: Location | None = None) -> Ready:
    """Batches of so many messages of ten bytes."""
    ready = Ready()
    sequence = 0
    for count in counts:
        ready.add_batch(batch_of([b"%010d" % each for each in range(count)], location=location), sequence)
        sequence += count
    return ready


def spans(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.sequence, run.end) for run in runs]


def test_whole_batches_are_written_from_the_tail_up_to_the_head_that_stays() -> None:
    ready = ready_of(2, 2, 2, 2)
    assert spans(batches_to_spill(ready, 1, 0, 0)) == [(6, 8)]
    assert spans(batches_to_spill(ready, 25, 0, 0)) == [(4, 6), (6, 8)]
    assert spans(batches_to_spill(ready, 1_000, 40, 0)) == [(4, 6), (6, 8)]
    assert spans(batches_to_spill(ready, 25, 0, 5)) == [(6, 8)], "a run counts with what is around it"


def test_what_has_a_location_or_is_a_part_of_a_batch_is_not_written() -> None:
    assert batches_to_spill(ready_of(2, 2, location=Location(1, 0, 40)), 1_000, 0, 0) == []
    ready = ready_of(2, 2)
    ready.take_first(1, 100)
    assert spans(batches_to_spill(ready, 1_000, 0, 0)) == [(2, 4)]


def test_single_messages_are_written_with_their_neighbours_in_the_batch() -> None:
    line = Sparse()
    batch = batch_of([b"%010d" % each for each in range(4)])
    for each in (0, 1, 3):
        line.add(Run(batch, each, each + 1, each))
    found = singles_to_spill(line, 1_000, 0)
    assert spans(found) == [(0, 2), (3, 4)]
    assert [run.batch for run in line.waiting()] == [found[0].batch, found[0].batch, found[1].batch]
    assert all(run.batch is not batch for run in found)
    assert singles_to_spill(line, 1_000, 30) == []
    for run in found:
        run.batch.location = Location(1, 0, 100)
    assert singles_to_spill(line, 1_000, 0) == []
