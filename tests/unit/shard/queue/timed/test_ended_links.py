"""Links that have ended with locked messages: what each costs, and that nothing visits them."""

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.model import limits
from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.timed import ended_links
from lightrail.shard.queue.timed.ended_links import PACKED_RUNS_MAX, EndedLinks
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Attach,
    Change,
    Command,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Outcome,
    OutcomeKind,
    Peek,
    RenewByKeys,
    RenewLock,
    Reserve,
    Return,
    Settle,
    SettleDetached,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import Fetch, LockAnswer, Peeked
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch, Location, Run, batch_of
from tests.support.shard import invariants

NOW_MS = 1_700_000_000_000
LINKS = 10_000
BARS = Outcome(OutcomeKind.MODIFIED, delivery_failed=True, undeliverable_here=True)


def key(number: int) -> str:
    return f"{number:016x}"


def filled(links: int) -> Machine:
    machine = Machine("q", Policy(lock_ms=60_000))
    for number in range(links):
        batch = batch_of([b"message"], durable=True)
        batch.location = Location(1, 100 * number, 100)
        machine.apply(Enqueue(batch), NOW_MS)
    return machine


def end_links(machine: Machine, links: int) -> None:
    """Each link receives one message and ends."""
    for number in range(links):
        now_ms = NOW_MS + number
        options = ConsumerOptions(lock_key=key(number), lock_ends=LockEnding.BY_TIME)
        machine.apply(Attach(number, options), now_ms)
        machine.apply(Credit(number, 1), now_ms)
        machine.dispatch(now_ms)
        machine.apply(Detach(number, Ending.BY_CLIENT), now_ms)


def ended(links: int) -> Machine:
    machine = filled(links)
    end_links(machine, links)
    return machine


@pytest.fixture
def visits() -> Iterator[list[str]]:
    """The keys of ended links that were looked at."""
    found: list[str] = []
    unpack, copy = EndedLinks.unpack, EndedLinks.copy

    def unpacked(self: EndedLinks, key: str) -> Any:
        found.append(key)
        return unpack(self, key)

    def copied(self: EndedLinks, key: str) -> Any:
        found.append(key)
        return copy(self, key)

    with patch.object(EndedLinks, "unpack", unpacked), patch.object(EndedLinks, "copy", copied):
        yield found


def test_an_ended_link_costs_400_bytes_beside_its_message() -> None:
    links = 2_000
    machine = filled(links)
    gc.collect()
    tracemalloc.start()
    try:
        end_links(machine, links)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert machine.view.locked_count == links
    assert used / links <= limits.ENDED_LINK_BYTES == 400
    assert machine.footprint.sizes()[1][2] == links * limits.ENDED_LINK_BYTES


def test_nothing_visits_ended_links_but_what_is_for_one_of_them(visits: list[str]) -> None:
    machine = ended(LINKS)
    contents = machine.contents
    del visits[:]
    assert machine.view.locked_count == machine.view.in_flight_count == LINKS
    assert len(list(contents.consumers)) == 1, "the internal consumer of all"
    (peeked,) = machine.apply(Peek(0, 10), NOW_MS)
    assert isinstance(peeked, Peeked)
    locked = list(machine.view.locked_runs(4_000, 10))
    assert [run.sequence for run, _, _ in locked] == list(range(4_000, 4_010))
    assert [machine.view.lock_ends(holder, each, 1) for _, holder, each in locked] == [
        [NOW_MS + 60_000 + number] for number in range(4_000, 4_010)
    ]
    machine.apply(Change(Policy(lock_ms=30_000)), NOW_MS)
    machine.apply(Change(Policy(lock_ms=30_000, priorities=3)), NOW_MS)
    assert len(machine.footprint.spill_candidates(1 << 20)) == 0
    while machine.footprint.evict(1 << 20):
        pass
    assert machine.footprint.in_flight_bytes == 0
    runs = machine.footprint.runs_in(1)
    machine.footprint.relocate([(run, Location(2, 0, 1 << 20)) for run in runs])
    assert not machine.footprint.runs_in(1)
    assert machine.next_deadline_ms == NOW_MS + 60_000
    machine.dispatch(NOW_MS)
    assert visits == []
    assert machine.apply(SettleLocked(key(7), 0, ACCEPTED), NOW_MS)[-1] == LockAnswer(True, 0)
    until_ms = NOW_MS + 31_000
    assert machine.apply(RenewLock(key(8), 0), NOW_MS + 1_000) == [LockAnswer(True, until_ms)]
    assert machine.view.holder_of(key(9)) is not None
    assert visits == [key(7), key(8), key(9)]
    invariants.check(machine)


