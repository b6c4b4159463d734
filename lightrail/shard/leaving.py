"""Leaving: very many messages that are in no queue any more, and whose ends have yet to be written down.

A purge empties its queue at once, and so does the end of a queue. What each message costs beyond that (its
share of a segment, its range in a record of settlements, its memory) is paid in pieces, one in each step.
Whoever asked for a purge is answered when the last piece is on disk; after a crash before that, those
messages are in the queue again whose pieces were not written.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from lightrail.shard.journal.store import Store
from lightrail.shard.queue.effects import Reason, Removed
from lightrail.shard.queue.runs import Run
from lightrail.shard.queue.work import Work
from lightrail.shard.shard_queue import Queue


class Remover(Protocol):
    """Who writes down what left its queue; `Performer` is one."""

    def removed(self, queue: Queue, effect: Removed) -> None: ...


class Departure:
    """What left one queue at once."""

    __slots__ = ("is_deleted", "queue", "runs", "then")

    def __init__(self, queue: Queue, runs: list[Run], *, is_deleted: bool) -> None:
        self.queue = queue
        self.runs = runs
        """The next one last."""
        self.is_deleted = is_deleted
        """The end of the queue itself is in the journal: there is nothing to write of its messages."""
        self.then: list[Callable[[], None]] = []
        """Called when nothing is left."""


class Leaving:
    """All departures of a shard, the first one first."""

    __slots__ = ("_performer", "_purged", "_store", "_work", "departures")

    def __init__(self, performer: Remover, store: Store, work: Work) -> None:
        self.departures: deque[Departure] = deque()
        """Under way; empty for nearly every step."""
        self._purged: dict[Queue, list[Departure]] = {}
        """Those of queues that are still here."""
        self._performer = performer
        self._store = store
        self._work = work

    def has(self, queue: Queue) -> bool:
        """Whether messages leave that were purged from this queue."""
        return queue in self._purged

    def purged(self, queue: Queue, runs: list[Run]) -> None:
        """These were purged, by rising sequences."""
        runs.reverse()
        departure = Departure(queue, runs, is_deleted=False)
        self.departures.append(departure)
        self._purged.setdefault(queue, []).append(departure)

    def deleted(self, queue: Queue, runs: list[Run]) -> None:
        """The queue is deleted, with all of these."""
        for each in self._purged.pop(queue, ()):
            each.is_deleted = True
        if runs:
            self.departures.append(Departure(queue, runs, is_deleted=True))
            self.go_on()

    def when_left(self, queue: Queue, call: Callable[[], None]) -> None:
        """Calls when nothing of the queue leaves any more: now, or in a later step."""
        purged = self._purged.get(queue)
        if purged:
            purged[-1].then.append(call)
        else:
            call()

    def go_on(self) -> None:
        """Another piece, as large as the work of this turn allows."""
        work = self._work
        while self.departures and work.left > 0:
            departure = self.departures[0]
            runs = departure.runs
            count = min(len(runs), work.left)
            work.left -= count
            for _ in range(count):
                run = runs.pop()
                if not departure.is_deleted:
                    gone = Removed(run.batch, run.sequence, run.end, run.size, Reason.PURGED)
                    self._performer.removed(departure.queue, gone)
                elif run.batch.place is not None:
                    self._store.release(run.batch.place.segment, run.size)
            if not runs:
                self.departures.popleft()
                if not departure.is_deleted:
                    self._purged[departure.queue].remove(departure)
                    if not self._purged[departure.queue]:
                        del self._purged[departure.queue]
                for call in departure.then:
                    call()
