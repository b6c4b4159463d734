"""Restored locks: those of messages that recovery has found, and that no link of the store has."""

from itertools import count
from unittest.mock import Mock

import pytest

from lightrail.model.links import LockEnding
from lightrail.shard.journal.store import RecoveredQueue
from lightrail.shard.links.receiving.restored_locks import LOCKED_AFTER_START_MS, lock_holders
from lightrail.shard.queue.values.commands import ConsumerOptions, Holder, Restore
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.kept_locks import KeptLock, LockKey

NOW_MS = 1_000_000
KEY = LockKey("a1" * 8, 0, 60_000, LockEnding.BY_TIME)


def found(*stretches: tuple[int, int, int]) -> RecoveredQueue:
    """A queue with messages from a sequence to before another one, that have failed so many times."""
    queue = RecoveredQueue(1, "q", "{}", 100)
    for first, last, attempts in stretches:
        queue.runs.append(Run(Batch(b"", None, last - first, 10), 0, last - first, first, attempts))
    return queue


def restored(
    queue: RecoveredQueue,
    *kept: KeptLock,
    holders: tuple[Holder, ...] = (),
    reserved: tuple[list[tuple[int, int]], ...] = (),
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int, int]]]:
    """(number, sequence, count) of the deliveries, and the ends of their locks."""
    locks, all_holders = Mock(before=lambda number: kept), list(holders)
    taken = Restore((), 0, reserved=dict(enumerate(reserved)))
    ends = lock_holders(queue, locks, all_holders, taken, count(7).__next__, NOW_MS)
    new = all_holders[len(holders) :]
    return [each for holder in new for each in holder.deliveries], ends


def lock(sequence: int, length: int, number: int = 0, attempts: int = 0, left_ms: int = 30_000) -> KeptLock:
    return KeptLock(sequence, number, length, KEY, attempts, NOW_MS + left_ms, counts=False, left_ms=left_ms)


def test_each_message_that_has_the_attempts_of_its_lock_is_locked() -> None:
    queue = found((0, 10, 0), (10, 20, 1), (30, 40, 0))
    deliveries, ends = restored(queue, lock(5, 30), lock(50, 3, number=90))
    assert deliveries == [(0, 5, 5), (25, 30, 5)]
    assert ends == [(NOW_MS + 30_000, 7, 0, 5), (NOW_MS + 30_000, 7, 25, 30)]


def test_of_locks_that_had_ended_those_of_prepared_transactions_have_their_ends() -> None:
    kept = lock(0, 4), lock(4, 8, number=4, left_ms=-5), lock(12, 2, number=12, left_ms=0)
    deliveries, ends = restored(found((0, 20, 0)), *kept, reserved=([(3, 5), (7, 9)], [(13, 14)]))
    assert deliveries == [(0, 0, 5), (7, 7, 2), (13, 13, 1)]
    assert ends == [
        (NOW_MS + 30_000, 7, 0, 4),
        (NOW_MS - 5, 7, 4, 5),
        (NOW_MS - 5, 7, 7, 9),
        (NOW_MS, 7, 13, 14),
    ]


def test_deliveries_of_a_link_that_the_store_has_stay_its_own() -> None:
    """The file of locks lagged behind: the lock had ended, and the message was delivered again."""
    holder = Holder(1, ConsumerOptions(), 2, [(0, 8, 1), (1, 10, 3)])
    deliveries, _ = restored(found((0, 20, 0)), lock(7, 5), holders=(holder,))
    assert deliveries == [(0, 7, 1), (2, 9, 1)]


@pytest.mark.parametrize(
    ("until_ms", "left_ms", "expected_ms"),
    [
        (NOW_MS + 30_000, 50_000, NOW_MS + 30_000),
        (NOW_MS + 1, 50_000, NOW_MS + LOCKED_AFTER_START_MS),
        (NOW_MS + 3_600_000, 50_000, NOW_MS + 50_000),  # the clock was set back
    ],
)
def test_no_lock_is_longer_than_it_was_or_too_short_to_renew(
    until_ms: int, left_ms: int, expected_ms: int
) -> None:
    _, ends = restored(found((0, 9, 0)), lock(0, 2, left_ms=left_ms)._replace(until_ms=until_ms))
    assert ends == [(expected_ms, 7, 0, 2)]