def test_nothing_is_kept_of_ended_links_whose_messages_are_settled() -> None:
    links = 50
    machine = ended(links)
    for number in range(links):
        machine.apply(SettleLocked(key(number), 0, ACCEPTED), NOW_MS)
    locks = machine.contents.locks
    assert not locks.by_key
    assert not locks.ended.by_key
    assert locks.ended.count == 0
    assert list(machine.contents.consumers) == []
    assert machine.next_deadline_ms is None
    invariants.check(machine)


def test_each_lock_ends_at_its_time() -> None:
    machine = ended(5)
    machine.apply(RenewByKeys([(key(1), 0)]), NOW_MS + 50_000)
    for number in (0, 2, 3, 4):
        assert machine.next_deadline_ms == NOW_MS + number + 60_000
        machine.dispatch(NOW_MS + number + 60_000 - 1)
        before = machine.view.gauges.ready
        machine.dispatch(NOW_MS + number + 60_000)
        assert machine.view.gauges.ready == before + 1
        invariants.check(machine)
    assert machine.next_deadline_ms == NOW_MS + 110_000
    machine.dispatch(NOW_MS + 110_000)
    assert machine.view.gauges.ready == 5
    # Only that of the renewed lock counts.
    assert [run.attempts for run in machine.contents.ready.waiting()] == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("count", [PACKED_RUNS_MAX, PACKED_RUNS_MAX + 1])
def test_a_link_with_many_runs_stays_a_consumer_until_few_are_left(count: int) -> None:
    machine = filled(count)
    machine.apply(Attach(1, ConsumerOptions(lock_key="k", lock_ends=LockEnding.BY_TIME)), NOW_MS)
    for number in range(count):
        machine.apply(Credit(1, number + 1), NOW_MS)
        machine.dispatch(NOW_MS + number)
    machine.apply(Detach(1, Ending.FAILED), NOW_MS)
    is_packed = "k" in machine.contents.locks.ended.by_key
    assert is_packed is (count == PACKED_RUNS_MAX)
    assert machine.view.locked_count == count
    invariants.check(machine)
    # The renewal parts nothing here: each run has its own end.
    machine.apply(SettleLocked("k", 3, ACCEPTED), NOW_MS)
    assert "k" in machine.contents.locks.ended.by_key
    assert machine.view.locked_count == count - 1
    machine.dispatch(NOW_MS + 60_000)
    # The client failed while it worked on the oldest one.
    assert [run.attempts for run in machine.contents.ready.waiting()] == [1]
    invariants.check(machine)


# --- a packed consumer does what one with a link's objects does ------------------------------------------


def seen(effect: Any) -> Any:
    """What an effect says of each message."""
    if isinstance(effect, Run):
        return [(each, effect.attempts, effect.barred) for each in range(effect.sequence, effect.end)]
    if isinstance(effect, Batch):
        # That of a message on disk may have neighbours, also those of other ended links.
        return None
    if isinstance(effect, list):
        rows = [seen(each) for each in effect]
        return [row for each in rows for row in (each if isinstance(each, list) else [each])]
    if isinstance(effect, tuple):
        return type(effect).__name__, *(seen(each) for each in effect)
    return effect if isinstance(effect, int | str | bytes | None) else str(effect)


def states(machine: Machine) -> Any:
    """Who has which delivery until when, and what a file of locks would have."""
    deliveries = sorted(
        (consumer.id, number + at, run.sequence + at, run.attempts)
        for consumer in machine.view.holders()
        for number, run in zip(consumer.in_flight.keys, consumer.in_flight.runs, strict=True)
        for at in range(run.count)
    )
    locks: dict[tuple[int, int], int] = {}
    renewed = {each.id: each.renewed for each in machine.view.holders()}
    for until_ms, identity, first, last in machine.view.locks:
        for number in range(first, last):
            locks[identity, number] = until_ms
    for identity, numbers in renewed.items():
        locks |= {(identity, number): until_ms for number, until_ms in numbers.items()}
    there = {(identity, number) for identity, number, *_ in deliveries}
    kept = sorted(
        (lock.consumer.id, lock.number + at, lock.sequence + at, lock.attempts, lock.until_ms, lock.counts)
        for locks in machine.view.keyed_locks()
        for lock in locks
        for at in range(lock.length)
    )
    return (
        deliveries,
        {each: until_ms for each, until_ms in locks.items() if each in there},
        kept,
        machine.view.gauges[:3],
        machine.view.locked_count,
    )


