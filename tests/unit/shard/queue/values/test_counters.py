"""Counters account for every message: what arrived is here or has left, once."""

from dataclasses import fields

import pytest

from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import RELEASED, Attach, Credit, Enqueue, Settle, Tick
from lightrail.shard.queue.values.counters import (
    DELIVERIES_OF_A_TURN,
    LEAVING,
    LETTER,
    LETTER_MESSAGE,
    QUEUE_WORK_OF_A_TURN,
    RUN,
    Counters,
    TurnWork,
    unlimited,
)
from lightrail.shard.queue.values.effects import DeadLetter, Deliver
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of
from tests.support.now import now
from tests.support.shard.checked_queue import LAST_VALUE, Bench


def queue_of(work: TurnWork, batches: int, expires_at_ms: int | None = None) -> Machine:
    """Batches of one message, and a consumer that wants all of them."""
    machine = Machine("orders", work=work)
    for _ in range(batches):
        machine.apply(Enqueue(batch_of([b"x"], expires_at_ms=expires_at_ms)), 0)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 1_000), 0)
    return machine


def delivered(machine: Machine) -> int:
    return sum(isinstance(effect, Deliver) for effect in machine.dispatch(0))


def test_a_turn_begins_with_all_of_its_work() -> None:
    work = TurnWork(3, 4)
    work.begin()
    assert (work.left, work.deliveries) == (QUEUE_WORK_OF_A_TURN, DELIVERIES_OF_A_TURN)
    assert unlimited().left > 1_000_000 * QUEUE_WORK_OF_A_TURN


def test_queues_share_the_deliveries_of_a_turn() -> None:
    work = TurnWork(deliveries=3)
    first, second = queue_of(work, 3), queue_of(work, 3)
    assert (delivered(first), delivered(second)) == (3, 0)
    assert (first.is_unfinished, second.is_unfinished) == (False, True)
    assert second.next_deadline_ms == 0, "it is called again at once"
    work.begin()
    assert delivered(second) == 3
    assert not second.is_unfinished


def test_what_expires_beyond_the_work_of_a_turn_leaves_in_the_next_one_and_is_not_delivered() -> None:
    work = unlimited()
    machine = queue_of(work, 10, expires_at_ms=100)
    work.left = 3 * (2 * RUN + LEAVING + LETTER + LETTER_MESSAGE)
    effects = machine.dispatch(100)
    left = sum(isinstance(effect, DeadLetter) for effect in effects)
    assert 3 <= left <= 4
    assert len(effects) == left
    assert machine.next_deadline_ms == 100
    work.begin()
    assert sum(isinstance(effect, DeadLetter) for effect in machine.apply(Tick(), 100)) == 10 - left
    assert now(machine.next_deadline_ms) is None


ARRIVED = {"enqueued", "restored"}
LEFT = {"accepted", "purged", "replaced", "cancelled", "lost", "dead_lettered", "discarded"}


@pytest.mark.parametrize("name", [each.name for each in fields(Counters)])
def test_each_counter_is_an_arrival_or_an_end_or_neither(name: str) -> None:
    """A rejected message is counted as that, and once more as the dead letter that it becomes."""
    counters = Counters()
    by_reason = isinstance(getattr(counters, name), dict)
    setattr(counters, name, {"one": 1, "other": 2} if by_reason else 3)
    assert counters.arrived == (3 if name in ARRIVED else 0)
    assert counters.left == (3 if name in LEFT else 0)


def test_the_counters_of_a_queue_agree_with_what_it_holds() -> None:
    bench = Bench(LAST_VALUE)
    bench.put("key=a 1", "key=a 2", "key=b 1", "key=c 1")
    bench.consumer(1, credit=2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1), Settle(1, 1, 2, RELEASED))
    counters = bench.machine.contents.counters
    assert (counters.enqueued, counters.replaced, counters.accepted, counters.released) == (4, 1, 1, 1)
    assert counters.arrived - counters.left == bench.machine.view.gauges.ready == 2


def test_what_expires_is_counted_as_expired_and_by_what_becomes_of_it() -> None:
    for policy, ends in ((Policy(), "dead_lettered"), (Policy(dead_letter=False), "discarded")):
        bench = Bench(policy)
        bench.put("a", "b", expires_at_ms=1_010)
        bench.now = 1_010
        bench.dispatch()
        counters = bench.machine.contents.counters
        assert counters.expired == 2
        assert getattr(counters, ends) == {"expired": 2}
        assert counters.left == counters.arrived == 2
