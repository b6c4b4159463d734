"""Moves dead letters from their queue to its dead-letter queue."""

import logging
from collections.abc import Callable

from lightrail.journal import record
from lightrail.journal.record import CONTINUED, SPILLED, Settle
from lightrail.model.names import dead_letter_name
from lightrail.shard.journal.record import Append, size_of
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values import effects
from lightrail.shard.queue.values.runs import Batch
from lightrail.shard.queues.dead_letters import dead_letter_batch
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts

log = logging.getLogger("lightrail.shard.effects.performer")


class DeadLettering:
    """Moves dead letters, and retries those for which the store had no room.

    Args:
        enqueue: adds a batch with an appended record to a queue.
    """

    __slots__ = ("_counts", "_enqueue", "_queues", "_store", "unwritten")

    def __init__(
        self, queues: Queues, store: Store, counts: ShardCounts, enqueue: Callable[[Queue, Batch, int], None]
    ) -> None:
        self._queues = queues
        self._store = store
        self._counts = counts
        self._enqueue = enqueue
        self.unwritten: list[tuple[Queue, effects.DeadLetter]] = []
        """Dead letters for which the store had no room: in no queue in memory, on disk still in the first."""

    def move(self, queue: Queue, effect: effects.DeadLetter, now_ms: int) -> None:
        """Moves messages to `NAME/$dlq`, annotated with the reason: one group in the journal."""
        run = effect.run
        count = run.last - run.first
        target = self._queues.get(dead_letter_name(queue.name), now_ms)
        if target is None:
            self._postpone(queue, effect, "its dead-letter queue could not be created")
            return
        batch = dead_letter_batch(run, queue.name, effect, now_ms)
        durable = batch.durable
        if durable or queue.captured or target.captured:
            copied = Append(
                [(target.id, target.view.next_sequence)],
                *(0, 0, batch, 0, count),
                flags=CONTINUED if durable else CONTINUED | SPILLED,
            )
            settled = Settle(
                queue.id, [(run.sequence, run.end)], record.Outcome.DEAD_LETTERED, str(effect.reason)
            )
            try:
                if not self._store.is_group_open:
                    # A transaction has reserved room for all of its group.
                    self._store.reserve(size_of([copied, settled]), now_ms)
                batch.location, _ = [self._store.append(each, now_ms) for each in (copied, settled)]
            except StoreError as error:
                self._postpone(queue, effect, str(error))
                return
        location = run.batch.location
        if location is not None:
            self._store.release(location.segment, run.size)
        if run.sequence < queue.recovered_to:
            target.repeated(count)
        reasons = self._counts.dead_lettered
        reasons[effect.reason] = reasons.get(effect.reason, 0) + count
        self._enqueue(target, batch, now_ms)

    def _postpone(self, queue: Queue, effect: effects.DeadLetter, why: str) -> None:
        """Keeps messages that have left their queue and can't be written to the dead-letter queue now."""
        if not self.unwritten:
            log.error("dead letters of queue %s wait: %s", queue.name, why)
        self._counts.store_failures += 1
        self.unwritten.append((queue, effect))

    def write_again(self, now_ms: int) -> None:
        """Tries again to move the dead letters for which the store had no room."""
        unwritten, self.unwritten = self.unwritten, []
        for queue, effect in unwritten:
            self.move(queue, effect, now_ms)

    def forget(self, queue: Queue) -> None:
        """Drops the unwritten dead letters of a queue that was deleted."""
        for source, effect in self.unwritten:
            location = effect.run.batch.location
            if source is queue and location is not None:
                self._store.release(location.segment, effect.run.size)
        self.unwritten = [each for each in self.unwritten if each[0] is not queue]
