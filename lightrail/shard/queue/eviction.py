"""Eviction: which ready messages stay in memory, which are only on disk, and when those are fetched back.

The first `head_bytes` of a queue stay in memory, and what moves into them is fetched: one window for both,
so that nothing is evicted that would be fetched at once. Runs are evicted from the tail.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from lightrail.model.limits import FETCH_RETRY_MS, RESIDENT_HEAD_BYTES
from lightrail.shard.queue.commands import Fetched
from lightrail.shard.queue.merging import join_neighbours, merge_evicted, on_disk, parted
from lightrail.shard.queue.ready import Ready
from lightrail.shard.queue.runs import Batch, Place, Run


class Eviction:
    """The window at the head of one queue, and the fetches under way."""

    __slots__ = ("evicted", "fetched", "fetching", "head_bytes", "joins", "ready", "retries", "unseen_bytes")

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.head_bytes = RESIDENT_HEAD_BYTES
        """Bytes at the head that stay in memory; whoever shares out the memory may set another value."""
        self.joins = True
        """Whether what was fetched is joined: not where every message has a run of its own."""
        self.fetching: dict[int, int] = {}
        """First and last sequence of what was asked for and has not come."""
        self.retries: list[tuple[int, int]] = []
        """(milliseconds, sequence): when a failed fetch may be asked for again; a heap."""
        self.unseen_bytes = 0
        """Taken from the head since the window was last looked through."""
        self.evicted = 0
        """Messages evicted so far."""
        self.fetched = 0
        """Messages fetched so far."""

    def evict(self, bytes_wanted: int) -> int:
        """Drops the messages of runs that have a place, from the tail, until `bytes_wanted` are free.

        Returns:
            Bytes that were freed; less than wanted when the rest is in the window or has no place yet.
        """
        ready = self.ready
        runs = ready.runs
        before = ready.bytes
        freed = 0
        chosen: list[int] = []
        for index in range(len(runs) - 1, ready.head - 1, -1):
            run = runs[index]
            size = run.size
            before -= size
            if before < self.head_bytes or freed >= bytes_wanted:
                break
            if run.batch.data is not None and run.batch.place is not None:
                chosen.append(index)
                freed += size + 4 * run.count
                self.evicted += run.count
        if chosen:
            start = max(chosen[-1] - 1, ready.head)
            stop = min(chosen[0] + 2, len(runs))
            window = runs[start:stop]
            for index in chosen:
                run = runs[index]
                batch = run.batch
                window[index - start] = on_disk(run, run.count, run.size, batch.place, batch.expires_at_ms)
            ready.swap(start, stop, merge_evicted(window, self.fetching))
        return freed

    def spill_candidates(self, bytes_wanted: int) -> list[Run]:
        """Ready runs outside the window that have no place, from the tail, up to `bytes_wanted` bytes.

        The caller writes each and sets `run.batch.place`; only whole batches are named, so that the place
        holds for all of it. What is evicted after that can be fetched like everything else.
        """
        ready = self.ready
        before = ready.bytes
        found: list[Run] = []
        size = 0
        for run in reversed(ready.waiting()):
            before -= run.size
            if before < self.head_bytes or size >= bytes_wanted:
                break
            if run.batch.place is None and run.count == run.batch.count:
                found.append(run)
                size += run.size
        found.reverse()
        return found

    def look_ahead(self) -> list[Run]:
        """What of the window is on disk and has not been asked for, in order; each is named once."""
        self.unseen_bytes = 0
        wanted: list[Run] = []
        seen = 0
        ready = self.ready
        for index in range(ready.head, len(ready.runs)):
            if seen >= self.head_bytes:
                break
            run = ready.runs[index]
            seen += run.size
            if run.batch.data is None and self.ask(run):
                wanted.append(run)
        return wanted

    def ask(self, run: Run) -> bool:
        """Notes that a run on disk is wanted; False if it was asked for already."""
        if run.sequence in self.fetching:
            return False
        self.fetching[run.sequence] = run.end
        return True

    def retry(self, now_ms: int) -> list[Run]:
        """Lets failed fetches be asked for again whose time has come; returns the runs that they missed."""
        missed: list[Run] = []
        ready = self.ready
        while self.retries and self.retries[0][0] <= now_ms:
            sequence = heappop(self.retries)[1]
            end = self.fetching.pop(sequence, sequence)
            # The cleaner may have parted the run since it was asked for.
            index = ready.index(sequence)
            while index < len(ready.runs) and ready.runs[index].sequence < end:
                missed.append(ready.runs[index])
                index += 1
        return missed

    def fill(self, answer: Fetched, now_ms: int) -> tuple[list[Run], list[Run]]:
        """Puts what was fetched in the place of the evicted runs that it covers.

        Returns:
            The runs that are in memory now, and those that are lost and were taken out.
        """
        ready = self.ready
        asked = self.fetching.get(answer.sequence)
        end = max([run.end for run in answer.runs] + [asked or 0])
        came: list[Run] = []
        lost: list[Run] = []
        index = ready.index(answer.sequence)
        while index < len(ready.runs) and ready.runs[index].sequence < end:
            run = ready.runs[index]
            if run.batch.data is not None:
                index += 1
                continue
            pieces = list(_pieces(answer.runs, run))
            missing = run.count - sum(piece.count for piece in pieces)
            if missing and not (answer.damaged and asked == run.end and run.sequence == answer.sequence):
                index += 1
                continue
            if missing:
                lost.extend(_gaps(pieces, run))
            if self.joins:
                pieces = join_neighbours(pieces)
            ready.swap(index, index + 1, pieces)
            index = ready.index(run.end)
            came.extend(pieces)
        self.fetched += sum(run.count for run in came)
        if asked is not None:
            index = ready.index(answer.sequence)
            if (
                index < len(ready.runs)
                and ready.runs[index].sequence == answer.sequence
                and ready.runs[index].batch.data is None
            ):
                heappush(self.retries, (now_ms + FETCH_RETRY_MS, answer.sequence))
            else:
                del self.fetching[answer.sequence]
        return came, lost

    def relocate(self, run: Run, place: Place) -> int:
        """Gives the ready ones of a run's messages their new place; returns how many there were."""
        ready = self.ready
        old = run.batch.place
        moved = 0
        low = index = ready.index(run.sequence)
        window: list[Run] = []
        shared: dict[int, Batch] = {}
        while index < len(ready.runs) and ready.runs[index].sequence < run.end:
            each = ready.runs[index]
            index += 1
            if old is None or each.batch.place is None or each.batch.place.segment != old.segment:
                window.append(each)
                continue
            for piece in parted(each, run, place):
                if piece.batch.place is place:
                    moved += piece.count
                    if piece.batch.data is not None:
                        # Parts of one batch stay parts of one.
                        piece.batch = shared.setdefault(id(each.batch), piece.batch)
                window.append(piece)
        if moved:
            start = max(low - 1, ready.head)
            stop = min(index + 1, len(ready.runs))
            window = ready.runs[start:low] + window + ready.runs[index:stop]
            ready.swap(start, stop, merge_evicted(window, self.fetching))
        return moved


def _pieces(runs: Sequence[Run], wanted: Run) -> list[Run]:
    """What of `runs` belongs to the evicted run `wanted`, with the past that `wanted` has."""
    pieces: list[Run] = []
    for run in runs:
        low = max(run.sequence, wanted.sequence)
        high = min(run.end, wanted.end)
        if low < high:
            batch = run.batch
            if batch.place is None:
                batch.place = wanted.batch.place
            first = run.first + low - run.sequence
            pieces.append(Run(batch, first, first + high - low, low, wanted.attempts, wanted.barred))
    return pieces


def _gaps(pieces: list[Run], wanted: Run) -> list[Run]:
    """What of the evicted run `wanted` is in none of the pieces."""
    gaps: list[Run] = []
    sequence = wanted.sequence
    for start, end in [(piece.sequence, piece.end) for piece in pieces] + [(wanted.end, wanted.end)]:
        if sequence < start:
            gaps.append(wanted.cut(sequence - wanted.sequence, start - wanted.sequence))
        sequence = end
    return gaps
