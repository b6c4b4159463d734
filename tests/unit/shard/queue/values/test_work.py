"""Work: queues of a shard share what may be done in a turn, and what is left over is done in the next."""

from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import Attach, Credit, Enqueue, Tick
from lightrail.shard.queue.values.effects import DeadLetter, Deliver
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.queue.values.work import (
    DELIVERIES_OF_A_TURN,
    LEAVING,
    LETTER,
    LETTER_MESSAGE,
    QUEUE_WORK_OF_A_TURN,
    RUN,
    Work,
    unlimited,
)
from tests.support.now import now


def queue_of(work: Work, batches: int, expires_at_ms: int | None = None) -> Machine:
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
    work = Work(3, 4)
    work.begin()
    assert (work.left, work.deliveries) == (QUEUE_WORK_OF_A_TURN, DELIVERIES_OF_A_TURN)
    assert unlimited().left > 1_000_000 * QUEUE_WORK_OF_A_TURN


def test_queues_share_the_deliveries_of_a_turn() -> None:
    work = Work(deliveries=3)
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
