"""Restored locks: the locks of a recovered queue that outlive the process, as consumers without a link.

A lock is for a message that recovery has found with the attempts that it had when it was locked: any other
has failed, or was settled, since.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

from lightrail.model.attempts import of_journal
from lightrail.model.links import LockEnding
from lightrail.shard.journal.kept_links import joined
from lightrail.shard.journal.store import RecoveredQueue
from lightrail.shard.queue.values.commands import ConsumerOptions, Holder, Restore
from lightrail.shard.queues.kept_locks import KeptLine, KeptLock
from lightrail.shard.queues.lock_file import KeptLocks

LOCKED_AFTER_START_MS: Final[int] = 10_000
"""The least time for which a restored lock lasts: clients could not settle or renew it meanwhile."""

Lock = tuple[int, int, int, int]
"""As in commands.Open."""


def lock_holders(
    found: RecoveredQueue,
    kept_locks: KeptLocks,
    holders: list[Holder],
    reserved: Restore,
    next_number: Callable[[], int],
    now_ms: int,
) -> list[Lock]:
    """Adds holders of the locks that outlive the process; returns when the locks end.

    Args:
        holders: the links that the store has. Their deliveries are theirs: the file may lag behind.
        reserved: has the messages of the queue that prepared transactions have: their locks end after a
            rollback.
    """
    kept = kept_locks.before(found.queue)
    if not kept:
        return []
    known = {each.options.lock_key for each in holders}
    by_key: dict[str, list[KeptLock]] = {}
    line = KeptLine([*kept])
    for _, sequence, count in [each for holder in holders for each in holder.deliveries]:
        line.put(sequence, sequence + count, None)
    ended = KeptLine([lock for lock in line.locks if lock.left_ms <= 0])
    for lock in ended.locks[:]:
        line.put(lock.sequence, lock.end, None)
    for first, last in chain(*reserved.reserved.values()) if ended.locks else ():
        for lock in ended.between(first, last):
            line.put(lock.sequence, lock.end, lock)
    for lock in _present(found, line.locks):
        if lock.key.key not in known:
            by_key.setdefault(lock.key.key, []).append(lock)
    ends: list[Lock] = []
    for locks in by_key.values():
        holder = _holder(next_number(), locks)
        holders.append(holder)
        for lock in locks:
            # The clock of the machine may have been set back since, and no lock becomes longer by that.
            until_ms = min(lock.until_ms, now_ms + lock.left_ms)
            if lock.left_ms > 0:
                until_ms = max(until_ms, now_ms + LOCKED_AFTER_START_MS)
            ends.append((until_ms, holder.consumer, lock.number, lock.number + lock.length))
    return ends


def _present(found: RecoveredQueue, kept: Sequence[KeptLock]) -> Iterator[KeptLock]:
    """The parts of locks that are for messages of the queue with the attempts that these had."""
    runs = sorted(found.runs, key=attrgetter("sequence"))
    firsts = [run.sequence for run in runs]
    for lock in kept:
        for run in runs[max(0, bisect_right(firsts, lock.sequence) - 1) : bisect_left(firsts, lock.end)]:
            first, last = max(lock.sequence, run.sequence), min(lock.end, run.end)
            if first < last and of_journal(run.attempts) == lock.attempts:
                yield lock.part(first, last)


def _holder(number: int, locks: list[KeptLock]) -> Holder:
    locks.sort(key=attrgetter("number"))
    after = locks[-1].number + locks[-1].length
    # The lock time of the link may have changed.
    key = max((lock.key for lock in locks), key=attrgetter("lock_ms"))
    options = ConsumerOptions(first=after, lock_ms=key.own_lock_ms, lock_key=key.key, lock_ends=key.lock_ends)
    blame = None
    if key.lock_ends is LockEnding.BY_TIME:
        counting = [lock for lock in locks if lock.counts]
        blame = (None, [each for lock in counting for each in range(lock.number, lock.number + lock.length)])
    return Holder(
        number,
        options,
        after,
        joined([(lock.number, lock.sequence, lock.length) for lock in locks]),
        lock_ms=key.lock_ms,
        departed=True,
        blame=blame,
    )
