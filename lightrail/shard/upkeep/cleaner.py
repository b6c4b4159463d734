"""The cleaner: appends the live messages of the oldest segment again at the tail, piece by piece.

It goes through the segment from its beginning, so that a message of several queues is found once for all of
them, and is written once with all its queues.
"""

import logging
from bisect import bisect_left
from collections import Counter
from typing import Final

from lightrail.journal.record import REWRITTEN, SPILLED
from lightrail.model import limits
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.queue.values.runs import Location, Run, ends_of
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


class Cleaner:
    """Frees the oldest segment when the store requests it."""

    __slots__ = ("_counts", "_performer", "_queues", "_segment", "_store", "_work")

    def __init__(self, queues: Queues, store: Store, counts: ShardCounts, performer: Performer) -> None:
        self._queues = queues
        self._store = store
        self._counts = counts
        self._performer = performer
        self._segment = -1
        self._work: list[tuple[int, int, Queue, int, int]] = []
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
