"""Merging: joins neighbours in a queue to one batch, in memory or on disk, so that backlogs need few objects.

A million messages, enqueued ten at a time, would be a hundred thousand batches, each with some 700 bytes of
objects around 1000 bytes of payload. Joined they are copied once; that happens only when a backlog has
built up, away from both ends, so that a queue that keeps up never pays for it.
"""

from array import array
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.values.runs import Ends, Location, Run, ends_of, joined, shifted

JOINED_SPAN_MS: Final[int] = 60_000
"""Messages of one joined batch arrived within this time; it keeps the earliest time of arrival."""
LOCATION_BYTES: Final[int] = 1024 * 1024
"""Largest area of the journal that one batch stands for, and so the largest read of a fetch."""
LOCATION_SPARSE_BYTES: Final[int] = 8 * 1024 * 1024
"""The same with records of other queues in between, if at least one byte in LOCATION_SPARSENESS is the
queue's."""
LOCATION_SPARSENESS: Final[int] = 32
LOCATION_SPARSE_MESSAGES_BYTES: Final[int] = 256 * 1024
"""Most messages that such a sparse area stands for."""
LOCATION_SINGLES_BYTES: Final[int] = 32 * 1024
"""Largest area of the journal that is read for one message of a queue with a run per message, if no record is
larger."""


def join_neighbours(runs: list[Run]) -> list[Run]:
    """The same messages in fewer runs: neighbours in memory are copied together up to `JOINED_BYTES`."""
    result: list[Run] = []
    group: list[Run] = []
    size = 0
    location: Location | None = None
    for run in runs:
        run_size = run.size
        if group:
            if (
                run.batch.data is not None
                and size + run_size <= limits.JOINED_BYTES
                and near(location, run.batch.location, size + run_size)
                and _alike(group[-1], run)
                and run.batch.expires_at_ms == group[0].batch.expires_at_ms
                and run.batch.enqueued_at_ms - group[0].batch.enqueued_at_ms <= JOINED_SPAN_MS
            ):
                group.append(run)
                size += run_size
                location = spanning(location, run.batch.location)
                continue
            result.append(_join(group, location))
        group = [run]
        size = run_size
        location = run.batch.location
        is_unwritten = run.batch.durable and location is None
        if run.batch.data is None or 2 * size > limits.JOINED_BYTES or is_unwritten:
            result.append(run)
            group = []
    if group:
        result.append(_join(group, location))
    return result


def merge_evicted(runs: list[Run], busy: dict[int, int]) -> list[Run]:
    """The same messages in fewer runs: neighbours that are only on disk, near each other, become one.

    The expiry of the result is the earliest of its parts: then the run is fetched, and every
    batch brings its own expiry back. Runs whose sequence is in `busy` are being fetched and stay as they are.
    """
    result: list[Run] = []
    for run in runs:
        if result and run.batch.data is None and run.sequence not in busy:
            before = result[-1]
            if before.batch.data is None and before.sequence not in busy and _alike(before, run):
                size = before.size + run.size
                if near(before.batch.location, run.batch.location, size):
                    location = spanning(before.batch.location, run.batch.location)
                    result[-1] = on_disk(before, before.count + run.count, size, location)
                    result[-1].batch.expires_at_ms = _earliest(before, run)
                    continue
        result.append(run)
    return result


def on_disk(run: Run, count: int, size: int, location: Location | None, ends: Ends | None = None) -> Run:
    """A run of `count` messages from the sequence of `run`, with its attributes, known by location only."""
    batch = run.batch.alike(None, ends, count, size, 0, location)
    return Run(batch, 0, count, run.sequence, run.attempts, run.barred)


def evicted_singles(runs: Sequence[Run]) -> list[Run]:
    """Single messages that have a location, without their bytes, each still in a separate run.

    Neighbours whose records lie near each other share one batch, which knows the size of each message: then
    a message costs its run and four bytes more. To get one of them back, the location of all is read.
    """
    result: list[Run] = []
    group: list[Run] = []
    location: Location | None = None
    for run in runs:
        if run.count > 1:
            # The queue has not read these messages yet.
            result += _side_by_side(group, location)
            result.append(on_disk(run, run.count, run.size, run.batch.location))
            group = []
            continue
        if group:
            both = spanning(location, run.batch.location)
            if both is not None and _shares(group[0], run, len(group)) and _is_short(both, location):
                group.append(run)
                location = both
                continue
            result += _side_by_side(group, location)
        group = [run]
        location = run.batch.location
    return result + _side_by_side(group, location)


