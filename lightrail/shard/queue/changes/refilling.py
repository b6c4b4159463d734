"""Refilling: what was read from disk is in memory again, and what could not be read leaves the queue."""

from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.outcomes import Outcomes
from lightrail.shard.queue.changes.removals import removed
from lightrail.shard.queue.values.commands import Fetched
from lightrail.shard.queue.values.effects import Effect, Fetch, Reason


def refill(
    contents: Contents, outcomes: Outcomes, command: Fetched, now_ms: int, effects: list[Effect]
) -> None:
    """Applies a Fetched: outcomes and the order that waited for the bytes go on."""
    deliveries = contents.deliveries
    missing = False
    if len(contents.deferred):
        missing = outcomes.resume(command, now_ms, effects)
    special = contents.special
    if special is not None and special.loading.is_active and deliveries.evicted_count:
        unread, again = special.loading.learn(command)
        missing |= again
        for run in unread:
            deliveries.leave(run)
            contents.counters.lost += run.count
            contents.states.count -= run.count * run.is_state
            effects.append(removed(run, Reason.LOST))
    if special is not None:
        special.fetched()
    came, lost = contents.eviction.fill(command, now_ms, missing=missing)
    if len(contents.deferred):
        effects.extend(Fetch(run) for run in contents.deferred.wanted())
    is_joined = contents.eviction.joins or (special is not None and special.loading.is_active)
    for run in came:
        if is_joined or (run.batch.expires_at_ms or now_ms + 1) <= now_ms:
            # A run on disk has one entry, for its earliest deadline; a single message that was read
            # before has its own, until it was due.
            contents.deadlines.add(run)
    for run in lost:
        contents.counters.lost += run.count
        if special is not None:
            special.lost(run)
        if deliveries.order is not None:
            deliveries.order.removed(run)
        effects.append(removed(run, Reason.LOST))
