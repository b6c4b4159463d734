"""Contents: every message is found, and the sums agree with the messages, whatever the order is."""

from lightrail.shard.queue.values.commands import Peek
from lightrail.shard.queue.values.effects import Peeked, State
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import PlainBench, numbered
from tests.support.shard.mixed_queue import POLICIES, mixed, sequences


def test_peek_locks_nothing(bench: PlainBench) -> None:
    bench.put(*numbered(5))
    (peeked,) = bench.do(Peek(1, 3))
    assert isinstance(peeked, Peeked)
    assert [message for run in peeked.runs for message in run.messages()] == [b"m1", b"m2", b"m3"]
    assert bench.machine.view.gauges[:2] == (5, 0)


@POLICIES
def test_every_message_is_found_and_counted_wherever_it_is(policy: Policy) -> None:
    bench = mixed(policy)
    contents = bench.machine.contents
    delayed = int(policy.delay)
    gauges = bench.machine.view.gauges
    assert (gauges.ready, gauges.in_flight, gauges.delayed) == (3 - delayed, 1, delayed)
    assert (contents.held, contents.held_bytes, gauges.bytes) == (4, 37, 37)
    assert sequences(contents.runs()) == [0, 1, 2, 3]
    assert sequences(contents.waiting()) == [1, 2, 3]


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