def _shares(first: Run, run: Run, count: int) -> bool:
    """Whether a single message may share the batch that begins with another one."""
    one, other = first.batch, run.batch
    assert one.location is not None
    assert other.location is not None
    return (
        count < limits.SINGLES_SHARING_MAX
        and one.location.segment == other.location.segment
        and one.durable == other.durable
        and one.priority == other.priority
        and one.message_format == other.message_format
        and one.expires_at_ms == other.expires_at_ms
        and other.enqueued_at_ms - one.enqueued_at_ms <= JOINED_SPAN_MS
    )


def _is_short(both: Location, location: Location | None) -> bool:
    """Whether a location is no longer for another message in it than the reading of one is worth."""
    return both == location or both.length <= LOCATION_SINGLES_BYTES


def _side_by_side(group: list[Run], location: Location | None) -> list[Run]:
    if not group:
        return []
    first = group[0]
    if len(group) == 1:
        return [on_disk(first, 1, first.size, location)]
    ends = array("I", accumulate(run.size for run in group))
    batch = on_disk(first, len(group), ends[-1], location, ends).batch
    return [
        Run(batch, index, index + 1, run.sequence, run.attempts, run.barred)
        for index, run in enumerate(group)
    ]


def evicted_deliveries(
    keys: Sequence[int], runs: Sequence[Run], kept: Container[int] = ()
) -> tuple[list[int], list[Run]]:
    """Deliveries, by number, that have a location, without their bytes; the size of each message stays known.

    So a part of them can be settled, or return, and every sum stays right. Neighbours whose records lie
    near each other become one run, as small as `_is_short` wants it: a message costs four bytes then.

    Args:
        kept: numbers of runs that stay as they are.
    """
    new_keys: list[int] = []
    result: list[Run] = []
    group: list[Run] = []
    location: Location | None = None
    count = 0
    for key, run in zip(keys, runs, strict=True):
        if group and key not in kept and key == new_keys[-1] + count and _may_follow(group[-1], run):
            both = spanning(location, run.batch.location)
            if both is not None and _shares(group[0], run, count + run.count) and _is_short(both, location):
                group.append(run)
                location = both
                count += run.count
                continue
        if group:
            result.append(_sized(group, location))
        new_keys.append(key)
        if key in kept:
            result.append(run)
            group = []
            continue
        group = [run]
        location = run.batch.location
        count = run.count
    if group:
        result.append(_sized(group, location))
    return new_keys, result


def sized(run: Run, pieces: Sequence[Run]) -> Run:
    """A run on disk, whose messages are also in `pieces`, with the size of each."""
    ends = array("I", accumulate(size for piece in pieces for size in _sizes(piece)))
    return on_disk(run, run.count, ends[-1], run.batch.location, ends)


def _sizes(run: Run) -> Iterator[int]:
    before = 0
    for end in ends_of(run):
        yield end - before
        before = end


def _may_follow(before: Run, run: Run) -> bool:
    """Whether the sizes of both are known, and they are neighbours in the queue with the same past."""
    return (
        before.batch.ends is not None
        and run.batch.ends is not None
        and before.end == run.sequence
        and before.attempts == run.attempts
        and before.barred == run.barred
    )


def _sized(group: list[Run], location: Location | None) -> Run:
    """One run on disk of the messages of `group`, with the size of each where that is known."""
    first = group[0]
    if len(group) == 1 and first.batch.data is None:
        return first
    ends = array("I")
    for run in group:
        column = run.batch.ends
        assert column is not None
        start = column[run.first - 1] if run.first else 0
        size = ends[-1] if ends else 0
        mine = column[run.first : run.last]
        ends.frombytes(shifted(mine, size - start) if size != start else bytes(mine))
    return on_disk(first, len(ends), ends[-1], location, ends)


def slim(run: Run) -> Run:
    """The same messages; the few remaining ones of a large batch are copied, so that its memory is freed.

    At most a fourth of a batch is copied, into a new one: of each received byte, a third at most.
    """
    batch = run.batch
    if batch.data is None or batch.size < limits.SLIM_BYTES_MIN or 4 * run.size > batch.size:
        return run
    return copied([run])[0]


