"""Spilling: which messages without a location are written, and with which others they share a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.model import limits
from lightrail.shard.queue.lines.merging import LOCATION_SINGLES_BYTES
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.memory.disk import batches_to_spill, gaps_of, pieces_of, singles_to_spill
from lightrail.shard.queue.values.commands import RELEASED, Credit, Fetched, Settle
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch, Location, Run, batch_of
from tests.support.shard import invariants
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench

LOCATION = Location(1, 0, 500)


def wanted(first: int, last: int) -> Run:
    """A run that is only on disk."""
    return Run(Batch(None, None, last - first, 0, location=LOCATION), 0, last - first, first, 2, (7,))


def read(first: int, last: int) -> Run:
    """Messages with these sequences, which are their bodies."""
    return Run(batch_of([b"%d" % each for each in range(first, last)]), 0, last - first, first)


def sequences(runs: list[Run]) -> list[int]:
    return [sequence for run in runs for sequence in range(run.sequence, run.end)]


@given(st.integers(0, 20), st.integers(1, 20), st.sets(st.integers(0, 50), max_size=12))
def test_pieces_and_gaps_make_up_the_run(first: int, count: int, ends: set[int]) -> None:
    run = wanted(first, first + count)
    bounds = sorted(ends)
    runs = [read(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=False)]
    here = set(sequences(runs))
    pieces = pieces_of(runs, run)
    found = sequences(pieces)
    assert found == [each for each in range(run.sequence, run.end) if each in here]
    assert sequences(gaps_of(pieces, run)) == sorted(set(range(run.sequence, run.end)) - here)
    assert [body for each in pieces for body in each.messages()] == [b"%d" % each for each in found]


def test_a_piece_has_the_past_and_the_location_of_the_run_that_was_asked_for() -> None:
    (piece,) = pieces_of([read(0, 10)], wanted(3, 6))
    assert (piece.sequence, piece.end, piece.attempts, piece.barred) == (3, 6, 2, (7,))
    assert piece.batch.location == LOCATION


def test_what_has_a_location_of_its_own_keeps_it() -> None:
    run = read(0, 10)
    run.batch.location = Location(2, 40, 60)
    (piece,) = pieces_of([run], wanted(3, 6))
    assert piece.batch.location == Location(2, 40, 60)


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


def singly(machine: Machine, segment: int, checks_each: int = 1) -> None:
    """The cleaner writes each message again as a record of its own; one of so many times all is checked."""
    offset = 0
    for run in machine.footprint.runs_in(segment):
        for index in range(run.count):
            machine.footprint.relocate([(run.cut(index, index + 1), Location(segment + 1, offset, 40))])
            offset += 40
            if offset // 40 % checks_each == 0:
                invariants.check(machine)
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
        before = bench.machine.footprint.sizes()[0]
        freed = bench.machine.footprint.evict(1)
        assert bool(freed) == (bench.machine.footprint.sizes()[0] < before)
        assert bench.machine.footprint.sizes()[0] <= before
    special = bench.machine.contents.special
    # What an order has to keep of such small messages is larger than they are.
    stays = bench.machine.contents.deliveries.bytes if special is not None and special.keys.are_read else 0
    assert bench.machine.contents.resident_message_bytes == stays


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_moved_in_memory_counts_by_the_batch(policy: str) -> None:
    bench = filled(POLICIES[policy], 100)
    before = bench.machine.footprint.sizes()[0]
    singly(bench.machine, 0)
    batches = {id(run.batch) for run in bench.machine.contents.waiting()}
    assert len(batches) == 100
    assert bench.machine.footprint.sizes()[0] == before + 99 * limits.RUN_BYTES


@pytest.mark.parametrize("policy", ["sorted", "last values", "groups", "delay"])
def test_what_was_moved_on_disk_shares_batches_as_before(policy: str) -> None:
    bench = filled(POLICIES[policy], 20, batches=50)
    bench.machine.footprint.evict(1 << 40)
    before = bench.machine.footprint.sizes()[0]
    for segment in range(3):
        singly(bench.machine, segment, checks_each=7)
        invariants.check(bench.machine)
        runs = bench.machine.contents.waiting()
        assert all(run.batch.evicted for run in runs)
        assert len({id(run.batch) for run in runs}) <= 1_000 // limits.SINGLES_SHARING_MAX + 16
        assert bench.machine.footprint.sizes()[0] == before
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
