"""Fetched messages: those of a run on disk that were read, and those that are missing."""

from bisect import bisect_right
from collections.abc import Sequence

from lightrail.shard.queue.values.runs import Run


def pieces_of(runs: Sequence[Run], wanted: Run) -> list[Run]:
    """The messages of `runs` that belong to the evicted run `wanted`, with its attempts and barred
    consumers."""
    pieces: list[Run] = []
    first = max(0, bisect_right(runs, wanted.sequence, key=_sequence) - 1)
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


def _sequence(run: Run) -> int:
    return run.sequence
