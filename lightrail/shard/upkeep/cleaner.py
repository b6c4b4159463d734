"""The cleaner: appends the live messages of the oldest segment again at the tail, piece by piece.

It goes through the segment from its beginning, so that a message of several queues is found once for all of
them, and is written once with all its queues.

`Housekeeping` runs the cleaner, and spills messages above the memory mark.
"""

import logging
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from lightrail.journal.record import REWRITTEN, SPILLED
from lightrail.model import limits
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values.counters import TurnWork
from lightrail.shard.queue.values.policy import FLOW_TO_DISK
from lightrail.shard.queue.values.runs import Location, Run, ends_of
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts

CLEAN_RUNS: Final[int] = 1_000
"""Runs of messages that the cleaner rewrites between two commits."""

log = logging.getLogger("lightrail.shard.upkeep.cleaner")


Same = tuple[int, int, bytes, bytes]
"""What copies of messages in several queues have in common: offset, attempts, ends, bytes."""
Copy = list[tuple[Queue, Run]]
"""Messages to append once, for all queues that have them."""


@dataclass(slots=True, eq=False, repr=False)
class Cleaner:
    """Frees the oldest segment when the store requests it."""

    _queues: Queues
    _store: Store
    _counts: ShardCounts
    _performer: Performer
    _segment: int = -1
    _work: list[tuple[int, int, Queue, int, int]] = field(default_factory=list)
    """Live messages to append: (offset, bytes, queue, first sequence, last sequence), the next one
    last."""

    def clean(self, now_ms: int) -> None:
        """Appends some of the oldest segment's live messages again; drops the segment if there are none.

        Called after each commit, and works in pieces, so that cleaning does not delay senders and consumers.
        Live messages are looked up each time, because those that were settled meanwhile must not be appended
        again.
        """
        segment = self._store.oldest_to_clean()
        if segment is None or self._in_use(segment):
            return
        if segment != self._segment or not self._work:
            self._segment = segment
            self._work = self._list(segment)
            if not self._work:
                self._store.drop(segment, now_ms)
                return
        wanted = self._next_piece()
        try:
            self._rewrite(segment, wanted, now_ms)
        except StoreError as error:
            self._counts.store_failures += 1
            self._work.clear()
            log.error("segment %d could not be cleaned: %s", segment, error)

    def _list(self, segment: int) -> list[tuple[int, int, Queue, int, int]]:
        """All live messages of a segment, from its end to its beginning."""
        found = []
        for queue in self._queues.stored():
            for run in queue.footprint.runs_in(segment):
                location = run.batch.location
                assert location is not None
                found.append((location.offset, run.size, queue, run.sequence, run.end))
        found.sort(key=lambda each: each[0], reverse=True)
        return found

    def _next_piece(self) -> dict[Queue, list[tuple[int, int]]]:
        """Sequences by queue of the next piece; records are not split, unless they are in very many runs."""
        wanted: dict[Queue, list[tuple[int, int]]] = {}
        left, runs = limits.CLEAN_BYTES, CLEAN_RUNS
        offset = -1
        work = self._work
        while work and runs > 0 and (left > 0 or work[-1][0] == offset):
            offset, size, queue, first, last = work.pop()
            left -= size
            runs -= 1
            wanted.setdefault(queue, []).append((first, last))
        return wanted

    def _rewrite(self, segment: int, wanted: dict[Queue, list[tuple[int, int]]], now_ms: int) -> None:
        """Appends the messages at the tail of the journal, with the same sequences."""
        copies: dict[Same, list[Copy]] = {}
        moved: list[Run] = []
        for queue, ranges in wanted.items():
            if not self._queues.has(queue):
                continue  # The queue was deleted meanwhile.
            ranges.sort()
            seen: Counter[Same] = Counter()
            for run in queue.footprint.runs_in(segment):
                index = bisect_left(ranges, (run.end,)) - 1
                if index < 0 or ranges[index][1] <= run.sequence:
                    continue
                location = run.batch.location
                assert location is not None
                moved.append(run)
                pieces = [run]
                if run.batch.data is None:
                    pieces = self._store.read(location, queue.id, run.sequence, run.end)
                for piece in pieces:
                    _gather(copies, seen, queue, piece, run.attempts)
        moves: dict[Queue, list[tuple[Run, Location]]] = {}
        try:
            for group in copies.values():
                for copy in group:
                    self._write(copy, moves, now_ms)
        finally:
            for queue, found in moves.items():
                queue.footprint.relocate(found)
        for run in moved:
            self._store.release(segment, run.size)

    def _write(self, copy: Copy, moves: dict[Queue, list[tuple[Run, Location]]], now_ms: int) -> None:
        _, run = copy[0]
        flags = REWRITTEN if run.batch.durable else REWRITTEN | SPILLED
        targets = [(queue.id, mine.sequence) for queue, mine in copy]
        location = self._store.append(
            Append(targets, 0, 0, run.batch, run.first, run.last, run.attempts, flags), now_ms
        )
        assert location is not None
        for queue, mine in copy:
            moves.setdefault(queue, []).append((mine, location))

    def _in_use(self, segment: int) -> bool:
        """Whether a segment is read now, is damaged, or has messages in no queue (`Performer.unwritten`)."""
        if self._performer.leaving.departures:
            # Leaving messages may be in this segment; the next steps release all of them.
            return True
        if self._performer.reading.get(segment) or segment in self._performer.damaged:
            return True
        locations = [effect.run.batch.location for _, effect in self._performer.dead_letters.unwritten]
        return any(location is not None and location.segment == segment for location in locations)


