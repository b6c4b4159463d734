"""Backlogs: joined in memory, evicted to disk, fetched before they are due."""

from lightrail.model import limits
from lightrail.shard.queue.lines.merging import LOCATION_BYTES
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.memory.eviction import FETCH_RETRY_MS
from lightrail.shard.queue.values.commands import (
    Attach,
    Change,
    ConsumerOptions,
    Credit,
    Enqueue,
    Fetched,
    Peek,
    Tick,
)
from lightrail.shard.queue.values.effects import DeadLetter, Deliver, Drained, Effect, Fetch, Peeked, Removed
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard import invariants
from tests.support.shard.checked_queue import SORTED, Bench

HEAD_BYTES = 4_096


class Disk:
    """Remembers what was written, message by message."""

    def __init__(self) -> None:
        self.offset = 0
        self.messages: dict[int, bytes] = {}

    def write(self, run: Run) -> None:
        length = run.size + 64
        run.batch.location = Location(self.offset // 2**26, self.offset % 2**26, length)
        self.offset += length
        for index, message in enumerate(run.messages()):
            self.messages[run.sequence + index] = message

    def read(self, run: Run, expires_at_ms: int | None = None) -> Fetched:
        runs = []
        for sequence in range(run.sequence, run.end, 10):
            last = min(sequence + 10, run.end)
            messages = [self.messages[each] for each in range(sequence, last)]
            batch = batch_of(messages, durable=True, location=run.batch.location, expires_at_ms=expires_at_ms)
            runs.append(Run(batch, 0, batch.count, sequence))
        return Fetched(run.sequence, runs)


def filled(batches: int, disk: Disk, expires_at_ms: int | None = None) -> Machine:
    """A queue with ten messages of 100 bytes per batch, evicted beyond `HEAD_BYTES`."""
    machine = Machine("orders")
    machine.contents.eviction.head_bytes = HEAD_BYTES
    for number in range(batches):
        messages = [b"%0100d" % (number * 10 + index) for index in range(10)]
        machine.apply(Enqueue(batch_of(messages, durable=True, expires_at_ms=expires_at_ms)), 0)
        disk.write(machine.contents.ready.waiting()[-1])
        machine.dispatch(0)
    machine.footprint.evict(1 << 40)
    invariants.check(machine)
    return machine


def test_eviction_leaves_the_head_and_few_objects() -> None:
    machine = filled(3_000, Disk())
    assert HEAD_BYTES <= machine.footprint.sizes()[0] < HEAD_BYTES + 2 * limits.JOINED_BYTES
    assert machine.contents.ready.evicted_runs <= 3_100_000 // LOCATION_BYTES + 2
    assert machine.view.gauges.bytes == 3_000_000


def test_an_evicted_queue_is_drained_in_order() -> None:
    disk = Disk()
    machine = filled(3_000, disk)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 1_000_000), 0)
    received: list[bytes] = []
    fetches = 0
    peak = 0
    pending: list[Run] = []
    while len(received) < 30_000:
        for effect in machine.dispatch(0):
            if isinstance(effect, Deliver):
                received += effect.run.messages()
            else:
                assert isinstance(effect, Fetch)
                pending.append(effect.run)
                fetches += 1
        if pending:
            machine.apply(disk.read(pending.pop(0)), 0)
            peak = max(peak, machine.contents.ready.bytes - machine.contents.ready.evicted_bytes)
        invariants.check(machine)
    assert received == [b"%0100d" % index for index in range(30_000)]
    assert fetches <= 5
    assert peak <= HEAD_BYTES + 2 * LOCATION_BYTES


def test_the_next_runs_are_fetched_before_they_are_due() -> None:
    disk = Disk()
    machine = filled(60, disk)
    machine.apply(Attach(1, ConsumerOptions(presettled=True)), 0)
    machine.apply(Credit(1, 10), 0)
    effects = machine.dispatch(0)
    (fetch,) = [effect for effect in effects if isinstance(effect, Fetch)]
    assert [type(effect) for effect in effects] == [Deliver, Removed, Fetch]
    machine.apply(Credit(1, 20), 0)
    assert not [effect for effect in machine.dispatch(0) if isinstance(effect, Fetch)]
    assert not machine.apply(disk.read(fetch.run), 0)
    assert not machine.contents.ready.evicted_runs


def test_a_drain_waits_for_the_disk() -> None:
    disk = Disk()
    machine = filled(60, disk)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 1_000, drain=True), 0)
    effects = machine.dispatch(0)
    assert not [effect for effect in effects if isinstance(effect, Drained)]
    (fetch,) = [effect for effect in effects if isinstance(effect, Fetch)]
    machine.apply(disk.read(fetch.run), 0)
    assert machine.dispatch(0)[-1] == Drained(1, 600)


def test_a_failed_fetch_is_asked_for_again_later() -> None:
    disk = Disk()
    machine = filled(60, disk)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 1_000), 0)
    (fetch,) = [effect for effect in machine.dispatch(0) if isinstance(effect, Fetch)]
    assert not machine.apply(Fetched(fetch.run.sequence, ()), 5)
    assert not machine.dispatch(6)
    assert machine.next_deadline_ms == 5 + FETCH_RETRY_MS
    assert machine.dispatch(5 + FETCH_RETRY_MS) == [Fetch(fetch.run)]


