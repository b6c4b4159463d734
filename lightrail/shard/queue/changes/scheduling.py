"""Scheduling: messages that transactions add under numbers that were taken before, and those they cancel."""

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


def is_free(contents: Contents, first: int, last: int) -> bool:
    """Whether sequences from `first` to before `last` were taken, and no message has one of them."""
    if last > contents.next_sequence:
        return False
    lines = [contents.ready, contents.delayed]
    if any(line.find(first, last) >= 0 for line in lines):
        return False
    return not any(
        run.sequence < last and first < run.end
        for consumer in contents.consumers
        for run in consumer.in_flight.runs[consumer.in_flight.head :]
    )


def _enqueue(contents: Contents, command: EnqueueUnder, effects: list[Effect]) -> None:
    batch, special = command.batch, contents.special
    if special is None or special.delays is None:
        raise ValueError("expected a queue with delays")
    run = special.enqueue_under(batch, command.sequence, special.delays)
    contents.counters.enqueued += batch.count
    if batch.expires_at_ms is not None:
        contents.deadlines.add(run)
    effects.append(Stored(run))
