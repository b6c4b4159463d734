"""The cleaner: appends the live messages of the oldest segment again at the tail, piece by piece.

It goes through the segment from its beginning, so that a message of several queues is found once for all of
them, and is written once with all its queues.
"""

import logging

from lightrail.journal.record import REWRITTEN, SPILLED
from lightrail.model import limits
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreError
from lightrail.shard.performer import Performer
from lightrail.shard.queue.runs import Run, ends_of
from lightrail.shard.queues import Queues
from lightrail.shard.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts

log = logging.getLogger("lightrail.shard.cleaner")


class _Copy:
    """Messages to append once, for all queues that have them."""

    __slots__ = ("_blob", "_ends", "run", "targets")

    def __init__(self, queue: Queue, run: Run) -> None:
        self.run = run
        self.targets: list[tuple[Queue, Run]] = [(queue, run)]
        self._blob: bytes | None = None
        self._ends = b""

    def same(self, run: Run) -> bool:
        """Whether another run of the same record and size has the same messages."""
        mine = self.run
        if run.batch is mine.batch:
            return run.first == mine.first
        if self._blob is None:
            self._blob = bytes(mine.batch.blob(mine.first, mine.last))
            self._ends = bytes(ends_of(mine))
        blob = run.batch.blob(run.first, run.last)
        return bytes(ends_of(run)) == self._ends and bytes(blob) == self._blob


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
            for run in queue.machine.contents.runs_in(segment):
                location = run.batch.location
                assert location is not None
                found.append((location.offset, run.size, queue, run.sequence, run.end))
        found.sort(key=lambda each: each[0], reverse=True)
        return found

    def _next_piece(self) -> dict[Queue, list[tuple[int, int]]]:
        """Sequences by queue of the next piece; records with several queues are not split."""
        wanted: dict[Queue, list[tuple[int, int]]] = {}
        left = limits.CLEAN_BYTES
        offset = -1
        work = self._work
        while work and (left > 0 or work[-1][0] == offset):
            offset, size, queue, first, last = work.pop()
            left -= size
            wanted.setdefault(queue, []).append((first, last))
        return wanted

    def _rewrite(self, segment: int, wanted: dict[Queue, list[tuple[int, int]]], now_ms: int) -> None:
        """Appends the messages at the tail of the journal, with the same sequences."""
        copies: dict[tuple[int, ...], list[_Copy]] = {}
        moved: list[Run] = []
        for queue, ranges in wanted.items():
            if not self._queues.has(queue):
                continue  # The queue was deleted meanwhile.
            for run in queue.machine.contents.runs_in(segment):
                if not any(run.sequence < last and first < run.end for first, last in ranges):
                    continue
                location = run.batch.location
                assert location is not None
                moved.append(run)
                pieces = [run]
                if run.batch.data is None:
                    pieces = self._store.read(location, queue.id, run.sequence, run.end)
                for piece in pieces:
                    _gather(copies, queue, piece, run.attempts)
        for group in copies.values():
            for copy in group:
                self._write(copy, now_ms)
        for run in moved:
            self._store.release(segment, run.size)

    def _write(self, copy: _Copy, now_ms: int) -> None:
        run = copy.run
        flags = REWRITTEN if run.batch.durable else REWRITTEN | SPILLED
        targets = [(queue.id, mine.sequence) for queue, mine in copy.targets]
        location = self._store.append(
            Append(targets, 0, 0, run.batch, run.first, run.last, run.attempts, flags), now_ms
        )
        assert location is not None
        for queue, mine in copy.targets:
            queue.machine.contents.relocate(mine, location)

    def _in_use(self, segment: int) -> bool:
        """Whether a segment is read now, is damaged, or has messages in no queue (`Performer.unwritten`)."""
        if self._performer.leaving.departures:
            # Leaving messages may be in this segment; the next steps release all of them.
            return True
        if self._performer.reading.get(segment) or segment in self._performer.damaged:
            return True
        locations = [effect.run.batch.location for _, effect in self._performer.dead_letters.unwritten]
        return any(location is not None and location.segment == segment for location in locations)


def _gather(copies: dict[tuple[int, ...], list[_Copy]], queue: Queue, piece: Run, attempts: int) -> None:
    """Adds messages, which are in memory, to the copies of the same messages in other queues."""
    piece = Run(piece.batch, piece.first, piece.last, piece.sequence, attempts, piece.barred)
    location = piece.batch.location
    assert location is not None
    key = (location.offset, piece.count, piece.size, attempts)
    group = copies.setdefault(key, [])
    for copy in group:
        if all(queue is not other for other, _ in copy.targets) and copy.same(piece):
            copy.targets.append((queue, piece))
            return
    group.append(_Copy(queue, piece))
