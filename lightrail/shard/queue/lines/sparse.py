"""Sparse: a ready line in which the removal of any run leaves a hole instead of moving others.

Where the next message is any of a million, taking it out of a list would move half of the others. A hole
stays under its key until every second entry is one; a run that returns fills it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.values.runs import Run, sequence_of

_BATCH_BYTES: Final = limits.RUN_BYTES


class Sparse(Ready):
    """Runs by sequence; a removed run leaves a hole, the constant `GONE`, and the head is never a hole."""

    __slots__ = ("batch_bytes", "holes", "singles")

    def __init__(self, *, singles: bool = True) -> None:
        super().__init__()
        self.singles = singles
        """Whether every message is a separate run, so that most runs are parts of batches."""
        self.holes = 0
        """Number of holes from the head on."""
        self.batch_bytes = 0
        """Bytes around the messages of batches in memory: each run counts its share."""

    def __len__(self) -> int:
        return len(self.runs) - self.head - self.holes

    def has(self, sequence: int) -> bool:
        """Whether a message is in this line."""
        index = bisect_right(self.keys, sequence, self.head) - 1
        if index < self.head:
            return False
        run = self.runs[index]
        return sequence < self.keys[index] + run.last - run.first

    def drop_first(self) -> None:
        super().drop_first()
        if self.holes:
            self._skip_holes()

    def swap(self, start: int, stop: int, runs: Sequence[Run]) -> list[Run]:
        old = [run for run in self.runs[start:stop] if run is not GONE]
        new = [run for run in runs if run is not GONE]
        for run in old:
            self._count(run, -1)
        for run in new:
            self._count(run, 1)
        if not new and len(old) == stop - start == 1:
            self._leave_hole(start)
            return old
        self.holes -= stop - start - len(old)
        self.keys[start:stop] = [run.sequence for run in new]
        self.runs[start:stop] = new
        self._skip_holes()
        return old

    def give_back(self, run: Run) -> None:
        """Returns a run to its position by sequence; it stays a separate run."""
        self._count(run, 1)
        if not self.singles:
            self._note_part(run)
        index = bisect_right(self.keys, run.sequence, self.head)
        if index == self.head:
            if self.singles:
                self.put_first(run.sequence, run)
            else:
                self._put_head(run)
        elif self.keys[index - 1] == run.sequence and self.runs[index - 1] is GONE:
            self.runs[index - 1] = run
            self.holes -= 1
        else:
            self.keys.insert(index, run.sequence)
            self.runs.insert(index, run)

    def give_back_all(self, runs: Sequence[Run]) -> None:
        """Returns many runs, by sequence, each as a separate run; their neighbours are moved once."""
        start, stop, around = self._around(runs)
        there = [run for run in around if run is not GONE]
        self.holes -= len(around) - len(there)
        for run in runs:
            self._count(run, 1)
            if not self.singles:
                self._note_part(run)
        placed = sorted([*there, *runs], key=sequence_of)
        self.keys[start:stop] = [run.sequence for run in placed]
        self.runs[start:stop] = placed

    def take_single(self, index: int) -> tuple[Run, int]:
        """Takes the run at an index, which is one message: the hot path."""
        run = self.runs[index]
        size = run.size
        batch = run.batch
        if batch.data is None:
            self.evicted_runs -= 1
            self.evicted_bytes -= size
        else:
            self.batch_bytes -= _BATCH_BYTES // batch.count
        self.count -= 1
        self.bytes -= size
        self.barred_runs -= bool(run.barred)
        self._leave_hole(index)
        return run, size

    def _count(self, run: Run, sign: int) -> None:
        batch, size, count = run.batch, run.size, run.last - run.first
        self.count += sign * count
        self.bytes += sign * size
        if batch.data is None:
            self.evicted_runs += sign
            self.evicted_bytes += sign * size
        else:
            self.batch_bytes += sign * (_BATCH_BYTES * count // batch.count)
        if run.barred:
            self.barred_runs += sign

    def clear(self) -> list[Run]:
        return [run for run in super().clear() if run is not GONE]

    def waiting(self) -> list[Run]:
        return [run for run in super().waiting() if run is not GONE]

    def _leave_hole(self, index: int) -> None:
        if index == self.head:
            self.drop_first()
            return
        self.runs[index] = GONE
        self.holes += 1
        if self.holes > limits.STALE_ENTRIES_MIN and self.holes * 2 > len(self.runs) - self.head:
            kept = [each for each in range(self.head, len(self.runs)) if self.runs[each] is not GONE]
            self.keys = [self.keys[each] for each in kept]
            self.runs = [self.runs[each] for each in kept]
            self.head = 0
            self.holes = 0

    def _skip_holes(self) -> None:
        """Moves the head to the first run."""
        runs, head = self.runs, self.head
        while head < len(runs) and runs[head] is GONE:
            head += 1
        self.holes -= head - self.head
        self.head = head
        if head == len(runs):
            self.keys.clear()
            runs.clear()
            self.head = 0
