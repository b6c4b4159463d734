"""Leaving: settles very many messages in the journal that have already left their queue.

A purge or a deletion empties its queue at once. The remaining work for each message (its share of a segment,
its range in a record of settlements, its memory) is done in pieces, one in each step. A request to purge is
answered when the last piece is on disk; after an earlier crash, messages whose pieces were not written are in
the queue again.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from lightrail.shard.journal.store import Store
from lightrail.shard.queue.values.counters import Work
from lightrail.shard.queue.values.effects import Reason, Removed
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue


class Remover(Protocol):
    """Settles messages that left their queue; `Performer` is one."""

    def removed(self, queue: Queue, effect: Removed) -> None: ...


class Departure:
    """Messages that left one queue at once."""

    __slots__ = ("is_deleted", "queue", "runs", "then")

    def __init__(self, queue: Queue, runs: list[Run], *, is_deleted: bool) -> None:
        self.queue = queue
        self.runs = runs
        """Runs to settle; the next one is the last of the list."""
        self.is_deleted = is_deleted
        """Whether the journal has the deletion of the queue, so that its messages need no records."""
        self.then: list[Callable[[], None]] = []
        """Called when all messages are settled."""


class Leaving:
    """All departures of a shard, in order."""

    __slots__ = ("_performer", "_purged", "_store", "_work", "departures")

    def __init__(self, performer: Remover, store: Store, work: Work) -> None:
        self.departures: deque[Departure] = deque()
        """Departures under way; empty in nearly every step."""
        self._purged: dict[Queue, list[Departure]] = {}
        """Departures of queues that are not deleted."""
        self._performer = performer
        self._store = store
        self._work = work

    def has(self, queue: Queue) -> bool:
        """Whether purged messages of this queue are not settled yet."""
        return queue in self._purged

    def purged(self, queue: Queue, runs: list[Run]) -> None:
        """Settles purged messages, by rising sequences, in the next steps."""
        runs.reverse()
        departure = Departure(queue, runs, is_deleted=False)
        self.departures.append(departure)
        self._purged.setdefault(queue, []).append(departure)

    def deleted(self, queue: Queue, runs: list[Run]) -> None:
        """Releases the messages of a deleted queue in the next steps."""
        for each in self._purged.pop(queue, ()):
            each.is_deleted = True
        if runs:
            self.departures.append(Departure(queue, runs, is_deleted=True))
            self.go_on()

    def when_left(self, queue: Queue, call: Callable[[], None]) -> None:
        """Calls `call` when all purged messages of the queue are settled: now, or in a later step."""
        purged = self._purged.get(queue)
        if purged:
            purged[-1].then.append(call)
        else:
            call()

    def go_on(self) -> None:
        """Settles the next piece, as large as the work of this turn allows."""
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
                elif run.batch.location is not None:
                    self._store.release(run.batch.location.segment, run.size)
            if not runs:
                self.departures.popleft()
                if not departure.is_deleted:
                    self._purged[departure.queue].remove(departure)
                    if not self._purged[departure.queue]:
                        del self._purged[departure.queue]
                for call in departure.then:
                    call()
