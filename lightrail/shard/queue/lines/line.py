"""A line: runs under rising keys, mostly removed from the head, found by bisection.

Ready runs (keys: sequences) and deliveries in flight (keys: delivery numbers) are lines. A list with a moving
head is like a deque, and can be searched; keys are in a separate list because bisect compares plain integers
in C.

`InFlight` is the line of one consumer's unsettled deliveries.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.model import limits
from lightrail.shard.queue.lines.merging import copied, evicted_deliveries, parted, slim
from lightrail.shard.queue.values.runs import Batch, Location, Run, sequence_of

if TYPE_CHECKING:
    from lightrail.shard.queue.order.message_keys import MessageKeys

GONE: Final = Run(Batch(b"", None, 0, 0), 0, 0, -1)
"""The placeholder of a removed run, so that its batch can be freed before the list is shortened."""


@dataclass(slots=True, eq=False, repr=False)
class Line:
    """Keys and runs; those before index `head` are removed."""

    keys: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    head: int = 0

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

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges (first, behind the last) of keys from `first` to before `last` that have no message."""
        found: list[tuple[int, int]] = []
        index = self.index(first)
        while first < last:
            key = self.keys[index] if index < len(self.keys) else last
            if first < key:
                found.append((first, min(key, last)))
            if index < len(self.keys):
                key += self.runs[index].count
                index += 1
            first = max(first, key)
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


class InFlight(Line):
    """Runs under the delivery number of their first message.

    Each is locked by its link, until the link settles it or detaches; locks by time are in locks.py.
    """

    __slots__ = ("evicted_to", "slimmed_to")

    def __init__(self) -> None:
        super().__init__()
        self.evicted_to = 0
        """Deliveries with lower numbers are only on disk, or not worth that."""
        self.slimmed_to = 0
        """Deliveries with lower numbers keep no large batch in memory."""

    def everything(self) -> list[Run]:
        """Removes and returns all runs, in the order of delivery."""
        runs = self.runs[self.head :]
        self.keys.clear()
        self.runs.clear()
        self.head = 0
        return runs

    def ordered(self) -> list[Run]:
        """The runs that may return to the queue's order: all except deferred messages (aside.py)."""
        return [run for run in self.runs[self.head :] if not run.is_deferred]

    # --- memory and disk --------------------------------------------------------------------------------

    @property
    def is_evicted(self) -> bool:
        """Whether no delivery is in memory, as far as that is known without a search."""
        return not self.keys or self.keys[-1] < self.evicted_to

    def evict(self, bytes_wanted: int, runs_max: int, memory: "MessageKeys | None") -> list[Run]:
        """Drops the messages of deliveries that have a location, the oldest first.

        Args:
            bytes_wanted: of messages to drop; none where it is not above 0.
            runs_max: how many runs may be evicted; how many messages, if each has to be remembered.
            memory: of a queue that needs the key of each message when that returns.

        Returns:
            The runs as they were in memory.
        """
        start = stop = self.index(self.evicted_to)
        limit = min(len(self.runs), start + runs_max)
        gone: list[Run] = []
        small: set[int] = set()
        while stop < limit and bytes_wanted > 0:
            run = self.runs[stop]
            if run.batch.data is not None:
                if run.batch.location is None:
                    break
                if memory is not None and _worth(run) <= run.count * memory.kept_bytes:
                    small.add(self.keys[stop])
                else:
                    if memory is not None:
                        memory.remember(run)
                        limit -= run.count - 1
                    bytes_wanted -= run.size + limits.RUN_EVICTED_BYTES
                    gone.append(run)
            stop += 1
        if stop > start:
            self.evicted_to = self.keys[stop - 1] + self.runs[stop - 1].count
        if gone:
            # The run before it may also be its neighbour on disk.
            start = start - 1 if start > self.head and self.runs[start - 1].batch.data is None else start
            keys, runs = evicted_deliveries(self.keys[start:stop], self.runs[start:stop], small)
            self.replace(start, stop, keys, runs)
        return gone

    def slim(self) -> None:
        """Copies deliveries that are a small part of their batch, so that the rest of it can be freed."""
        start = self.index(self.slimmed_to)
        for index in range(start, len(self.runs)):
            run = self.runs[index]
            batch = run.batch
            if batch.data is None or batch.size - run.size <= limits.SPARE_BYTES_MIN:
                continue
            if 2 * run.size <= batch.size:
                self.runs[index] = copied([run])[0]
        if start < len(self.runs):
            self.slimmed_to = self.keys[-1] + self.runs[-1].count

    def spill_candidates(self, bytes_wanted: int, runs_max: int) -> list[Run]:
        """Deliveries that could be evicted if they had a location, as `Eviction.spill_candidates` has it.

        Each gets a separate batch, because other messages of its batch may have another location.
        """
        found: list[Run] = []
        start = self.index(self.evicted_to)
        for index in range(start, min(len(self.runs), start + runs_max)):
            if bytes_wanted <= 0:
                break
            run = self.runs[index]
            batch = run.batch
            if batch.data is None:
                continue
            bytes_wanted -= run.size + limits.RUN_EVICTED_BYTES
            if batch.location is None:
                run = self.runs[index] = Run(
                    batch.copy(), run.first, run.last, run.sequence, run.attempts, run.barred
                )
                found.append(run)
        return found

    def relocate(self, run: Run, segment: int, location: Location) -> int:
        """Sets the new location of those messages of `run` that are here and have a location in `segment`.

        Returns:
            The number of these messages.
        """
        # Deliveries are in the order of their sequences, except for redelivered ones.
        index = bisect_right(self.runs, run.sequence, self.head, key=sequence_of) - 1
        if index >= self.head and run.end <= self.runs[index].end:
            moved = self._relocate(index, run, segment, location)[0]
            if moved:
                return moved
        moved = 0
        index = self.head
        while index < len(self.runs) and moved < run.count:
            each = self.runs[index]
            if each.sequence >= run.end or run.sequence >= each.end:
                index += 1
                continue
            count, index = self._relocate(index, run, segment, location)
            moved += count
        return moved

    def may_join(self, before: Run, after: Run) -> bool:
        """Whether neighbours that are only on disk may be one run."""
        return True

    def _relocate(self, index: int, run: Run, segment: int, location: Location) -> tuple[int, int]:
        """The same of the run at an index; returns how many messages, and the index behind them."""
        each = self.runs[index]
        here = each.batch.location
        if here is None or here.segment != segment:
            return 0, index + 1
        key, low = self.keys[index], index
        parts = parted(each, run, location)
        count = sum(part.count for part in parts if part.batch.location is location)
        keys = [key + part.sequence - each.sequence for part in parts]
        if each.batch.data is None:
            # Records that are moved one by one lie beside each other again.
            before = self.runs[low - 1] if low > self.head else None
            if before is not None and before.batch.data is None and self.may_join(before, each):
                low -= 1
            keys, parts = evicted_deliveries(self.keys[low:index] + keys, self.runs[low:index] + parts)
        self.replace(low, index + 1, keys, parts)
        return count, low + len(parts)


def _worth(run: Run) -> int:
    """Bytes that the eviction of a run frees: with the last of its messages, also the objects of a batch."""
    return run.size + limits.RUN_EVICTED_BYTES * (run.count == run.batch.count)