def slim_singles(runs: Sequence[Run]) -> list[Run]:
    """The same messages; those that are at most half of a batch are copied to one batch of their own."""
    result: list[Run] = []
    at = 0
    while at < len(runs):
        batch = runs[at].batch
        stop = at + 1
        while stop < len(runs) and runs[stop].batch is batch:
            stop += 1
        group = runs[at:stop]
        at = stop
        size = sum(run.size for run in group)
        if batch.data is None or batch.size - size <= limits.SPARE_BYTES_MIN or 2 * size > batch.size:
            result += group
            continue
        result += copied(group)
    return result


def copied(runs: Sequence[Run]) -> list[Run]:
    """Runs of one batch, copied to a new batch that has only them."""
    batch = joined(runs, runs[0].batch.location)
    result: list[Run] = []
    index = 0
    for run in runs:
        result.append(Run(batch, index, index + run.count, run.sequence, run.attempts, run.barred))
        index += run.count
    return result


def whole(run: Run) -> Run:
    """The same run; if it is only on disk, with a batch that has only its messages."""
    batch = run.batch
    if batch.data is not None or (batch.ends is None and run.count == batch.count):
        return run
    return on_disk(run, run.count, run.size, batch.location)


def parts_of(run: Run, count: int) -> tuple[Run, Run]:
    """The first `count` messages and the others, each of them whole batches where they are only on disk."""
    head, rest = run.split(count)
    batch = run.batch
    if batch.data is None and rest.count:
        size = head.size
        head = on_disk(head, count, size, batch.location)
        rest = on_disk(rest, rest.count, run.size - size, batch.location)
    return head, rest


def parted(each: Run, run: Run, location: Location) -> list[Run]:
    """A run of the queue, split where `run` begins and ends; the part inside gets the new location."""
    low = max(run.sequence, each.sequence) - each.sequence
    high = min(run.end, each.end) - each.sequence
    total, left = each.count, each.size
    parts: list[Run] = []
    for start, stop in ((0, low), (low, high), (high, total)):
        if start == stop:
            continue
        part = each.cut(start, stop)
        here = location if start == low else each.batch.location
        if each.batch.data is None and each.batch.ends is None:
            size = left if stop == total else min(left, run.size if start == low else part.size)
            left -= size
            part = on_disk(part, part.count, size, here)
        elif start == low:
            part.batch = each.batch.copy()
            part.batch.location = location
        parts.append(part)
    return parts


def near(one: Location | None, other: Location | None, size: int) -> bool:
    """Whether one location may cover both, for `size` bytes of messages; two without a location are near."""
    if one is None or other is None:
        return one is other
    if one.segment != other.segment:
        return False
    length = max(one.offset + one.length, other.offset + other.length) - min(one.offset, other.offset)
    if length <= LOCATION_BYTES:
        return True
    sparse = min(LOCATION_SPARSE_BYTES, LOCATION_SPARSENESS * size)
    return size <= LOCATION_SPARSE_MESSAGES_BYTES and length <= sparse


def spanning(one: Location | None, other: Location | None) -> Location | None:
    """The location that covers two of one segment; None if either has none."""
    if one is None or other is None:
        return None
    start = min(one.offset, other.offset)
    return Location(one.segment, start, max(one.offset + one.length, other.offset + other.length) - start)


def _join(group: list[Run], location: Location | None) -> Run:
    first = group[0]
    if len(group) == 1:
        return first
    batch = joined(group, location)
    return Run(batch, 0, batch.count, first.sequence, first.attempts, first.barred)


def _alike(before: Run, after: Run) -> bool:
    """Whether two runs are neighbours without a gap and have equal attributes."""
    one, other = before.batch, after.batch
    return (
        before.sequence + before.last - before.first == after.sequence
        and before.attempts == after.attempts
        and before.barred == after.barred
        and one.durable == other.durable
        and one.priority == other.priority
        and one.message_format == other.message_format
    )


def _earliest(one: Run, other: Run) -> int | None:
    times = [run.batch.expires_at_ms for run in (one, other) if run.batch.expires_at_ms is not None]
    return min(times) if times else None
