"""Spilling: chooses waiting messages that are written to disk so that they can be evicted.

They are chosen from the tail of a line. Only whole batches are chosen, or runs that get a separate batch,
so that one location is valid for all of a batch.
"""

from dataclasses import replace

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.ready import Ready, one_run
from lightrail.shard.queue.values.runs import Batch, Run


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
        run = Run(replace(run.batch), run.first, run.last, run.sequence, run.attempts, run.barred)
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
            batch = replace(run.batch)
            found.append(Run(batch, run.first, run.last, run.sequence, run.attempts, run.barred))
        window.append(Run(batch, run.first, run.last, run.sequence, run.attempts, run.barred))
        before_ = run
    line.swap(start, stop, window)
    return found
