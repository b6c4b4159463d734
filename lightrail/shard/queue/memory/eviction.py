"""Eviction: decides which waiting messages stay in memory, and when evicted ones are fetched back.

The first `head_bytes` of a queue stay in memory, and runs that move into them are fetched: one window for
both, so that nothing is evicted that would be fetched at once. Runs are evicted from the tail. Delayed
messages are not part of that window: all of them may be evicted.

If every message is a separate run (`joins` is False), the runs stay as an index and only lose their bytes;
messages that were fetched and not delivered are the first to be evicted again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.merging import (
    evicted_singles,
    join_neighbours,
    merge_evicted,
    on_disk,
    parted,
    whole,
)
from lightrail.shard.queue.lines.ready import Ready, one_run
from lightrail.shard.queue.memory import disk
from lightrail.shard.queue.values.commands import Fetched
from lightrail.shard.queue.values.runs import Batch, Location, Run

FETCH_RETRY_MS: Final[int] = 1_000
"""Pause after a failed read, before the same run is read again."""


@dataclass(slots=True, eq=False, repr=False)
class Eviction:
    """The window at the head of one queue, and the fetches under way."""

    ready: Ready
    delayed: Ready | None = None
    """The line of delayed messages, if there is one."""
    head_bytes: int = limits.RESIDENT_HEAD_BYTES
    """Bytes at the head that stay in memory; the shard's memory may set another value."""
    joins: bool = True
    """Whether neighbours are joined to one run; not if every message has a separate run."""
    fetching: dict[int, int] = field(default_factory=dict)
    """First and last sequence of each fetch under way."""
    _inside: set[int] | None = None
    """Sequences of single messages that are fetched together with one before them; None before the first.
    """
    _more: dict[int, int] = field(default_factory=dict)
    """By the first sequence of a fetch under way: the end of its run, which has grown since."""
    _came: deque[tuple[int, int, int]] | None = None
    """First and last sequence and bytes of single messages that were fetched; some may have left the
    queue. None before the first: an empty deque takes 760 bytes, and most queues need none."""
    _came_bytes: int = 0
    retries: list[tuple[int, int]] = field(default_factory=list)
    """(milliseconds, sequence): when a failed fetch may be repeated; a heap."""
    unseen_bytes: int = 0
    """Bytes that were removed from the head since the window was last searched."""
    evicted: int = 0
    """Number of messages evicted so far."""

    def follow(self, ready: Ready, delayed: Ready | None, *, joins: bool) -> None:
        """Sets other lines; fetches under way continue."""
        self.ready = ready
        self.delayed = delayed
        self.joins = joins
        self._inside = None
        self._came = None
        self._came_bytes = 0

    @property
    def lines(self) -> tuple[Ready, ...]:
        """The lines of all waiting messages."""
        return (self.ready,) if self.delayed is None else (self.ready, self.delayed)

    # --- out of memory ----------------------------------------------------------------------------------

    def evict(self, bytes_wanted: int, batch_bytes: int = 0) -> int:
        """Drops the messages of runs that have a location, from the tail, until `bytes_wanted` are free.

        Args:
            batch_bytes: what counts for each run beside its messages, in the window as well. The objects
                around a batch are freed with it; those of a single message stay.

        Returns:
            Bytes that were freed; less than wanted when the rest is in the window or has no location yet.
        """
        freed = 0
        if self.delayed is not None:
            freed = self._evict(self.delayed, bytes_wanted, 0, 0)
        while self._came and self._came_bytes > self.head_bytes >> 1 and freed < bytes_wanted:
            first, last, size = self._came.popleft()
            self._came_bytes -= size
            freed += self._evict_again(first, last)
        if freed < bytes_wanted:
            extra = batch_bytes if self.joins else 0
            freed += self._evict(self.ready, bytes_wanted - freed, self.head_bytes, extra)
        return freed

    def _evict(self, line: Ready, bytes_wanted: int, keep: int, extra: int) -> int:
        """Evicts messages of one line, of which the first `keep` bytes stay in memory."""
        runs = line.runs
        before = line.bytes + extra * len(line)
        # There may be a million single messages on disk between the tail and the window: they are not
        # searched.
        resident = before if self.joins else before - line.evicted_bytes - keep
        freed = 0
        chosen: list[int] = []
        last: Batch | None = None
        for index in range(len(runs) - 1, line.head - 1, -1):
            run = runs[index]
            size = run.size + extra
            before -= size
            # The bytes of a batch are freed with the last of its messages.
            if before < keep or resident <= 0 or (freed >= bytes_wanted and run.batch is not last):
                break
            if run.batch.data is None:
                continue
            resident -= size
            if run.batch.location is not None:
                chosen.append(index)
                freed += size + 4 * run.count
                self.evicted += run.count
                last = None if self.joins else run.batch
        chosen.reverse()
        self._drop(line, chosen)
        return freed

    def evict_head(self) -> int:
        """Drops the messages of `large_head` if it has a location; returns the bytes that were freed."""
        run = disk.large_head(self.ready, self.head_bytes)
        if run is None or run.batch.location is None:
            return 0
        self.evicted += run.count
        self._drop(self.ready, [self.ready.head])
        return run.size

    def _evict_again(self, first: int, last: int) -> int:
        """Evicts single messages again that were fetched before and still wait."""
        freed = 0
        for line in self.lines:
            chosen: list[int] = []
            index = line.index(first)
            while index < len(line.runs) and line.keys[index] < last:
                run = line.runs[index]
                if run.batch.data is not None and run.batch.location is not None:
                    chosen.append(index)
                    freed += run.size + 4
                index += 1
            self.evicted += len(chosen)
            self._drop(line, chosen)
        return freed

    def _drop(self, line: Ready, chosen: list[int]) -> None:
        """Drops the bytes of the runs at these rising indexes."""
        if not chosen:
            return
        start = max(chosen[0] - 1, line.head) if self.joins else chosen[0]
        stop = min(chosen[-1] + 2, len(line.runs)) if self.joins else chosen[-1] + 1
        window = line.runs[start:stop]
        runs = [line.runs[index] for index in chosen]
        if self.joins:
            gone = [on_disk(run, run.count, run.size, run.batch.location) for run in runs]
        else:
            gone = evicted_singles(runs)
        for index, run in zip(chosen, gone, strict=True):
            window[index - start] = run
        line.swap(start, stop, merge_evicted(window, self.fetching) if self.joins else window)

    def spill_candidates(self, bytes_wanted: int, batch_bytes: int = 0) -> list[Run]:
        """Waiting runs outside the window that have no location, up to `bytes_wanted` bytes.

        Counted as by `evict`. The caller writes each and sets `run.batch.location`; after that they can be
        evicted and fetched.
        """
        if self.joins:
            return disk.batches_to_spill(self.ready, bytes_wanted, self.head_bytes, batch_bytes)
        found: list[Run] = []
        for line, keep in ((self.delayed, 0), (self.ready, self.head_bytes)):
            if line is not None and bytes_wanted > 0:
                found += disk.singles_to_spill(line, bytes_wanted, keep)
                bytes_wanted -= sum(run.size for run in found)
        return found

    # --- back into memory -------------------------------------------------------------------------------

    def look_ahead(self) -> list[Run]:
        """Begins to fetch runs of the window that are on disk and not being fetched; returns them."""
        self.unseen_bytes = 0
        return self.want(self.ready.head, self.head_bytes)

    def want(self, index: int, bytes_max: int) -> list[Run]:
        """The runs that are on disk and not being fetched, of so many bytes of the ready line from an index
        on.

        The run at the index counts whatever its size. Each is named once, single messages of one batch
        together.
        """
        wanted: list[Run] = []
        seen = 0
        runs = self.ready.runs
        stop = len(runs) if self.joins else min(len(runs), index + limits.LOOK_AHEAD_MESSAGES)
        while index < stop and seen < max(bytes_max, 1):
            run = runs[index]
            index += 1
            seen += run.size
            if run.batch.data is None:
                self._want(run, wanted)
                if not self.joins and len(wanted) >= limits.FETCHES_AHEAD_MAX:
                    break
        return wanted

    def want_runs(self, runs: Sequence[Run]) -> list[Run]:
        """Begins to fetch the given runs, by sequence; returns those that are not being fetched already."""
        wanted: list[Run] = []
        for run in runs:
            self._want(run, wanted)
        return wanted

    def _want(self, run: Run, wanted: list[Run]) -> None:
        if self._is_asked(run):
            return
        if wanted and not self.joins and one_run(wanted[-1], run):
            before = wanted[-1]
            wanted[-1] = Run(run.batch, before.first, run.last, before.sequence, run.attempts, run.barred)
            self.fetching[before.sequence] = run.end
            self._inside = set() if self._inside is None else self._inside
            self._inside.add(run.sequence)
            return
        self.fetching[run.sequence] = run.end
        wanted.append(run)

    def ask(self, run: Run) -> bool:
        """Begins to fetch a run; False if a fetch of it is under way."""
        if self._is_asked(run):
            return False
        self.fetching[run.sequence] = run.end
        return True

    def _is_asked(self, run: Run) -> bool:
        """Whether a fetch under way brings a run, or the first part of it; the rest is fetched after that."""
        asked = self.fetching.get(run.sequence)
        if asked is None:
            return self._inside is not None and run.sequence in self._inside
        if asked < run.end:
            # It was joined with the run behind it, by another policy; the cleaner may split it again.
            self._more[run.sequence] = max(run.end, self._more.get(run.sequence, 0))
        return True

    def give_back(self, run: Run) -> None:
        """Returns a run that is only on disk to its position in a plain line, beside its neighbours."""
        line = self.ready
        index = bisect_right(line.keys, run.sequence, line.head)
        start, stop = max(index - 1, line.head), min(index + 1, len(line.runs))
        window = [*line.runs[start:index], whole(run), *line.runs[index:stop]]
        line.swap(start, stop, merge_evicted(window, self.fetching))

    def retry(self, now_ms: int) -> list[Run]:
        """Ends failed fetches that may be repeated now; returns the runs that they missed."""
        missed: list[Run] = []
        while self.retries and self.retries[0][0] <= now_ms:
            sequence = heappop(self.retries)[1]
            end = self.fetching.pop(sequence, sequence)
            self._forget(sequence, end)
            end = max(end, self._more.pop(sequence, end))
            # The cleaner may have split the run since the fetch began.
            for line in self.lines:
                index = line.index(sequence)
                while index < len(line.runs) and line.keys[index] < end:
                    if line.runs[index] is not GONE:
                        missed.append(line.runs[index])
                    index += 1
        return missed

    def _forget(self, first: int, last: int) -> None:
        if self._inside:
            self._inside.difference_update(range(first, last))

    def fill(self, answer: Fetched, now_ms: int, *, missing: bool = False) -> tuple[list[Run], list[Run]]:
        """Replaces evicted runs by fetched messages.

        Args:
            missing: messages that do not wait have to be fetched again.

        Returns:
            The runs that are in memory now, and the lost ones, which were removed.
        """
        asked = self.fetching.get(answer.sequence)
        end = max([run.end for run in answer.runs] + [asked or 0])
        came: list[Run] = []
        lost: list[Run] = []
        for line in self.lines:
            missing |= self._fill(line, answer, end, asked or 0, came, lost)
        if came and not self.joins:
            size = sum(run.size for run in came)
            self._came = deque() if self._came is None else self._came
            self._came.append((came[0].sequence, max(run.end for run in came), size))
            self._came_bytes += size
        if asked is not None:
            if missing:
                heappush(self.retries, (now_ms + FETCH_RETRY_MS, answer.sequence))
            elif answer.sequence in self._more:
                heappush(self.retries, (now_ms, answer.sequence))
            else:
                del self.fetching[answer.sequence]
                self._forget(answer.sequence, asked)
        return came, lost

    def _fill(
        self, line: Ready, answer: Fetched, end: int, asked: int, came: list[Run], lost: list[Run]
    ) -> bool:
        """Fills one line; returns whether fetched messages are still missing in it."""
        index = line.index(answer.sequence)
        still = False
        while index < len(line.runs) and line.keys[index] < end:
            run = line.runs[index]
            if run.batch.data is not None:
                index += 1
                continue
            pieces = disk.pieces_of(answer.runs, run)
            missing = run.count - sum(piece.count for piece in pieces)
            if missing and not (answer.damaged and self._is_what_was_asked(run, answer.sequence, asked)):
                # The run may have been joined with the one before it, by another policy.
                still |= run.sequence <= answer.sequence or (not self.joins and run.end <= asked)
                index += 1
                continue
            if missing:
                lost.extend(disk.gaps_of(pieces, run))
            if self.joins:
                pieces = join_neighbours(pieces)
            line.swap(index, index + 1, pieces)
            index = line.index(run.end)
            came.extend(pieces)
        return still

    def _is_what_was_asked(self, run: Run, first: int, asked: int) -> bool:
        """Whether a run is the one that a fetch is for, or one of several single messages that it is for."""
        if run.sequence == first:
            return run.end == asked or (not self.joins and run.end <= asked)
        return self._inside is not None and run.sequence in self._inside and run.end <= asked

    def relocate(self, run: Run, location: Location) -> int:
        """Sets the new location of those messages of a run that wait; returns how many there were."""
        return sum(self._relocate(line, run, location) for line in self.lines)

    def _relocate(self, line: Ready, run: Run, location: Location) -> int:
        old = run.batch.location
        moved = 0
        low = index = line.index(run.sequence)
        window: list[Run] = []
        shared: dict[int, Batch] = {}
        while index < len(line.runs) and line.keys[index] < run.end:
            each = line.runs[index]
            index += 1
            if old is None or each.batch.location is None or each.batch.location.segment != old.segment:
                window.append(each)
                continue
            for piece in parted(each, run, location):
                if piece.batch.location is location:
                    moved += piece.count
                    if piece.batch.ends is not None:
                        # Parts of one batch stay parts of one batch.
                        piece.batch = shared.setdefault(id(each.batch), piece.batch)
                window.append(piece)
        if moved and self.joins:
            start = max(low - 1, line.head)
            stop = min(index + 1, len(line.runs))
            window = line.runs[start:low] + window + line.runs[index:stop]
            line.swap(start, stop, merge_evicted(window, self.fetching))
        elif moved:
            line.swap(low, index, disk.regrouped(window))
            disk.join_before(line, low)
        return moved
