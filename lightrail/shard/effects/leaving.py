"""Leaving: settles very many messages in the journal that have already left their queue.

A purge or a deletion empties its queue at once. The remaining work for each message (its share of a segment,
its range in a record of settlements, its memory) is done in pieces, one in each step. A request to purge is
answered when the last piece is on disk; after an earlier crash, messages whose pieces were not written are in
the queue again.

`DeadLettering` moves dead letters from their queue to its dead-letter queue, and scheduled messages that are
due to the end of their own.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from lightrail.journal import record
from lightrail.journal.record import CONTINUED, SPILLED, Settle
from lightrail.model.names import dead_letter_name
from lightrail.shard.journal.record import Append, size_of
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values import effects
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.effects import Reason, Removed
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.dead_letters import dead_letter_batch, due_batch
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts

if TYPE_CHECKING:
    from lightrail.shard.queues.queues import Queues

log = logging.getLogger("lightrail.shard.effects.performer")
Moved = effects.DeadLetter | effects.Due


@dataclass(slots=True, eq=False, repr=False)
class DeadLettering:
    """Moves dead letters and due messages, and retries those for which the store had no room.

    Args:
        enqueue: adds a batch with an appended record to a queue.
    """

    _queues: "Queues"
    _store: Store
    _counts: ShardCounts
    _enqueue: Callable[[Queue, Batch, int], None]
    unwritten: list[tuple[Queue, Moved]] = field(default_factory=list)
    """Messages for which the store had no room: in no queue in memory, on disk still in the first."""

    def move(self, queue: Queue, effect: Moved, now_ms: int) -> None:
        """Moves messages to `NAME/$dlq`, annotated with the reason, or due ones to the end of their queue.

        Both is one group in the journal, so that after a crash a message is in one of both places.
        """
        if isinstance(effect, effects.Due):
            batch = due_batch(effect.run, queue.view.policy.max_age_ms, now_ms)
            self._move(queue, effect, queue, batch, now_ms)
            return
        target = self._queues.get(dead_letter_name(queue.name), now_ms)
        if target is None:
            self._postpone(queue, effect, "its dead-letter queue could not be created")
            return
        batch = dead_letter_batch(effect.run, queue.name, effect, now_ms)
        if self._move(queue, effect, target, batch, now_ms):
            reasons = self._counts.dead_lettered
            reasons[effect.reason] = reasons.get(effect.reason, 0) + batch.count

    def _move(self, queue: Queue, effect: Moved, target: Queue, batch: Batch, now_ms: int) -> bool:
        """Adds the messages as a new batch to a queue; returns whether there was room on disk."""
        run = effect.run
        count = run.last - run.first
        outcome, reason = record.Outcome.DEAD_LETTERED, Reason.DUE
        if isinstance(effect, effects.Due):
            outcome = record.Outcome.PURGED
        else:
            reason = effect.reason
        durable = batch.durable
        if durable or queue.captured or target.captured:
            copied = Append(
                [(target.id, target.view.next_sequence)],
                *(0, 0, batch, 0, count),
                flags=CONTINUED if durable else CONTINUED | SPILLED,
            )
            settled = Settle(queue.id, [(run.sequence, run.end)], outcome, str(reason))
            try:
                if not self._store.is_group_open:
                    # A transaction has reserved room for all of its group.
                    self._store.reserve(size_of([copied, settled]), now_ms)
                batch.location, _ = [self._store.append(each, now_ms) for each in (copied, settled)]
            except StoreError as error:
                self._postpone(queue, effect, str(error))
                return False
        location = run.batch.location
        if location is not None:
            self._store.release(location.segment, run.size)
        if run.sequence < queue.recovered_to and target is not queue:
            target.repeated(count)
        self._enqueue(target, batch, now_ms)
        return True

    def _postpone(self, queue: Queue, effect: Moved, why: str) -> None:
        """Keeps messages that have left their queue and can't be written to the other one now."""
        if not self.unwritten:
            kind = "scheduled messages" if isinstance(effect, effects.Due) else "dead letters"
            log.error("%s of queue %s wait: %s", kind, queue.name, why)
        self._counts.store_failures += 1
        self.unwritten.append((queue, effect))

    def write_again(self, now_ms: int) -> None:
        """Tries again to move the messages for which the store had no room."""
        unwritten, self.unwritten = self.unwritten, []
        for queue, effect in unwritten:
            self.move(queue, effect, now_ms)

    def forget(self, queue: Queue) -> None:
        """Drops the unwritten messages of a queue that was deleted."""
        for source, effect in self.unwritten:
            location = effect.run.batch.location
            if source is queue and location is not None:
                self._store.release(location.segment, effect.run.size)
        self.unwritten = [each for each in self.unwritten if each[0] is not queue]


@dataclass(slots=True, eq=False, repr=False)
class Departure:
    """Messages that left one queue at once."""

    queue: Queue
    runs: list[Run]
    """Runs to settle; the next one is the last of the list."""
    _: KW_ONLY
    is_deleted: bool
    """Whether the journal has the deletion of the queue, so that its messages need no records."""
    then: list[Callable[[], None]] = field(default_factory=list)
    """Called when all messages are settled."""


@dataclass(slots=True, eq=False, repr=False)
class Leaving:
    """All departures of a shard, in order.

    Args:
        removed: settles messages that left their queue.
    """

    _removed: Callable[[Queue, Removed], None]
    _store: Store
    _work: TurnWork
    departures: deque[Departure] = field(default_factory=deque)
    """Departures under way; empty in nearly every step."""
    _purged: dict[Queue, list[Departure]] = field(default_factory=dict)
    """Departures of queues that are not deleted."""

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
            self.settle_more()

    def when_left(self, queue: Queue, call: Callable[[], None]) -> None:
        """Calls `call` when all purged messages of the queue are settled: now, or in a later step."""
        purged = self._purged.get(queue)
        if purged:
            purged[-1].then.append(call)
        else:
            call()

    def settle_more(self) -> None:
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
                    self._removed(departure.queue, gone)
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
