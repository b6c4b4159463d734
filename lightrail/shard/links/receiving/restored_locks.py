"""Restored locks: the locks of a recovered queue that outlive the process, as consumers without a link.

A lock is for a message that recovery has found with the attempts that it had when it was locked: any other
has failed, or was settled, since.
"""

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from lightrail.model.attempts import of_journal
from lightrail.model.links import LockEnding
from lightrail.shard.journal.kept_links import joined
from lightrail.shard.journal.store import RecoveredQueue
from lightrail.shard.queue.values.commands import ConsumerOptions, Holder
from lightrail.shard.queues.kept_locks import KeptLock
from lightrail.shard.queues.lock_file import KeptLocks

LOCKED_AFTER_START_MS: Final[int] = 10_000
"""The least time for which a restored lock lasts: clients could not settle or renew it meanwhile."""

Lock = tuple[int, int, int, int]
"""As in commands.Open."""


def lock_holders(
    found: RecoveredQueue,
    kept_locks: KeptLocks,
    holders: list[Holder],
    next_number: Callable[[], int],
    now_ms: int,
) -> list[Lock]:
    """Adds holders of the locks that outlive the process; returns when the locks end.

    Args:
        holders: the links that the store has.
    """
    kept, known = kept_locks.before(found.queue), {each.options.lock_key for each in holders}
    runs = sorted(found.runs, key=attrgetter("sequence"))
    firsts = [run.sequence for run in runs]
    by_key: dict[str, list[tuple[int, int, KeptLock]]] = {}
    for sequence, lock in kept.items():
        index = bisect_right(firsts, sequence) - 1
        run = runs[index] if index >= 0 else None
        if run is None or sequence >= run.end or of_journal(run.attempts) != lock.attempts:
            continue
        if lock.key.key not in known:
            by_key.setdefault(lock.key.key, []).append((lock.number, sequence, lock))
    ends: list[Lock] = []
    for locks in by_key.values():
        holder = _holder(next_number(), locks)
        holders.append(holder)
        for number, _, lock in locks:
            until_ms = max(lock.until_ms, now_ms + LOCKED_AFTER_START_MS)
            if ends and ends[-1][:2] == (until_ms, holder.consumer) and ends[-1][3] == number:
                ends[-1] = (until_ms, holder.consumer, ends[-1][2], number + 1)
            else:
                ends.append((until_ms, holder.consumer, number, number + 1))
    return ends


def _holder(number: int, locks: list[tuple[int, int, KeptLock]]) -> Holder:
    locks.sort()
    after = locks[-1][0] + 1
    # The lock time of the link may have changed.
    key = max((lock.key for _, _, lock in locks), key=attrgetter("lock_ms"))
    options = ConsumerOptions(first=after, lock_ms=key.own_lock_ms, lock_key=key.key, lock_ends=key.lock_ends)
    blame = None
    if key.lock_ends is LockEnding.BY_TIME:
        blame = (None, [number for number, _, lock in locks if lock.counts])
    return Holder(
        number,
        options,
        after,
        joined([(number, sequence, 1) for number, sequence, _ in locks]),
        lock_ms=key.lock_ms,
        departed=True,
        blame=blame,
    )
