"""Selection: selects the messages of each piece of an export."""

from itertools import chain
from typing import Final, NamedTuple

from lightrail.shard.moving.pieces import Contents, runs_from, sequence_of
from lightrail.shard.queue.lines.ready import fitting, rejoined
from lightrail.shard.queue.values.runs import Run

MOVE_CHUNK_RUNS: Final[int] = 2_000
"""Runs of messages in the same, each of which is a record at the destination."""


class Selected(NamedTuple):
    """The messages of one piece."""

    runs: list[Run]
    next: int | None
    """The sequence of the next piece; None if this is the last one."""


class Selection:
    """Selects the runs of each piece, and stores which messages were rewritten after a piece had them."""

    __slots__ = ("_contents", "_notes", "_sent_to")

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._sent_to = 0
        """Messages with sequences below may have been in a piece."""
        self._notes: dict[int, int] = {}
        """First and last sequence of messages below `_sent_to` that were rewritten."""

    @property
    def notes(self) -> int:
        """Number of ranges that were rewritten after a piece had them."""
        return len(self._notes)

    def note(self, run: Run) -> None:
        """Notes that messages were rewritten in place."""
        if run.sequence < self._sent_to:
            self._notes[run.sequence] = max(run.end, self._notes.get(run.sequence, 0))

    def select(self, first: int, mark: int, bytes_max: int, messages_max: int, rewritten: bool) -> Selected:
        """The runs of a piece; the first and last one may be parts of runs."""
        found, stop = (
            (self._noted(first), None) if rewritten else self._live(first, mark, bytes_max, messages_max)
        )
        runs: list[Run] = []
        for run in rejoined(found):
            run = run.cut(max(first - run.sequence, 0), min(run.end, mark) - run.sequence)
            if messages_max <= 0 or bytes_max <= 0 or len(runs) >= MOVE_CHUNK_RUNS:
                return Selected(runs, run.sequence)
            count = min(run.count, messages_max)
            if run.size > bytes_max:
                if run.batch.data is None:
                    count = min(count, max(1, run.count * bytes_max // run.size))
                else:
                    count = fitting(run, count, bytes_max)
                if runs and run.cut(0, count).size > bytes_max:
                    return Selected(runs, run.sequence)
            runs.append(run.cut(0, count))
            if not rewritten:
                self._sent_to = max(self._sent_to, runs[-1].end)
            if count < run.count:
                return Selected(runs, runs[-1].end)
            messages_max -= count
            bytes_max -= run.size
        return Selected(runs, stop)

    def _live(self, first: int, mark: int, bytes_max: int, messages_max: int) -> tuple[list[Run], int | None]:
        """Runs from a sequence on, in order, and the sequence of the next ones; None if these are all."""
        found: list[Run] = []
        stop: int | None = None
        for line in self._contents.lines():
            left, room, batches = messages_max, bytes_max, MOVE_CHUNK_RUNS
            for run in runs_from(line, first):
                if run.sequence >= mark:
                    break
                if not found or run.batch is not found[-1].batch:
                    batches -= 1
                if left <= 0 or room <= 0 or batches < 0:
                    stop = run.sequence if stop is None else min(stop, run.sequence)
                    break
                found.append(run)
                left -= run.end - max(run.sequence, first)
                room -= run.size
        before = mark if stop is None else stop
        found = [
            run for run in chain(found, self._contents.others()) if run.end > first and run.sequence < before
        ]
        found.sort(key=sequence_of)
        return found, stop

    def _noted(self, first: int) -> list[Run]:
        """The parts of runs, from a sequence on and in order, that were rewritten after a piece had them."""
        ranges = sorted((start, end) for start, end in self._notes.items() if end > first)
        if not ranges:
            return []
        start = max(first, ranges[0][0])
        runs = list(chain(*(runs_from(line, start) for line in self._contents.lines())))
        runs += [run for run in self._contents.others() if run.end > start]
        runs.sort(key=sequence_of)
        found: list[Run] = []
        at = 0
        for run in runs:
            while at < len(ranges) and ranges[at][1] <= run.sequence:
                at += 1
            position = run.sequence
            for low, high in ranges[at:]:
                if low >= run.end:
                    break
                low = max(low, position)
                position = min(high, run.end)
                if low < position:
                    found.append(run.cut(low - run.sequence, position - run.sequence))
        return found
