"""Aside: messages of one queue that are set aside for no consumer, such as the deferred ones.

A receiver defers a message by its outcome; the message is delivered only to requests with its sequence. From
then on the bit `DEFERRED` is in its attempts, also after a restart, a move, or a failed delivery, so that the
message returns here and not to the ready ones.

Deferred messages are in flight, under their sequences, at an internal consumer without a link: so they are
spilled, fetched, moved and counted against bounds like all deliveries.

`Retries` are the messages that wait after a failed delivery (ADR 53). Like deferred messages they are in
flight, under their sequences, at an internal consumer without a link, and the time until which they wait is
in their attempts. They are locked for this consumer until then: the end of the lock makes them ready
(outcomes.py).
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lightrail.model.attempts import waits_until_ms
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.merging import parts_of, slim, whole
from lightrail.shard.queue.lines.ready import one_run
from lightrail.shard.queue.values.commands import ConsumerOptions
from lightrail.shard.queue.values.runs import Run

NOBODY: Final = -2
"""The number of the internal consumer that has the deferred messages."""
NOBODY_WITH_STATES: Final = -3
"""The number of the one that has the states of sessions (states.py)."""


@dataclass(slots=True, eq=False, repr=False)
class Aside:
    """Deferred messages, or states, by sequence. Callers keep the sums of deliveries."""

    _identity: int = NOBODY
    _consumer: Consumer | None = None
    count: int = 0
    """Number of messages."""

    @property
    def consumer(self) -> Consumer:
        """The internal consumer; made at its first use, as most queues never need it."""
        if self._consumer is None:
            self._consumer = Consumer(self._identity, ConsumerOptions(), None)
        return self._consumer

    def __len__(self) -> int:
        """Number of runs."""
        return 0 if self._consumer is None else len(self._consumer.in_flight)

    def __iter__(self) -> Iterator[Run]:
        if self._consumer is not None:
            line = self._consumer.in_flight
            yield from line.runs[line.head :]

    @property
    def lowest(self) -> int | None:
        """The lowest sequence; None if no message is deferred."""
        if not len(self):
            return None
        line = self.consumer.in_flight
        return line.keys[line.head]

    def add(self, run: Run) -> None:
        """Sets a run aside; parts of one batch that follow each other become one again."""
        self.count += run.count
        line = self.consumer.in_flight
        index = bisect_right(line.keys, run.sequence, line.head)
        if run.batch.data is not None:
            line.evicted_to = min(line.evicted_to, run.sequence)
            before = line.runs[index - 1] if index > line.head else None
            if before is not None and one_run(before, run):
                line.runs[index - 1] = Run(
                    run.batch, before.first, run.last, before.sequence, run.attempts, run.barred
                )
                line.evicted_to = min(line.evicted_to, before.sequence)
                return
            run = slim(run)
        line.keys.insert(index, run.sequence)
        line.runs.insert(index, run)

    def take(self, sequence: int) -> Run | None:
        """Removes and returns a single message; None if it is not deferred."""
        line = self.consumer.in_flight
        index = line.index(sequence)
        if index == len(line.runs) or line.keys[index] > sequence:
            return None
        run = line.runs[index]
        kept: list[Run] = []
        if sequence > run.sequence:
            before, run = parts_of(run, sequence - run.sequence)
            kept.append(before)
        if run.count > 1:
            run, behind = parts_of(run, 1)
            kept.append(behind)
        line.replace(index, index + 1, [each.sequence for each in kept], kept)
        self.count -= 1
        return run

    def take_between(self, first: int, last: int) -> list[Run]:
        """Removes and returns the messages with sequences from `first` to before `last`."""
        line = self.consumer.in_flight
        start = stop = line.index(first)
        kept: list[Run] = []
        taken: list[Run] = []
        while stop < len(line.runs) and line.keys[stop] < last:
            run = line.runs[stop]
            stop += 1
            if run.sequence < first:
                before, run = parts_of(run, first - run.sequence)
                kept.append(before)
            if run.end > last:
                run, behind = parts_of(run, last - run.sequence)
                kept.append(behind)
            taken.append(run)
            self.count -= run.count
        if stop > start:
            line.replace(start, stop, [each.sequence for each in kept], kept)
        return taken

    def everything(self) -> list[Run]:
        """Removes and returns all messages."""
        runs = self.consumer.in_flight.everything()
        self.consumer.in_flight.evicted_to = 0
        self.count = 0
        return runs


NOBODY_WITH_RETRIES: Final = NOBODY_WITH_STATES - 1
"""The number of the internal consumer that has the waiting messages."""


class Retries(Aside):
    """Waiting messages by sequence. Callers keep the sums of deliveries."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NOBODY_WITH_RETRIES)

    def take_ended(self, first: int, last: int, now_ms: int) -> list[Run]:
        """Removes and returns the messages from `first` to before `last` that wait no longer than until now.

        Others have failed again since, or the policy has changed; another lock ends their wait.
        """
        ended: list[Run] = []
        for run in self.consumer.in_flight.take(first, last):
            self.count -= run.count
            if waits_until_ms(run.attempts) <= now_ms:
                ended.append(run)
            else:
                self.add(run)
        return ended


def ready_again(run: Run, *, singles: bool) -> Iterator[Run]:
    """The same messages, waiting no longer.

    Args:
        singles: whether messages whose sizes are not known become separate runs, as the queue needs them.
    """
    run = run.until(0)
    if singles and run.batch.ends is None:
        for index in range(run.count):
            yield whole(run.cut(index, index + 1))
    else:
        yield run
