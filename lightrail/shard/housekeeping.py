"""The shard's memory and disk: what flows to disk above the memory mark, what the cleaner writes again."""

import logging

from lightrail.shard.cleaner import Cleaner
from lightrail.shard.journal.record import SPILLED, Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.memory import Memory
from lightrail.shard.performer import Performer
from lightrail.shard.queues import Queues
from lightrail.telemetry.families import ShardCounts

log = logging.getLogger("lightrail.shard.housekeeping")


class Housekeeping:
    """Keeps memory below its mark and the disk within its factor; both in pieces, between other work."""

    __slots__ = ("_cleaner", "_counts", "_spill_failed", "_store", "memory")

    def __init__(
        self, queues: Queues, store: Store, counts: ShardCounts, memory_mark: int, performer: Performer
    ) -> None:
        self._store = store
        self._counts = counts
        self._cleaner = Cleaner(queues, store, counts, performer)
        self._spill_failed = False
        self.memory = Memory(memory_mark)

    @property
    def stuck(self) -> bool:
        """Far above the mark, and what is in memory can't flow to disk: it is full, or receivers hold it."""
        memory = self.memory
        return memory.far_above_mark and (self._spill_failed or memory.held_bytes > 2 * memory.mark)

    def relieve(self, now_ms: int) -> None:
        """Above the memory mark: the longest queues keep their heads, the rest flows to disk."""
        failed = False
        head_bytes = self.memory.head_bytes
        for queue, wanted in self.memory.plan():
            machine = queue.machine
            machine.eviction.head_bytes = head_bytes
            for run in machine.spill_candidates(wanted):
                batch = run.batch
                try:
                    place = self._store.append(
                        Append(
                            [(queue.id, run.sequence)],
                            0,
                            0,
                            batch,
                            run.first,
                            run.last,
                            run.attempts,
                            SPILLED,
                        ),
                        now_ms,
                    )
                except StoreError as error:
                    self._counts.store_failures += 1
                    if not (failed or self._spill_failed):
                        # Said once: this is tried again with every turn.
                        log.error("queue %s could not flow to disk: %s", queue.name, error)
                    failed = True
                    break
                batch.place = place
            freed = machine.evict(wanted)
            if freed:
                self._counts.evictions += 1
                self._counts.evicted_bytes += freed
            self.memory.update(queue)
        self._spill_failed = failed

    def clean(self, now_ms: int) -> None:
        """See `Cleaner.clean`."""
        self._cleaner.clean(now_ms)
