"""What is noted of locks under a key: which have begun, changed or been given up, and nothing of others."""

from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.timed.lock_changes import Freed, LockChanges, keyed_locks, within
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    RELEASED,
    Attach,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    RenewByKeys,
    Settle,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of

Noted = tuple[int, int, int, int, bool] | Freed


class Noting:
    """A queue with six messages, of which a consumer with a key has four."""

    def __init__(self, *, durable: bool = True, **options: object) -> None:
        self.changed: dict[LockChanges, None] = {}
        self.changes = LockChanges(7, self.changed)
        self.machine = Machine("q", Policy(lock_ms=100), lock_changes=self.changes)
        given = {"lock_key": "key", "lock_ends": LockEnding.BY_TIME} | options
        self.machine.apply(Attach(1, ConsumerOptions(**given)), 0)  # type: ignore[arg-type]
        self.machine.apply(Enqueue(batch_of([b"m"] * 6, durable=durable)), 0)
        self.machine.apply(Credit(1, 4), 0)
        self.machine.dispatch(0)

    def noted(self) -> list[Noted]:
        """(number, sequence, length, end, whether the end counts) of locks, and returns."""
        found: list[Noted] = []
        for changes in self.changed:
            assert changes.queue == 7
            for each in changes.take():
                found.append(each if isinstance(each, Freed) else (*each[1:4], *each[5:]))
        self.changed.clear()
        return found


def test_a_lock_is_noted_where_it_is_given_renewed_or_given_up() -> None:
    queue = Noting()
    assert queue.noted() == [(0, 0, 4, 100, False)]
    queue.machine.apply(RenewByKeys([("key", 2)]), 50)
    assert queue.noted() == [(2, 2, 1, 150, False)]
    queue.machine.apply(Settle(1, 1, 2, RELEASED), 50)
    assert queue.noted() == [Freed(1, 1)]
    queue.machine.apply(Settle(1, 0, 1, ACCEPTED), 50)
    assert queue.noted() == []
    queue.machine.apply(Detach(1, Ending.FAILED), 60)
    assert queue.noted() == [(2, 2, 1, 150, True)]
    consumer = queue.machine.contents.locks.seen("key")
    assert consumer is not None
    assert [each[1:4] for each in keyed_locks(consumer, 0, 9)] == [(2, 2, 1), (3, 3, 1)]
    assert [each[1:4] for each in queue.machine.view.keyed_locks()] == [(2, 2, 1), (3, 3, 1)]
    queue.machine.dispatch(150)
    assert queue.noted() == [Freed(2, 1), Freed(3, 1)]


def test_what_is_settled_in_the_step_of_its_delivery_is_not_noted() -> None:
    queue = Noting()
    queue.machine.apply(Settle(1, 0, 3, ACCEPTED), 0)
    assert queue.noted() == [(3, 3, 1, 100, False)]


def test_nothing_is_noted_of_locks_that_end_with_link_or_process() -> None:
    assert Noting(durable=False).noted() == []
    assert Noting(lock_key="").noted() == []
    by_link = Noting(lock_ends=LockEnding.BY_LINK)
    by_link.machine.apply(Detach(1, Ending.BY_CLIENT), 0)
    assert by_link.noted() == []


def test_numbers_of_a_range_are_found_whether_the_range_or_the_numbers_are_fewer() -> None:
    numbers = {1: 0, 5: 0, 9: 0}
    assert within(numbers, 5, 7) == within(numbers, 2, 9) == [5]
    assert within({}, 0, 9) == []
