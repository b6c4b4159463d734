"""Converts the bytes of Append records to batches and runs, and batches to columns."""

from bisect import bisect_right

from lightrail.journal.layout import AppendHead, decode_append_head
from lightrail.journal.scan import Found
from lightrail.shard.queue.values.runs import Batch, Location, Run, shifted


def columns(batch: Batch, first: int, last: int) -> tuple[int, bytes | memoryview, memoryview]:
    """Size, ends and blob of messages `first` to before `last`, as in an Append record.

    The messages are not copied; their ends are copied only if they are renumbered, or may still change.

    Raises:
        ValueError: the batch is not in memory.
    """
    data, column = batch.loaded()
    if first:
        start = column[first - 1]
        size = column[last - 1] - start
        ends: bytes | memoryview = shifted(column[first:last], -start)
        start += batch.base
    else:
        start = batch.base
        size = column[last - 1]
        if last != batch.count:
            ends = column[:last].tobytes()
        elif type(column) is memoryview:
            ends = column
        else:
            ends = column.tobytes()
    return size, ends, memoryview(data)[start : start + size]


def load(found: Found, head: AppendHead, column: int, segment: int, first: int, last: int) -> Batch:
    """Messages `first` to before `last` of an Append record as a batch in memory, copied from the view.

    Args:
        column: where the record's ends begin in the view.
    """
    view = found.view
    blob = column + 4 * head.messages
    ends = memoryview(bytes(view[column + 4 * first : column + 4 * last])).cast("I")
    start = 0
    if first:
        start = int.from_bytes(view[column + 4 * first - 4 : column + 4 * first], "little")
        ends = memoryview(shifted(ends, -start)).cast("I")
    size = ends[-1]
    return Batch(
        bytes(view[blob + start : blob + start + size]),
        ends,
        last - first,
        size,
        0,
        bool(head.attributes & 1),
        head.priority,
        head.expires_at_ms or None,
        head.enqueued_at_ms,
        Location(segment, found.offset, found.length),
        head.message_format,
    )


def runs_of(found: Found, segment: int, queue: int, first: int, last: int) -> list[Run]:
    """The messages of a queue with sequences `first` to before `last` in an Append record (none or one run).

    A record that names the queue twice would result in two runs.
    """
    head, targets, column = decode_append_head(found.view, found.start, found.length)
    runs = []
    for target, sequence in targets:
        if target == queue:
            start, stop = max(first, sequence), min(last, sequence + head.messages)
            if start < stop:
                batch = load(found, head, column, segment, start - sequence, stop - sequence)
                runs.append(Run(batch, 0, stop - start, start, head.attempts))
    return runs


def lay_over(runs: list[Run], run: Run) -> None:
    """Inserts a run among sorted ones; it replaces messages with the same sequences."""
    if not runs or run.sequence >= runs[-1].end:
        runs.append(run)
        return
    low = max(0, bisect_right(runs, run.sequence, key=_sequence) - 1)
    if runs[low].end <= run.sequence:
        low += 1
    high = low
    kept = []
    while high < len(runs) and runs[high].sequence < run.end:
        old = runs[high]
        if old.sequence < run.sequence:
            kept.append(old.cut(0, run.sequence - old.sequence))
        if old.end > run.end:
            kept.append(old.cut(run.end - old.sequence, old.count))
        high += 1
    at = 1 if kept and kept[0].sequence < run.sequence else 0
    kept.insert(at, run)
    runs[low:high] = kept


def _sequence(run: Run) -> int:
    return run.sequence