KINDS: dict[str, dict[str, Any]] = {"plain": {}, "priorities": {"priorities": 3}, "groups": {"groups": True}}
keys = st.sampled_from(["a", "b", "c"])
numbers = st.integers(0, 6)
outcomes = st.sampled_from([ACCEPTED, RELEASED, FAILED, BARS])
endings = st.sampled_from(LockEnding)
ended_links_of_keys = st.builds(
    lambda key, count, ending: ("end", key, count, ending), keys, st.integers(1, 4), st.sampled_from(Ending)
)
steps = st.one_of(
    st.builds(lambda count: ("put", count), st.integers(1, 4)),
    ended_links_of_keys,
    ended_links_of_keys,
    st.builds(
        lambda key, ends, own, credit, first: ("attach", key, ends, own, credit, first),
        keys,
        endings,
        st.sampled_from([0, 0, 40]),
        st.integers(0, 5),
        st.sampled_from([0, 0, 2, 50]),
    ),
    st.builds(lambda key, ending: ("detach", key, ending), keys, st.sampled_from(Ending)),
    st.builds(lambda key, first, outcome: ("settle", key, first, outcome), keys, numbers, outcomes),
    st.builds(SettleLocked, keys, numbers, outcomes),
    st.builds(RenewLock, keys, numbers),
    st.builds(lambda *each: RenewByKeys(list(each)), st.tuples(keys, numbers), st.tuples(keys, numbers)),
    st.builds(lambda key, n, outcome: SettleDetached(key, n, n + 2, outcome), keys, numbers, outcomes),
    st.builds(lambda key, n: ("reserve", key, n), keys, numbers),
    st.just(("return",)),
    st.builds(lambda ms, kind: ("policy", ms, kind), st.sampled_from([20, 60]), st.sampled_from([*KINDS])),
    st.builds(lambda ms: ("wait", ms), st.sampled_from([1, 1, 5, 15])),
    st.just(("evict",)),
)


class History:
    """Two machines that get the same commands; one of them packs."""

    def __init__(self) -> None:
        policy = Policy(lock_ms=60, max_delivery_count=3)
        self.machines = (Machine("q", policy), Machine("q", policy))
        self.now = NOW_MS
        self.links: dict[str, int] = {}
        self.identity = 0
        self.reserved: list[int] = []
        self.written = 0

    def do(self, *commands: Command) -> None:
        answers: list[Any] = []
        for machine, runs_max in zip(self.machines, (PACKED_RUNS_MAX, -1), strict=True):
            with patch.object(ended_links, "PACKED_RUNS_MAX", runs_max):
                effects = [effect for each in commands for effect in machine.apply(each, self.now)]
                effects += machine.dispatch(self.now)
                # Neighbours are read together, also those of several ended links.
                answers.append([seen(each) for each in effects if not isinstance(each, Fetch)])
                invariants.check(machine)
        assert answers[0] == answers[1]
        assert states(self.machines[0]) == states(self.machines[1])
        assert not self.machines[1].contents.locks.ended.by_key

    def step(self, step: Any) -> None:
        match step:
            case ("put", count):
                batch = batch_of([b"x" * 10] * count, durable=True)
                batch.location = Location(1, self.written, 10 * count)
                self.written += 10 * count
                self.do(Enqueue(batch))
            case ("end", key, count, ending):
                # A link that has ended, with new messages.
                self.step(("put", count))
                self.step(("attach", key, LockEnding.BY_TIME, 0, count, 0))
                self.step(("detach", key, ending))
            case ("attach", key, ends, own, credit, first):
                self.identity += 1
                options = ConsumerOptions(lock_key=key, lock_ends=ends, lock_ms=own, first=first)
                self.do(Attach(self.identity, options), Credit(self.identity, first + credit))
                if self.machines[0].view.consumer(self.identity) is not None:
                    self.links[key] = self.identity
            case ("detach", key, ending) if key in self.links:
                self.do(Detach(self.links.pop(key), ending))
            case ("settle", key, first, outcome) if key in self.links:
                self.do(Settle(self.links[key], first, first + 2, outcome))
            case ("reserve", key, number):
                self.identity += 1
                found = self.machines[0].view.holder_of(key)
                if found is not None and found.in_flight.between(number, number + 1):
                    self.do(Tick(), Reserve(-10 - self.identity, found.id, number, number + 1, key))
                    self.reserved.append(-10 - self.identity)
            case ("return",) if self.reserved:
                self.do(Return(self.reserved.pop()))
            case ("policy", lock_ms, kind):
                self.do(Change(Policy(lock_ms=lock_ms, max_delivery_count=3, **KINDS[kind])))
            case ("wait", ms):
                self.now += ms
                self.do(Tick())
            case ("evict",):
                for machine in self.machines:
                    machine.footprint.evict(1 << 20)
                self.do()
            case SettleLocked() | RenewLock() | RenewByKeys() | SettleDetached():
                self.do(step)


@settings(deadline=None, max_examples=60)
@given(st.lists(steps, max_size=40))
def test_a_packed_link_does_what_one_does_that_is_not_packed(history: list[Any]) -> None:
    both = History()
    for step in history:
        both.step(step)
