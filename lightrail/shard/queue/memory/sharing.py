"""Sharing: lets single messages share a batch after the cleaner has moved them, record by record.

Each record has a location of its own, so messages of one batch would become a batch per message: 300 bytes
that are not counted, for a message whose index is counted with 250.
"""

from collections.abc import Sequence
from itertools import groupby

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.merging import copied, evicted_singles
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.values.runs import Run


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
