"""Contents: all messages of a queue for an export, wherever they are stored."""

from collections.abc import Iterator
from itertools import chain

from lightrail.shard.effects.performer import Performer
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue


class Contents:
    """The messages of one queue: ready, delayed, in flight, and dead letters that are not written yet."""

    __slots__ = ("_performer", "queue")

    def __init__(self, queue: Queue, performer: Performer) -> None:
        self.queue = queue
        self._performer = performer

    def lines(self) -> list[Ready]:
        """The lines of ready and, if there is one, of delayed messages."""
        return self.queue.view.lines

    def others(self) -> Iterator[Run]:
        """Messages in flight, and dead letters that the store had no room for: those are in no queue yet."""
        for consumer in self.queue.view.consumers:
            yield from consumer.in_flight.runs[consumer.in_flight.head :]
        for queue, effect in self._performer.dead_letters.unwritten:
            if queue is self.queue:
                yield effect.run

    def runs(self) -> list[Run]:
        """All runs, by sequence."""
        runs = list(chain(*(runs_from(line, 0) for line in self.lines()), self.others()))
        runs.sort(key=sequence_of)
        return runs

    @property
    def lowest(self) -> int:
        """The lowest sequence in the queue; of an empty queue, the one of its next message."""
        first = [next(runs_from(line, 0), None) for line in self.lines()]
        sequences = [run.sequence for run in chain(first, self.others()) if run is not None]
        return min(sequences, default=self.queue.view.next_sequence)


def runs_from(line: Ready, first: int) -> Iterator[Run]:
    """The runs of a line from the one on that ends after a sequence; holes are skipped."""
    runs = line.runs
    for index in range(line.index(first), len(runs)):
        run = runs[index]
        if run.last > run.first:
            yield run


def sequence_of(run: Run) -> int:
    return run.sequence
