"""Deferred: outcomes of deliveries that are only on disk, and whose messages have to be read for the outcome.

A dead letter is written with its reason, and annotations are merged into the message: both need its bytes.
Until these are read, the messages stay in flight at an internal consumer, which can't be settled, and their
outcome is not in the journal: after a crash they are ready again, as if they had not been settled.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.lines.line import InFlight
from lightrail.shard.queue.memory.disk import pieces_of
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.values.commands import ConsumerOptions, Fetched, Outcome
from lightrail.shard.queue.values.runs import Run

NOBODY = -1
"""The number of the consumer that has the deferred deliveries."""


@dataclass(slots=True)
class Deferral:
    """One outcome of consecutive messages."""

    consumer: Consumer
    """The consumer that the messages were delivered to."""
    holder: Consumer
    """The consumer that has them in flight for the queue's order."""
    outcome: Outcome
    left: int
    """Number of messages without the outcome."""
    unlocked: bool
    """Whether their lock expired before they were settled."""
    number: int
    """Number of the deferral, counted from 1 for each queue."""


class Resumed(NamedTuple):
    """Messages that were read and can get their outcome now."""

    consumer: Consumer
    holder: Consumer
    outcome: Outcome
    unlocked: bool
    run: Run
    """The run as it was on disk."""
    pieces: list[Run]
    """The messages that were read: all but lost ones."""


class DeferredLine(InFlight):
    """Deliveries that wait for their outcome: neighbours are one run only if they have the same one."""

    __slots__ = ("_firsts",)

    def __init__(self, firsts: list[int]) -> None:
        super().__init__()
        self._firsts = firsts
        """First sequences of the deferrals, in order."""

    def may_join(self, before: Run, after: Run) -> bool:
        return bisect_right(self._firsts, before.sequence) == bisect_right(self._firsts, after.sequence)


@dataclass(slots=True, eq=False, repr=False)
class Deferred:
    """The deferred outcomes of one queue, by sequence."""

    _eviction: Eviction
    _firsts: list[int] = field(default_factory=list)
    _consumer: Consumer | None = None
    _by_first: dict[int, Deferral] = field(default_factory=dict)
    number: int = 0
    """Number of the last deferral."""

    @property
    def consumer(self) -> Consumer:
        """The internal consumer of these messages, with their sequences as delivery numbers; made at first
        use, as most queues never need it."""
        if self._consumer is None:
            self._consumer = Consumer(NOBODY, ConsumerOptions(), None)
            self._consumer.in_flight = DeferredLine(self._firsts)
        return self._consumer

    def __len__(self) -> int:
        """Number of runs."""
        return 0 if self._consumer is None else len(self._consumer.in_flight)

    def __iter__(self) -> Iterator[Run]:
        if self._consumer is not None:
            line = self._consumer.in_flight
            yield from line.runs[line.head :]

    @property
    def oldest(self) -> int:
        """The lowest number of the remaining deferrals; above all numbers if there are none."""
        return next((each.number for each in self._by_first.values()), self.number + 1)

    def add(self, consumer: Consumer, run: Run, outcome: Outcome, *, unlocked: bool) -> None:
        """Defers an outcome for a run that is only on disk."""
        line = self.consumer.in_flight
        index = bisect_right(line.keys, run.sequence, line.head)
        line.keys.insert(index, run.sequence)
        line.runs.insert(index, run)
        self.number += 1
        self._firsts.insert(bisect_right(self._firsts, run.sequence), run.sequence)
        self._by_first[run.sequence] = Deferral(consumer, consumer, outcome, run.count, unlocked, self.number)

    def disown(self) -> None:
        """Removes the holders of these deliveries, because the queue is arranged by another policy."""
        for deferral in self._by_first.values():
            deferral.holder = self.consumer

    def wanted(self) -> list[Run]:
        """The next few runs to fetch, for which no fetch is under way."""
        room = self._eviction.head_bytes
        found: list[Run] = []
        for run in self:
            if self._eviction.ask(run):
                found.append(run)
            room -= run.size
            if room <= 0:
                break
        return found

    def fill(self, answer: Fetched) -> tuple[list[Resumed], bool]:
        """Removes the deliveries that were fetched.

        Returns:
            The removed deliveries, and whether some have to be fetched again.
        """
        asked = self._eviction.fetching.get(answer.sequence)
        end = max([run.end for run in answer.runs] + [asked or 0])
        line = self.consumer.in_flight
        index = line.index(answer.sequence)
        found: list[Resumed] = []
        missing = False
        for run in line.runs[index:]:
            if run.sequence >= end:
                break
            pieces = pieces_of(answer.runs, run)
            if sum(piece.count for piece in pieces) < run.count:
                is_lost = answer.damaged and run.sequence == answer.sequence and run.end == asked
                if not is_lost:
                    missing |= run.sequence == answer.sequence
                    continue
            of = self._take(run)
            found.append(Resumed(of.consumer, of.holder, of.outcome, of.unlocked, run, pieces))
        for resumed in found:
            line.take(resumed.run.sequence, resumed.run.end)
        return found, missing

    def _take(self, run: Run) -> Deferral:
        index = bisect_right(self._firsts, run.sequence) - 1
        first = self._firsts[index]
        deferral = self._by_first[first]
        deferral.left -= run.count
        if not deferral.left:
            del self._firsts[index], self._by_first[first]
        return deferral
