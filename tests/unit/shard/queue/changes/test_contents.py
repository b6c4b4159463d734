"""Contents: every message is found, and the sums agree with the messages, whatever the order is."""

import sys

from lightrail.model import limits
from lightrail.shard.queue.changes.contents import Joining
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import Enqueue, Peek
from lightrail.shard.queue.values.effects import Peeked, PeekedState
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard import invariants
from tests.support.shard.checked_queue import PlainBench, numbered
from tests.support.shard.mixed_queue import POLICIES, mixed, sequences

BODY = b"%01000d"


def filled(count: int) -> Ready:
    """Batches of one message of a kilobyte."""
    ready = Ready()
    for number in range(count):
        ready.add_batch(batch_of([BODY % number]), number)
    return ready


def spans(ready: Ready) -> list[tuple[int, int]]:
    return [(run.sequence, run.end) for run in ready.waiting()]


def test_a_backlog_in_memory_is_joined() -> None:
    machine = Machine("orders")
    for number in range(5_000):
        machine.apply(Enqueue(batch_of([b"%0100d" % (number * 10 + index) for index in range(10)])), 0)
        machine.dispatch(0)
    invariants.check(machine)
    runs = machine.contents.ready.waiting()
    assert len(runs) < 300
    assert max(run.size for run in runs) <= limits.JOINED_BYTES
    objects = sum(sys.getsizeof(run.batch.data) + sys.getsizeof(run.batch.ends) + 300 for run in runs)
    assert objects < 1.2 * machine.contents.ready.bytes
    messages = [message for run in runs for message in run.messages()]
    assert messages == [b"%0100d" % index for index in range(50_000)]


def test_what_came_in_this_step_is_not_joined() -> None:
    """Its locations in the journal are set after the step."""
    ready = filled(1_000)
    joining = Joining()
    joining.known_to = 600
    joining.join(ready, None)
    assert spans(ready)[-400:] == [(each, each + 1) for each in range(600, 1_000)]
    assert len(ready) < 500


def test_a_short_line_is_left_as_it_is() -> None:
    """A queue that keeps up never pays for a copy."""
    ready = filled(10)
    joining = Joining()
    joining.bytes = 1_000
    joining.known_to = 10
    joining.join(ready, None)
    assert len(ready) == 10
    assert joining.bytes == 0


def test_joining_goes_on_where_it_ended_and_fills_the_last_run_first() -> None:
    ready = filled(1_000)
    joining = Joining()
    for known_to in (100, 600, 1_000):
        joining.known_to = known_to
        joining.join(ready, None)
    assert spans(ready)[-1][1] == 1_000
    sizes = [run.size for run in ready.waiting()]
    assert max(sizes) <= limits.JOINED_BYTES
    assert min(sizes[:-1]) > limits.JOINED_BYTES // 2
    assert [body for run in ready.waiting() for body in run.messages()] == [BODY % n for n in range(1_000)]


def test_a_recovered_line_is_joined_already() -> None:
    ready = filled(1_000)
    joining = Joining()
    joining.begin(1_000)
    joining.join(ready, None)
    assert len(ready) >= 999


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
    assert states == [PeekedState.READY, PeekedState.DELAYED if policy.delay else PeekedState.READY]


@POLICIES
def test_a_queue_that_ends_gives_up_every_message(policy: Policy) -> None:
    contents = mixed(policy).machine.contents
    assert sequences(contents.surrender()) == [0, 1, 2, 3]
    assert contents.waiting() == []
