"""Refilling: what was read is in memory again, and what can't be read leaves the queue as lost."""

from lightrail.shard.queue.values.commands import Fetched
from lightrail.shard.queue.values.effects import Fetch, Reason
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location
from tests.support.shard.checked_queue import Bench, removed
from tests.support.shard.mixed_queue import POLICIES, sequences


@POLICIES
def test_what_the_disk_can_not_give_back_is_lost_and_nothing_else_is(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put("key=1 a", durable=True, location=Location(1, 0, 40))
    bench.put("key=2 b", durable=True, location=Location(1, 40, 40))
    machine = bench.machine
    machine.footprint.head_bytes = 0
    assert machine.footprint.evict(1 << 40) > 0
    machine.footprint.head_bytes = 1 << 20
    bench.consumer(1, credit=10)
    wanted = [effect.run for effect in bench.dispatch() if isinstance(effect, Fetch)]
    assert sequences(wanted)
    lost = []
    for run in wanted:
        lost += removed(bench.do(Fetched(run.sequence, [], damaged=True)), Reason.LOST)
    assert lost == sequences(wanted)
    assert machine.view.counters.lost == len(lost)
    assert sequences(machine.view.runs) == [each for each in (0, 1) if each not in lost]


def test_a_scheduled_message_that_the_disk_can_not_give_back_takes_no_memory() -> None:
    bench = Bench(Policy(delay=True, enqueues_due=True))
    before = bench.machine.footprint.sizes()
    bench.put("scheduled=1050 a", durable=True, location=Location(1, 0, 40))
    machine = bench.machine
    assert machine.footprint.evict(1 << 40) > 0
    bench.now = 1_050
    (fetch,) = (effect for effect in bench.dispatch() if isinstance(effect, Fetch))
    assert removed(bench.do(Fetched(fetch.run.sequence, [], damaged=True)), Reason.LOST) == [0]
    assert not bench.dispatch()
    assert (machine.next_deadline_ms, machine.view.counters.lost) == (None, 1)
    assert machine.footprint.sizes() == before
