"""The shard's memory and disk: what flows to disk above the memory mark, what the cleaner writes again."""

import logging

from lightrail.model import limits
from lightrail.shard.journal.record import REWRITTEN, SPILLED, Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.memory import Memory
from lightrail.shard.performer import Performer
from lightrail.shard.queue.runs import Run
from lightrail.shard.queues import Queue, Queues
from lightrail.telemetry.families import ShardCounts

log = logging.getLogger("lightrail.shard.housekeeping")


class Housekeeping:
    """Keeps memory below its mark and the disk within its factor; both in pieces, between other work."""

    __slots__ = ("_counts", "_performer", "_queues", "_spill_failed", "_store", "memory")

    def __init__(
        self, queues: Queues, store: Store, counts: ShardCounts, memory_mark: int, performer: Performer
    ) -> None:
        self._queues = queues
        self._store = store
        self._counts = counts
        self._performer = performer
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
        """Some of the oldest segment's live messages are written again at the tail; without any, it goes.

        Asked after each commit, in pieces, so that cleaning never holds up what comes and goes. What is
        live is asked for anew each time: what was settled in between must not be written again.
        """
        segment = self._store.oldest_to_clean()
        if segment is None or self._in_use(segment):
            return
        left = limits.CLEAN_BYTES
        for queue in self._queues:
            for run in queue.machine.runs_in(segment):
                if left <= 0:
                    return
                left -= run.size
                try:
                    self._rewrite(queue, run, now_ms)
                except StoreError as error:
                    self._counts.store_failures += 1
                    log.error("segment %d could not be cleaned: %s", segment, error)
                    return
        if left == limits.CLEAN_BYTES:
            self._store.drop(segment)

    def _in_use(self, segment: int) -> bool:
        """Whether it is read now, is damaged, or has messages in no queue (see `Performer.unwritten`)."""
        if self._performer.reading.get(segment) or segment in self._performer.damaged:
            return True
        places = [effect.run.batch.place for _, effect in self._performer.unwritten]
        return any(place is not None and place.segment == segment for place in places)

    def _rewrite(self, queue: Queue, run: Run, now_ms: int) -> None:
        """The same messages at the tail of the journal, with the same sequences."""
        place = run.batch.place
        assert place is not None
        spilled = 0 if run.batch.durable else SPILLED
        pieces = [run]
        if run.batch.data is None:
            pieces = self._store.read(place, queue.id, run.sequence, run.end)
        for piece in pieces:
            piece.batch.place = place
            moved = self._store.append(
                Append(
                    [(queue.id, piece.sequence)],
                    0,
                    0,
                    piece.batch,
                    piece.first,
                    piece.last,
                    run.attempts,
                    REWRITTEN | spilled,
                ),
                now_ms,
            )
            assert moved is not None
            queue.machine.relocate(piece, moved)
        self._store.release(place.segment, run.size)
