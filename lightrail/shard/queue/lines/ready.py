"""Ready: the runs of a queue that wait for a consumer, by sequence, with their sums.

There is one line in every queue. Where the next message is not the one with the lowest sequence, an index
says which it is (order.py), and the line is one with holes (sparse.py).
"""

from bisect import bisect_right
from collections.abc import Sequence

from lightrail.model import limits
from lightrail.shard.queue.lines.line import Line
from lightrail.shard.queue.lines.merging import copied
from lightrail.shard.queue.values.runs import Batch, Run, sequence_of


class Ready(Line):
    """Runs by sequence. The sums always match the runs, because all changes are made by this class."""

    __slots__ = (
        "_parted",
        "barred_runs",
        "bytes",
        "count",
        "evicted_bytes",
        "evicted_runs",
        "slim_at",
        "spare_bytes",
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        """Number of messages."""
        self.bytes = 0
        """Bytes of all messages, in memory or not."""
        self.evicted_runs = 0
        self.evicted_bytes = 0
        self.barred_runs = 0
        """Number of runs that are barred for a consumer; while there are none, the head is for all."""
        self.spare_bytes = 0
        """Bytes, at most, of batches beyond the runs behind the head that are parts of them."""
        self.slim_at = limits.SLIM_AT_BYTES
        """Number of spare bytes at which `slim` is worth its search."""
        self._parted: dict[int, None] = {}
        """First sequences of these runs, also of some that have left."""

    def add(self, run: Run) -> None:
        """Puts a run at the tail."""
        self.keys.append(run.sequence)
        self.runs.append(run)
        self._count(run, 1)

    def add_batch(self, batch: Batch, sequence: int) -> Run:
        """Puts a whole batch, which is in memory, at the tail. This is the hot path."""
        count = batch.count
        run = Run(batch, 0, count, sequence)
        self.keys.append(sequence)
        self.runs.append(run)
        self.count += count
        self.bytes += batch.size
        return run

    def take_first(self, count_max: int, bytes_max: int) -> tuple[Run, int]:
        """Takes up to `count_max` messages of up to `bytes_max` bytes, at least one, from the head run.

        Returns:
            The run and its bytes. The head must be in memory and not barred.
        """
        head = self.head
        run = self.runs[head]
        count = run.last - run.first
        size = run.batch.size if count == run.batch.count else run.size
        if count > count_max or (size > bytes_max and count > 1):
            wanted = fitting(run, min(count, count_max), bytes_max)
            if wanted < count:
                run, rest = run.split(wanted)
                size = run.size
                count = wanted
                self.keys[head] = rest.sequence
                self.runs[head] = rest
                self.count -= count
                self.bytes -= size
                return run, size
        self.drop_first()
        self.count -= count
        self.bytes -= size
        return run, size

    def take_at(self, index: int, count_max: int, bytes_max: int) -> tuple[Run, int]:
        """Like `take_first`, from the run at an index."""
        run = self.runs[index]
        wanted = fitting(run, min(run.count, count_max), bytes_max)
        part, rest = run.split(wanted)
        self.swap(index, index + 1, [rest] if rest.count else [])
        self._note_part(rest)
        return part, part.size

    def take_part(self, index: int, first: int, last: int) -> tuple[Run, int]:
        """Takes the messages with sequences from `first` to before `last` out of the run at an index."""
        run = self.runs[index]
        low, high = first - run.sequence, last - run.sequence
        part = run.cut(low, high)
        rests = [run.cut(0, low), run.cut(high, run.count)]
        self.swap(index, index + 1, [rest for rest in rests if rest.count])
        for rest in rests:
            self._note_part(rest)
        return part, part.size

    def find(self, first: int, last: int) -> int:
        """The index of the first run with messages from `first` to before `last`, or -1."""
        runs = self.runs
        index = self.index(first)
        while index < len(runs) and self.keys[index] < last:
            if runs[index].last > runs[index].first:
                return index
            index += 1
        return -1

    def give_back(self, run: Run) -> None:
        """Returns a run to its position by sequence, and joins it with its neighbours again."""
        self._count(run, 1)
        index = bisect_right(self.keys, run.sequence, self.head)
        if index > self.head and one_run(self.runs[index - 1], run):
            before = self.runs[index - 1]
            self.barred_runs -= bool(run.barred)
            run = Run(run.batch, before.first, run.last, before.sequence, run.attempts, run.barred)
            self.runs[index - 1] = run
            index -= 1
            placed = True
        else:
            placed = False
            self._note_part(run)
        following = index + 1 if placed else index
        if following < len(self.runs) and one_run(run, self.runs[following]):
            after = self.runs[following]
            self.barred_runs -= bool(run.barred)
            run = Run(run.batch, run.first, after.last, run.sequence, run.attempts, run.barred)
            self.keys[following] = run.sequence
            self.runs[following] = run
            if placed:
                self.replace(index, following, [], [])
        elif not placed:
            if index == self.head:
                self._put_head(run)
            else:
                self.keys.insert(index, run.sequence)
                self.runs.insert(index, run)

    def give_back_all(self, runs: Sequence[Run]) -> None:
        """Returns many runs, by sequence; their neighbours are moved once and not for each run."""
        start, stop, around = self._around(runs)
        for run in around:
            self.barred_runs -= bool(run.barred)
        for run in runs:
            self._count(run, 1)
            self.barred_runs -= bool(run.barred)
        placed = rejoined(sorted([*around, *runs], key=sequence_of))
        for run in placed:
            self.barred_runs += bool(run.barred)
        # Two evicted runs that are joined count as one.
        self.evicted_runs += sum(run.batch.data is None for run in placed) - sum(
            run.batch.data is None for run in (*around, *runs)
        )
        self.keys[start:stop] = [run.sequence for run in placed]
        self.runs[start:stop] = placed
        for run in placed:
            self._note_part(run)

    def _around(self, runs: Sequence[Run]) -> tuple[int, int, list[Run]]:
        """The indexes around runs, by sequence, with one neighbour on each side."""
        start = bisect_right(self.keys, runs[0].sequence, self.head)
        stop = bisect_right(self.keys, runs[-1].sequence, start)
        start, stop = max(start - 1, self.head), min(stop + 1, len(self.runs))
        return start, stop, self.runs[start:stop]

    def swap(self, start: int, stop: int, runs: Sequence[Run]) -> list[Run]:
        """Replaces the runs from index `start` to before `stop`; returns the old ones."""
        old = self.runs[start:stop]
        for run in old:
            self._count(run, -1)
        for run in runs:
            self._count(run, 1)
        self.replace(start, stop, [run.sequence for run in runs], list(runs))
        return old

    def exchange(self, index: int, run: Run) -> None:
        """Replaces a run by another one of the same messages."""
        self._count(self.runs[index], -1)
        self._count(run, 1)
        self.runs[index] = run

    # --- memory -----------------------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """Bytes, at most, of batches in memory beyond the runs that are parts of them."""
        size = self.spare_bytes
        if self.runs:
            head = self.runs[self.head]
            if head.last - head.first < head.batch.count and head.batch.data is not None:
                spare = head.batch.size - head.size
                if spare > limits.SPARE_BYTES_MIN:
                    size += spare
        return size

    def slim(self) -> None:
        """Copies runs that are at most half of their batch, so that the rest of it can be freed."""
        parted, self._parted = self._parted, {}
        self.spare_bytes = 0
        if self.runs:
            parted[self.keys[self.head]] = None
        for sequence in parted:
            index = self.find(sequence, sequence + 1)
            if index < 0:
                continue
            run = self.runs[index]
            if run.batch.data is None or run.batch.size - run.size <= limits.SPARE_BYTES_MIN:
                continue
            if 2 * run.size <= run.batch.size:
                self.exchange(index, copied([run])[0])
            elif index > self.head:
                self._note_part(run)
        self.slim_at = self.spare_bytes + limits.SLIM_AT_BYTES

    def _put_head(self, run: Run) -> None:
        """Puts a run before the head; the former head is no longer counted as such."""
        if self.runs:
            self._note_part(self.runs[self.head])
        self.put_first(run.sequence, run)

    def _note_part(self, run: Run) -> None:
        """Notes a run that is a part of a batch of which other messages may have left."""
        batch = run.batch
        if run.last - run.first < batch.count and run.last > run.first and batch.data is not None:
            spare = batch.size - run.size
            if spare > limits.SPARE_BYTES_MIN:
                self.spare_bytes += spare
                self._parted[run.sequence] = None

    def clear(self) -> list[Run]:
        """Removes and returns all runs."""
        runs = self.runs[self.head :]
        self.__init__()  # type: ignore[misc]
        return runs

    def waiting(self) -> list[Run]:
        """All runs in order."""
        return self.runs[self.head :]

    def _count(self, run: Run, sign: int) -> None:
        size = run.size
        self.count += sign * (run.last - run.first)
        self.bytes += sign * size
        if run.batch.data is None:
            self.evicted_runs += sign
            self.evicted_bytes += sign * size
        if run.barred:
            self.barred_runs += sign


def fitting(run: Run, count_max: int, bytes_max: int) -> int:
    """Number of messages of a run in memory that fit into `bytes_max` bytes; at least one."""
    ends = run.batch.loaded().ends
    start = ends[run.first - 1] if run.first else 0
    count = bisect_right(ends, start + bytes_max, run.first, run.first + count_max) - run.first
    return count or 1


def one_run(before: Run, after: Run) -> bool:
    """Whether two runs are neighbours in their batch and in the queue, with the same past."""
    return (
        before.batch is after.batch
        and before.last == after.first
        and before.sequence + before.last - before.first == after.sequence
        and before.attempts == after.attempts
        and before.barred == after.barred
    )


def rejoined(runs: Sequence[Run]) -> list[Run]:
    """The same messages; neighbours that are parts of one batch are one run again."""
    result: list[Run] = []
    for run in runs:
        if result and one_run(result[-1], run):
            before = result[-1]
            run = Run(run.batch, before.first, run.last, before.sequence, run.attempts, run.barred)
            result[-1] = run
        else:
            result.append(run)
    return result
