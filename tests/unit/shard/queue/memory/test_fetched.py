"""Fetched messages: what was read and what is missing make up the run that was asked for."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.queue.memory.fetched import gaps_of, pieces_of
from lightrail.shard.queue.values.runs import Batch, Location, Run, batch_of

LOCATION = Location(1, 0, 500)


def wanted(first: int, last: int) -> Run:
    """A run that is only on disk."""
    return Run(Batch(None, None, last - first, 0, location=LOCATION), 0, last - first, first, 2, (7,))


def read(first: int, last: int) -> Run:
    """Messages with these sequences, which are their bodies."""
    return Run(batch_of([b"%d" % each for each in range(first, last)]), 0, last - first, first)


def sequences(runs: list[Run]) -> list[int]:
    return [sequence for run in runs for sequence in range(run.sequence, run.end)]


@given(st.integers(0, 20), st.integers(1, 20), st.sets(st.integers(0, 50), max_size=12))
def test_pieces_and_gaps_make_up_the_run(first: int, count: int, ends: set[int]) -> None:
    run = wanted(first, first + count)
    bounds = sorted(ends)
    runs = [read(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=False)]
    here = set(sequences(runs))
    pieces = pieces_of(runs, run)
    found = sequences(pieces)
    assert found == [each for each in range(run.sequence, run.end) if each in here]
    assert sequences(gaps_of(pieces, run)) == sorted(set(range(run.sequence, run.end)) - here)
    assert [body for each in pieces for body in each.messages()] == [b"%d" % each for each in found]


def test_a_piece_has_the_past_and_the_location_of_the_run_that_was_asked_for() -> None:
    (piece,) = pieces_of([read(0, 10)], wanted(3, 6))
    assert (piece.sequence, piece.end, piece.attempts, piece.barred) == (3, 6, 2, (7,))
    assert piece.batch.location == LOCATION


def test_what_has_a_location_of_its_own_keeps_it() -> None:
    run = read(0, 10)
    run.batch.location = Location(2, 40, 60)
    (piece,) = pieces_of([run], wanted(3, 6))
    assert piece.batch.location == Location(2, 40, 60)