def test_damage_is_reported_and_the_rest_delivered() -> None:
    disk = Disk()
    machine = filled(60, disk)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 1_000), 0)
    (fetch,) = [effect for effect in machine.dispatch(0) if isinstance(effect, Fetch)]
    answer = disk.read(fetch.run)
    (removed,) = machine.apply(Fetched(answer.sequence, answer.runs[1:], damaged=True), 0)
    assert isinstance(removed, Removed)
    assert (removed.reason, removed.last_sequence - removed.first_sequence) == ("lost", 10)
    invariants.check(machine)
    assert sum(effect.run.count for effect in machine.dispatch(0) if isinstance(effect, Deliver)) > 0
    assert machine.contents.counters.lost == 10


def test_evicted_messages_expire_after_they_were_fetched() -> None:
    disk = Disk()
    machine = filled(60, disk, expires_at_ms=100)
    effects = machine.apply(Tick(), 100)
    (fetch,) = [effect for effect in effects if isinstance(effect, Fetch)]
    dead = sum(effect.run.count for effect in effects if isinstance(effect, DeadLetter))
    assert dead + fetch.run.count == 600
    machine.apply(disk.read(fetch.run, expires_at_ms=100), 100)
    effects = machine.apply(Tick(), 100)
    assert sum(effect.run.count for effect in effects if isinstance(effect, DeadLetter)) == fetch.run.count
    assert not machine.view.gauges.ready


def test_a_browser_reads_from_disk_too() -> None:
    disk = Disk()
    machine = filled(60, disk)
    machine.apply(Attach(1, ConsumerOptions(browse=True)), 0)
    machine.apply(Credit(1, 1_000), 0)
    seen: list[bytes] = []
    for _ in range(3):
        for effect in machine.dispatch(0):
            if isinstance(effect, Fetch):
                machine.apply(disk.read(effect.run), 0)
            elif isinstance(effect, Deliver):
                seen += effect.run.messages()
    assert seen == [b"%0100d" % index for index in range(600)]
    assert machine.view.gauges.ready == 600


def test_peek_names_evicted_runs() -> None:
    machine = filled(60, Disk())
    (peeked,) = machine.apply(Peek(590, 10), 0)
    assert isinstance(peeked, Peeked)
    (run,) = peeked.runs
    assert (run.batch.data, run.sequence, run.count) == (None, 590, 10)


def test_transient_messages_are_evicted_after_they_were_spilled() -> None:
    machine = Machine("orders")
    machine.contents.eviction.head_bytes = 1_000
    disk = Disk()
    for _ in range(20):
        machine.apply(Enqueue(batch_of([b"x" * 100] * 10)), 0)
    assert not machine.footprint.evict(1 << 40)
    for run in machine.footprint.spill_candidates(5_000):
        disk.write(run)
    assert machine.footprint.evict(1 << 40) >= 5_000
    assert machine.contents.resident_message_bytes == 15_000
    invariants.check(machine)


def test_the_cleaner_moves_what_is_left() -> None:
    disk = Disk()
    machine = filled(60, disk)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 15), 0)
    machine.dispatch(0)
    for run in machine.footprint.runs_in(0):
        machine.footprint.relocate([(run, Location(7, 64 * run.sequence, run.size))])
        invariants.check(machine)
    assert not machine.footprint.runs_in(0)
    assert sum(run.count for run in machine.footprint.runs_in(7)) == 600


def test_what_is_behind_a_run_that_was_asked_for_expires_though_the_cleaner_parts_them() -> None:
    """Another policy makes them one run, of which the first message is under way already."""
    queue = Bench(SORTED)
    queue.put("key=0")
    for number in (1, 2):
        location = Location(1, 100 * number, 100)
        queue.put(f"key={number}", durable=True, location=location, expires_at_ms=queue.now + 10)
    queue.machine.contents.eviction.head_bytes = 0
    queue.machine.footprint.evict(1 << 40)
    queue.now += 10
    assert asked(queue.dispatch()) == [(1, 2), (2, 3)]
    queue.do(Change(Policy()))
    (_, joined) = queue.machine.contents.waiting()
    queue.do(Fetched(2, []))
    queue.now += FETCH_RETRY_MS
    assert not queue.dispatch()
    queue.machine.footprint.relocate([(joined.cut(1, 2), Location(1, 900_000, 100))])
    assert len(queue.machine.contents.waiting()) == 3
    first = Run(batch_of([b"key=1"], durable=True, expires_at_ms=joined.batch.expires_at_ms), 0, 1, 1)
    effects = queue.do(Fetched(1, [first])) + queue.dispatch()
    assert [effect.run.sequence for effect in effects if isinstance(effect, DeadLetter)] == [1]
    assert asked(effects) == [(2, 3)]


def asked(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(effect.run.sequence, effect.run.end) for effect in effects if isinstance(effect, Fetch)]
