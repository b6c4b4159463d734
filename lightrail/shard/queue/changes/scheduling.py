"""Scheduling: messages that transactions add under numbers that were taken before, and those they cancel."""

from bisect import bisect_right
from collections.abc import Sequence

from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.order.keyed import Delays
from lightrail.shard.queue.values.effects import Effect, Stored
from lightrail.shard.queue.values.schedules import (
    EnqueueUnder,
    Release,
    ScheduleCommand,
    TakeNumbers,
    Withhold,
)


def apply(contents: Contents, command: ScheduleCommand, effects: list[Effect]) -> None:
    """Applies a command. Raises ValueError: the queue has no delayed messages to add others to."""
    delays = delays_of(contents)
    match command:
        case TakeNumbers():
            contents.next_sequence += command.wanted
            if contents.deliveries.order is not None:
                contents.deliveries.order.enqueued(contents.next_sequence)
        case EnqueueUnder():
            _enqueue(contents, command, effects)
        case Withhold() if delays is not None:
            delays.withheld |= dict.fromkeys(command.sequences)
        case Release() if delays is not None:
            delays.release(command.sequences)


def delays_of(contents: Contents) -> Delays | None:
    """The delayed messages; None for a queue without delays."""
    return None if contents.special is None else contents.special.delays


def are_free(contents: Contents, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether sequences were taken, and no message has one of them.

    Args:
        ranges: first and before last, in rising order and apart.
    """
    firsts = [first for first, _ in ranges]
    if ranges[-1][1] > contents.next_sequence:
        return False
    if any(line.find(*each) >= 0 for line in (contents.ready, contents.delayed) for each in ranges):
        return False
    for consumer in contents.consumers:
        # Their keys are numbers of deliveries: all runs are looked at, once for all ranges.
        for run in consumer.in_flight.runs[consumer.in_flight.head :]:
            index = bisect_right(firsts, run.end - 1) - 1
            if index >= 0 and run.sequence < ranges[index][1]:
                return False
    return True


def _enqueue(contents: Contents, command: EnqueueUnder, effects: list[Effect]) -> None:
    batch, special = command.batch, contents.special
    if special is None or special.delays is None:
        raise ValueError("expected a queue with delays")
    run = special.enqueue_under(batch, command.sequence, special.delays)
    contents.counters.enqueued += batch.count
    if batch.expires_at_ms is not None:
        contents.deadlines.add(run)
    effects.append(Stored(run))
