"""Messages of a queue on disk: which are spilled, which were fetched, and which batches they share.

Waiting messages that are written to disk, so that they can be evicted, are chosen from the tail of a line.
Only whole batches are chosen, or runs that get a separate batch, so that one location is valid for all of a
batch.

After the cleaner has moved single messages, record by record, each record has a location of its own. Messages
of one batch would become a batch per message, if they did not share one again: 300 bytes that are not
counted, for a message whose index is counted with 250.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.merging import copied, evicted_singles
from lightrail.shard.queue.lines.ready import Ready, one_run
from lightrail.shard.queue.values.runs import Batch, Run, sequence_of


def pieces_of(runs: Sequence[Run], wanted: Run) -> list[Run]:
    """The messages of `runs` that belong to the evicted run `wanted`, with its attempts and barred
    consumers."""
    pieces: list[Run] = []
    first = max(0, bisect_right(runs, wanted.sequence, key=sequence_of) - 1)
    for run in runs[first:]:
        if run.sequence >= wanted.end:
            break
        low = max(run.sequence, wanted.sequence)
        high = min(run.end, wanted.end)
        if low < high:
            batch = run.batch
            if batch.location is None:
                batch.location = wanted.batch.location
            index = run.first + low - run.sequence
            pieces.append(Run(batch, index, index + high - low, low, wanted.attempts, wanted.barred))
    return pieces


def gaps_of(pieces: list[Run], wanted: Run) -> list[Run]:
    """The messages of the evicted run `wanted` that are in none of the pieces."""
    gaps: list[Run] = []
    sequence = wanted.sequence
    for start, end in [(piece.sequence, piece.end) for piece in pieces] + [(wanted.end, wanted.end)]:
        if sequence < start:
            gaps.append(wanted.cut(sequence - wanted.sequence, start - wanted.sequence))
        sequence = end
    return gaps


def regrouped(runs: Sequence[Run]) -> list[Run]:
    """The runs of a record that was moved, in batches of which they are all.

    So a batch in memory counts in full (`Sparse.batch_bytes`), whatever it was a part of. Few bytes are
    copied; beside many messages the bytes around them do not matter.
    """
    result: list[Run] = []
    for evicted, group in groupby(runs, key=_is_evicted):
        if evicted:
            result += evicted_singles(list(group))
            continue
        for _, neighbours in groupby(group, key=_batch_of):
            parts = list(neighbours)
            count, size = sum(run.count for run in parts), sum(run.size for run in parts)
            whole = count == parts[0].batch.count
            result += parts if whole or size > limits.SLIM_BYTES_MIN else copied(parts)
    return result


def join_before(line: Ready, index: int) -> None:
    """Makes one batch of that on disk at an index and the one before it, while that is no larger.

    Where messages are moved one by one, in their order, each gets a new batch eight times at most.
    """
    runs = line.runs
    stop = index
    while stop < len(runs) and _shares(runs[stop]) and runs[stop].batch is runs[index].batch:
        stop += 1
    group = list(range(index, stop))
    while group:
        before = _batch_before(line, group[0], len(group))
        if not before:
            return
        group = before + group
        shared = evicted_singles([runs[each] for each in group])
        if any(run.batch is not shared[0].batch for run in shared):
            return
        for each, run in zip(group, shared, strict=True):
            line.exchange(each, run)


def _batch_before(line: Ready, index: int, count_max: int) -> list[int]:
    """Where the runs are, before an index, that share one batch on disk; none if they are too many."""
    runs = line.runs
    found: list[int] = []
    for each in range(index - 1, max(line.head, index - limits.SINGLES_SHARING_MAX) - 1, -1):
        run = runs[each]
        if run is GONE:
            continue
        if not _shares(run) or (found and run.batch is not runs[found[-1]].batch):
            break
        if len(found) == count_max:
            return []
        found.append(each)
    found.reverse()
    return found


def _shares(run: Run) -> bool:
    """Whether a run is a single message that is only on disk."""
    return run.batch.data is None and run.last - run.first == 1


def _is_evicted(run: Run) -> bool:
    return run.batch.data is None


def _batch_of(run: Run) -> int:
    return id(run.batch)


def batches_to_spill(ready: Ready, bytes_wanted: int, keep: int, extra: int) -> list[Run]:
    """Whole batches that have no location.

    Args:
        keep: bytes at the head that stay in memory.
        extra: bytes that count for each run beside its messages.
    """
    before = ready.bytes + extra * len(ready)
    found: list[Run] = []
    size = 0
    for run in reversed(ready.waiting()):
        before -= run.size + extra
        if before < keep or size >= bytes_wanted:
            break
        if run.batch.location is None and run.count == run.batch.count:
            found.append(run)
            size += run.size + extra
    found.reverse()
    return found


def large_head(ready: Ready, keep: int) -> Run | None:
    """The run at the head if it is in memory and larger than `keep` and limits.HEAD_BYTES_MIN.

    One without a location gets a separate batch, as other messages of its batch may get another location.
    """
    if not ready.count:
        return None
    run = ready.runs[ready.head]
    if run.batch.data is None or run.size <= max(keep, limits.HEAD_BYTES_MIN):
        return None
    if run.batch.location is None and run.count < run.batch.count:
        run = Run(run.batch.copy(), run.first, run.last, run.sequence, run.attempts, run.barred)
        ready.exchange(ready.head, run)
    return run


def singles_to_spill(line: Ready, bytes_wanted: int, keep: int) -> list[Run]:
    """Single messages that have no location; `keep` bytes at the head stay in memory.

    Neighbours of one batch are written together, and share a batch apart from what is in flight.
    """
    before = line.bytes
    resident = before - line.evicted_bytes
    size = 0
    start = stop = len(line.runs)
    last: Batch | None = None
    while start > line.head:
        run = line.runs[start - 1]
        before -= run.size
        if before < keep or resident <= 0 or (size >= bytes_wanted and run.batch is not last):
            break
        start -= 1
        if run.batch.data is not None:
            resident -= run.size
            if run.batch.location is None and run is not GONE:
                size += run.size
                last = run.batch
    if not size:
        return []
    return _grouped(line, start, stop)


def _grouped(line: Ready, start: int, stop: int) -> list[Run]:
    """Moves neighbours of one batch without a location to a separate batch; returns the runs to write."""
    window: list[Run] = []
    found: list[Run] = []
    before_: Run | None = None
    for run in line.runs[start:stop]:
        if run is GONE:
            continue
        if run.batch.location is not None or run.batch.data is None:
            window.append(run)
            continue
        if before_ is not None and one_run(before_, run):
            batch = found[-1].batch
            together = found[-1]
            found[-1] = Run(batch, together.first, run.last, together.sequence, run.attempts, run.barred)
        else:
            batch = run.batch.copy()
            found.append(Run(batch, run.first, run.last, run.sequence, run.attempts, run.barred))
        window.append(Run(batch, run.first, run.last, run.sequence, run.attempts, run.barred))
        before_ = run
    line.swap(start, stop, window)
    return found
