"""Contents: every message is found, and the sums agree with the messages, whatever the order is."""

import pytest

from lightrail.shard.queue.commands import Peek
from lightrail.shard.queue.effects import Peeked, State
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.runs import Location, Run
from tests.support.shard.checked_queue import (
    DELAY,
    GROUPS,
    LAST_VALUE,
    SORTED,
    Bench,
    PlainBench,
    numbered,
)

POLICIES = pytest.mark.parametrize(
    "policy", [Policy(), Policy(priorities=3), SORTED, LAST_VALUE, GROUPS, DELAY], ids=str
)


def test_peek_locks_nothing(bench: PlainBench) -> None:
    bench.put(*numbered(5))
    (peeked,) = bench.do(Peek(1, 3))
    assert isinstance(peeked, Peeked)
    assert [message for run in peeked.runs for message in run.messages()] == [b"m1", b"m2", b"m3"]
    assert bench.machine.contents.gauges[:2] == (5, 0)


def mixed(policy: Policy) -> Bench:
    """Four messages in two segments: one is in flight, one may be delayed, two are ready."""
    bench = Bench(policy)
    bench.put("key=1 a", durable=True, location=Location(1, 0, 40))
    bench.consumer(1, credit=1)
    bench.dispatch()
    bench.put("key=2 b", "key=3 delay=50 c", durable=True, location=Location(1, 40, 80))
    bench.put("key=4 d", durable=True, location=Location(2, 0, 40))
    return bench


def sequences(runs: list[Run]) -> list[int]:
    return sorted(sequence for run in runs for sequence in range(run.sequence, run.end))


@POLICIES
def test_every_message_is_found_and_counted_wherever_it_is(policy: Policy) -> None:
    bench = mixed(policy)
    contents = bench.machine.contents
    delayed = int(policy.delay)
    gauges = contents.gauges
    assert (gauges.ready, gauges.in_flight, gauges.delayed) == (3 - delayed, 1, delayed)
    assert (contents.held, contents.held_bytes, gauges.bytes) == (4, 37, 37)
    assert sequences(contents.runs()) == [0, 1, 2, 3]
    assert sequences(contents.runs_in(1)) == [0, 1, 2]
    assert sequences(contents.runs_in(2)) == [3]
    assert sequences(contents.waiting()) == [1, 2, 3]


@POLICIES
def test_what_leaves_memory_is_still_found_and_counted(policy: Policy) -> None:
    bench = mixed(policy)
    contents = bench.machine.contents
    contents.eviction.head_bytes = 0
    before = contents.resident_bytes
    assert contents.evict(1 << 40) > 0
    assert contents.resident_bytes < before
    assert contents.sizes()[:2] == (contents.index_bytes, contents.resident_bytes)
    assert contents.held_bytes == contents.gauges.bytes == 37
    assert sequences(contents.runs_in(1)) == [0, 1, 2]


@POLICIES
def test_a_peek_sees_what_waits_by_sequence_and_how_it_waits(policy: Policy) -> None:
    bench = mixed(policy)
    (peeked,) = bench.do(Peek(1, 2))
    assert isinstance(peeked, Peeked)
    assert sequences(peeked.runs) == [1, 2]
    states = [state for run, state in zip(peeked.runs, peeked.states, strict=True) for _ in range(run.count)]
    assert states == [State.READY, State.DELAYED if policy.delay else State.READY]


@POLICIES
def test_a_queue_that_ends_gives_up_every_message(policy: Policy) -> None:
    contents = mixed(policy).machine.contents
    assert sequences(contents.surrender()) == [0, 1, 2, 3]
    assert contents.waiting() == []


def test_only_deliveries_under_a_timed_lock_count_as_locked() -> None:
    bench = Bench(Policy())
    bench.put("a", "b", "c")
    bench.consumer(1, credit=2, lock_ms=50)
    bench.consumer(2, credit=1)
    bench.dispatch()
    assert bench.machine.contents.locked_count == 2


def test_a_message_that_is_delayed_says_until_when() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b")
    delayed, ready = bench.machine.contents.delayed.waiting()[0], bench.machine.contents.ready.waiting()[0]
    assert bench.machine.contents.due_ms(delayed) == bench.now + 50
    assert bench.machine.contents.due_ms(ready) is None