def _gather(
    copies: dict[Same, list[Copy]], seen: Counter[Same], queue: Queue, piece: Run, attempts: int
) -> None:
    """Adds messages, which are in memory, to the copies of the same messages in other queues.

    Args:
        seen: how many equal pieces of this queue were added before; each is in a copy of its own.
    """
    piece = Run(piece.batch, piece.first, piece.last, piece.sequence, attempts, piece.barred)
    location = piece.batch.location
    assert location is not None
    blob = bytes(piece.batch.blob(piece.first, piece.last))
    key = (location.offset, attempts, bytes(ends_of(piece)), blob)
    group = copies.setdefault(key, [])
    if seen[key] == len(group):
        group.append([])
    group[seen[key]].append((queue, piece))
    seen[key] += 1


class Housekeeping:
    """Keeps memory below its mark and the disk within its factor, in small pieces between other work."""

    __slots__ = ("_bounds", "_cleaner", "_counts", "_forgets", "_spill_failed", "_store", "memory")

    def __init__(
        self, queues: Queues, store: Store, counts: ShardCounts, memory_mark: int, performer: Performer
    ) -> None:
        self._store = store
        self._counts = counts
        self._cleaner = Cleaner(queues, store, counts, performer)
        self._spill_failed = False
        self._bounds = False
        """Whether the log has that consumers get no more."""
        self._forgets = False
        """Whether the log has that message-ids are forgotten early."""
        self.memory = Memory(memory_mark)

    @property
    def stuck(self) -> bool:
        """Whether memory is above the mark and can't be spilled: the disk is full, or indexes use it."""
        memory = self.memory
        if memory.far_above_mark and (self._spill_failed or memory.held_bytes > 2 * memory.mark):
            return True
        return memory.is_stuck

    def relieve(self, now_ms: int) -> None:
        """Above the memory mark, spills the largest queues except their heads."""
        failed = False
        for queue in self.memory.parted():
            queue.footprint.slim()
            self.memory.update(queue)
        head_bytes = self.memory.head_bytes
        plan = self.memory.plan()
        for queue, wanted in plan:
            failed |= not self._spill_to(queue, wanted, head_bytes, now_ms, quiet=failed)
        for queue in self.memory.others({queue for queue, _ in plan}):
            surplus = self.memory.resident - self.memory.mark
            failed |= not self._spill_to(queue, surplus, head_bytes, now_ms, quiet=failed)
            if self.memory.resident > self.memory.mark and not failed:
                self.memory.asked[queue] = queue.resident, head_bytes.bit_length()
        for queue in self.memory.with_large_heads():
            failed |= not self._spill_head(queue, head_bytes, now_ms, quiet=failed)
        self._spill_failed = failed

    def _spill_to(self, queue: Queue, wanted: int, head_bytes: int, now_ms: int, *, quiet: bool) -> bool:
        """Spills `wanted` bytes of a queue, of which so many stay at its head; see `_spill`."""
        _keep_at_head(queue, head_bytes)
        return self._spill(queue, wanted, limits.RUN_BYTES, now_ms, quiet=quiet or self._spill_failed)

    def _spill_head(self, queue: Queue, head_bytes: int, now_ms: int, *, quiet: bool) -> bool:
        """Spills the batch at the head of a queue if it is larger than what may stay there; see `_spill`."""
        _keep_at_head(queue, head_bytes)
        run = queue.footprint.large_head()
        if run is None:
            return True
        if run.batch.location is None and not self._write(
            queue, run, now_ms, quiet=quiet or self._spill_failed
        ):
            return False
        self._note_evicted(queue.footprint.evict_head())
        self.memory.update(queue)
        return True

    def bound_consumers(self, work: TurnWork, consumers: int) -> None:
        """Sets or removes the bound of unsettled runs of each of so many consumers."""
        work.bound(self.memory.unsettled_runs_max(consumers))
        if work.is_bounded and not self._bounds:
            self._bounds = True
            log.warning(
                "unsettled and deferred messages use more than their %d bytes of this shard's memory: "
                "receivers with %d runs of them or more get no more until they have settled some",
                self.memory.unsettled_max,
                work.unsettled_runs_max,
            )

    def forget_ids(self) -> None:
        """Lets queues with many message-ids forget the oldest before the end of their window.

        Nothing but time would make room, so their senders would wait for hours.
        """
        for queue, count in self.memory.forgetting():
            queue.footprint.forget_ids(count)
            self.memory.update(queue)
            if not self._forgets:
                self._forgets = True
                log.warning(
                    "queue %s forgets message-ids before the end of its duplicate_window: expected at most "
                    "%d in all queues of this shard; a larger memory_mark has room for more",
                    queue.name,
                    self.memory.ids_max,
                )

    def keep_within(self, queue: Queue, now_ms: int) -> None:
        """Spills the messages of a queue with the overflow flow_to_disk above the queue's mark, at once."""
        own = own_mark(queue)
        if own is None:
            return
        footprint = queue.footprint
        footprint.head_bytes = min(footprint.head_bytes, own)
        surplus = footprint.message_bytes - own
        if surplus > 0 and not self._spill(queue, surplus, 0, now_ms, quiet=self._spill_failed):
            self._spill_failed = True

    def _spill(self, queue: Queue, wanted: int, batch_bytes: int, now_ms: int, *, quiet: bool) -> bool:
        """Spills `wanted` bytes of a queue; returns False if the store has no room for them.

        Args:
            batch_bytes: see `Eviction.evict`.
            quiet: whether not to log a failure that every turn repeats.
        """
        candidates = queue.footprint.spill_candidates(wanted, batch_bytes)
        written = all(self._write(queue, run, now_ms, quiet=quiet) for run in candidates)
        self._note_evicted(queue.footprint.evict(wanted, batch_bytes))
        self.memory.update(queue)
        return written

    def _write(self, queue: Queue, run: Run, now_ms: int, *, quiet: bool) -> bool:
        """Gives a run a location; returns False if the store has no room for it."""
        batch = run.batch
        record = Append(
            [(queue.id, run.sequence)],
            *(0, 0, batch, run.first, run.last, run.attempts),
            flags=REWRITTEN | SPILLED,
            spills=True,
        )
        try:
            batch.location = self._store.append(record, now_ms)
        except StoreError as error:
            self._counts.store_failures += 1
            if not quiet:
                log.error("queue %s could not be spilled to disk: %s", queue.name, error)
            return False
        self.memory.flowing += run.size
        return True

    def _note_evicted(self, freed: int) -> None:
        if freed:
            self._counts.evictions += 1
            self._counts.evicted_bytes += freed

    def clean(self, now_ms: int) -> None:
        """See `Cleaner.clean`."""
        self._cleaner.clean(now_ms)


def _keep_at_head(queue: Queue, head_bytes: int) -> None:
    """Sets how many bytes stay at the head of a queue, within the queue's own mark."""
    own = own_mark(queue)
    queue.footprint.head_bytes = head_bytes if own is None else min(head_bytes, own)


def own_mark(queue: Queue) -> int | None:
    """Bytes that a queue with the overflow flow_to_disk may have in memory; None for other queues."""
    view = queue.view
    policy = view.policy
    if policy.overflow != FLOW_TO_DISK:
        return None
    marks = [] if policy.max_bytes is None else [policy.max_bytes]
    if policy.max_length is not None and view.held:
        # By the mean size of its messages.
        marks.append(view.held_bytes * policy.max_length // view.held)
    return max(min(marks), 1) if marks else None
