"""A line: runs under rising keys, mostly removed from the head, found by bisection.

Ready runs (keys: sequences) and deliveries in flight (keys: delivery numbers) are lines. A list with a moving
head is like a deque, and can be searched; keys are in a separate list because bisect compares plain integers
in C.
"""

from bisect import bisect_right
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.merging import slim
from lightrail.shard.queue.values.runs import Batch, Run

GONE: Final = Run(Batch(b"", None, 0, 0), 0, 0, -1)
"""The placeholder of a removed run, so that its batch can be freed before the list is shortened."""


class Line:
    """Keys and runs; those before index `head` are removed."""

    __slots__ = ("head", "keys", "runs")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.runs: list[Run] = []
        self.head = 0

    def __len__(self) -> int:
        return len(self.runs) - self.head

    def append(self, key: int, run: Run) -> None:
        """Puts a run at the tail; the key is above all others."""
        self.keys.append(key)
        self.runs.append(run)

    def drop_first(self) -> None:
        """Removes the run at the head."""
        self.runs[self.head] = GONE
        self.head += 1
        if self.head == len(self.runs):
            self.keys.clear()
            self.runs.clear()
            self.head = 0
        elif self.head > limits.STALE_ENTRIES_MIN and self.head * 2 > len(self.runs):
            self.shorten()

    def shorten(self) -> None:
        """Drops the entries before the head."""
        del self.keys[: self.head]
        del self.runs[: self.head]
        self.head = 0

    def index(self, key: int) -> int:
        """Index of the run that covers `key`, else of the first run above it, which may be the length."""
        index = bisect_right(self.keys, key, self.head) - 1
        if index < self.head:
            return self.head
        run = self.runs[index]
        return index if key < self.keys[index] + run.last - run.first else index + 1

    def replace(self, start: int, stop: int, keys: list[int], runs: list[Run]) -> None:
        """Replaces the entries from index `start` to before `stop`."""
        if start == self.head and not runs and stop > start:
            self.runs[start:stop] = [GONE] * (stop - start)
            self.head = stop - 1
            self.drop_first()
            return
        self.keys[start:stop] = keys
        self.runs[start:stop] = runs

    def put_first(self, key: int, run: Run) -> None:
        """Puts a run before the head, over the entry that was removed last, if there is one."""
        if self.head:
            self.head -= 1
            self.keys[self.head] = key
            self.runs[self.head] = run
        else:
            self.keys.insert(0, key)
            self.runs.insert(0, run)

    def between(self, first: int, last: int) -> list[Run]:
        """The runs under the keys from `first` to before `last`, without removing them; holes are skipped."""
        found: list[Run] = []
        index = self.index(first)
        while index < len(self.runs) and self.keys[index] < last:
            key, run = self.keys[index], self.runs[index]
            low, high = max(first - key, 0), min(last - key, run.count)
            found.append(run if low == 0 and high == run.count else run.cut(low, high))
            index += 1
        return found

    def take(self, first: int, last: int) -> list[Run]:
        """Removes and returns the runs under the keys from `first` to before `last`; holes are skipped.

        The common case, whole runs from the head on, moves nothing.
        """
        keys, runs = self.keys, self.runs
        removed: list[Run] = []
        while runs and keys[self.head] == first:
            run = runs[self.head]
            next_key = first + run.last - run.first
            if next_key > last:
                break
            first = next_key
            removed.append(run)
            self.drop_first()
        if first >= last or not runs:
            return removed
        start = stop = self.index(first)
        kept_keys: list[int] = []
        kept: list[Run] = []
        while stop < len(runs):
            key = keys[stop]
            if key >= last:
                break
            run = runs[stop]
            stop += 1
            count = run.last - run.first
            low = first - key if first > key else 0
            high = last - key if last < key + count else count
            if low == 0 and high == count:
                removed.append(run)
                continue
            removed.append(run.cut(low, high))
            if low:
                kept_keys.append(key)
                kept.append(slim(run.cut(0, low)))
            if high < count:
                kept_keys.append(key + high)
                kept.append(slim(run.cut(high, count)))
        if stop > start:
            self.replace(start, stop, kept_keys, kept)
        return removed
