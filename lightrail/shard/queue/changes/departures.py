"""Departures: what becomes of the deliveries of a consumer that detaches.

They return to the queue, by the rule of whose fault a redelivery is (ADR 5), or stay locked under a key until
they are settled or the lock ends (ADR 68).
"""

from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.outcomes import Outcomes, is_much
from lightrail.shard.queue.changes.removals import fails_oldest, outcome_of_rest
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.ends import Blame
from lightrail.shard.queue.timed.lock_changes import within
from lightrail.shard.queue.values.commands import FAILED, RELEASED
from lightrail.shard.queue.values.effects import Effect
from lightrail.shard.queue.values.runs import Run


def depart(
    contents: Contents,
    outcomes: Outcomes,
    consumer: Consumer,
    ending: Ending,
    now_ms: int,
    effects: list[Effect],
    *,
    has_timed_out: bool = False,
) -> None:
    """Keeps or returns the deliveries of a consumer that has detached.

    With a session, its deferred messages return; if the time of its lock has ended, they have failed.
    """
    for each in contents.locks.of_sessions.pop(consumer.id, ()):
        outcome = FAILED if has_timed_out else RELEASED
        outcomes.settle(each, each.in_flight.everything(), outcome, now_ms, effects)
        contents.locks.settled(each)
    if not contents.locks.detached(consumer):
        _return(outcomes, consumer, ending, now_ms, effects)
        return
    options, line = consumer.options, consumer.in_flight
    if options.lock_ends is LockEnding.BY_TIME:
        fails = fails_oldest(options.default_outcome, ending)
        consumer.blame = Blame(line.keys[line.head] if fails else None)
        if fails:
            contents.locks.note(consumer, line.keys[line.head], line.keys[line.head] + 1)
    if endless := _endless(contents, consumer):
        outcome = outcome_of_rest(options.default_outcome, ending)
        outcomes.settle(consumer, endless, outcome, now_ms, effects)
        contents.locks.settled(consumer)
    contents.locks.pack()


def _endless(contents: Contents, consumer: Consumer) -> list[Run]:
    """Takes out the deliveries whose locks have no end, as their queue had no lock time before."""
    found: list[Run] = []
    for first, last, until_ms in [] if consumer.ends is None else list(contents.locks.parts(consumer)):
        if not until_ms:
            stops = [*within(consumer.renewed, first, last), last]
            for start, stop in zip([first, *(number + 1 for number in stops)], stops, strict=False):
                found += consumer.in_flight.take(start, stop)
    return found


def _return(
    outcomes: Outcomes, consumer: Consumer, ending: Ending, now_ms: int, effects: list[Effect]
) -> None:
    line = consumer.in_flight
    if len(line) and fails_oldest(consumer.options.default_outcome, ending):
        oldest = line.keys[line.head]
        outcomes.settle(consumer, line.take(oldest, oldest + 1), FAILED, now_ms, effects)
    outcome = outcome_of_rest(consumer.options.default_outcome, ending)
    if is_much(consumer):
        outcomes.return_later(consumer, outcome)
    else:
        outcomes.settle(consumer, line.everything(), outcome, now_ms, effects)
