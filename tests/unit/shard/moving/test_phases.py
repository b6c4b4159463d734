"""Phases of a move: every phase with every event, and what any order of events can lead to."""

import random
from collections import Counter
from itertools import product

import pytest

from lightrail.shard.moving.phases import (
    ENDS,
    RETRIED,
    TRANSITIONS,
    MoveEvent,
    MoveProgress,
    Phase,
    PhaseError,
)
from tests.support.transitions import rows

# Every phase with every event: the phase that follows, or a dash where the event is refused.
TABLE = """
            skip    begin  repeat    freeze  switch  commit  cancel     break   lose      refuse    spoil
WAITING     SWITCH  COPY   -         -       -       -       CANCELLED  BROKEN  WAITING   WAITING   WAITING
COPY        SWITCH  COPY   CATCH_UP  FREEZE  -       -       CANCELLED  BROKEN  COPY      COPY      COPY
CATCH_UP    SWITCH  COPY   CATCH_UP  FREEZE  -       -       CANCELLED  BROKEN  CATCH_UP  CATCH_UP  CATCH_UP
FREEZE      SWITCH  COPY   -         -       SWITCH  -       CANCELLED  BROKEN  FREEZE    FREEZE    FREEZE
SWITCH      -       -      -         -       -       DONE    CANCELLED  BROKEN  -         -         -
DONE        -       -      -         -       -       -       -          -       -         -         -
CANCELLED   -       -      -         -       -       -       -          -       -         -         -
BROKEN      -       -      -         -       -       -       -          -       -         -         -
"""
ROWS = rows(TABLE, Phase.__getitem__, MoveEvent)

FAILURES = {*RETRIED, MoveEvent.CANCEL, MoveEvent.BREAK}


def progress(phase: Phase = Phase.WAITING) -> MoveProgress:
    return MoveProgress("q", 0, 1, 3, 1_000, phase)


def test_the_table_has_every_phase_with_every_event() -> None:
    assert {(phase, event) for phase, event, _ in ROWS} == set(product(Phase, MoveEvent))
    assert len(TRANSITIONS) == sum(after is not None for _, _, after in ROWS)


@pytest.mark.parametrize(("before", "event", "after"), ROWS)
def test_an_event_leads_to_the_phase_of_the_table_or_is_refused(
    before: Phase, event: MoveEvent, after: Phase | None
) -> None:
    move = progress(before)
    if after is None:
        with pytest.raises(PhaseError, match=f"expected an event that {before.name} allows"):
            move.apply(event)
        assert move == progress(before)
    else:
        move.apply(event)
        assert move.phase is after


def test_every_order_of_events_passes_the_steps_of_a_move_and_every_transition_is_passed() -> None:
    """A placement is committed only for a checked copy, or where there is nothing to copy; ends are final."""
    passed: Counter[tuple[Phase, MoveEvent]] = Counter()
    chance = random.Random(5)
    for _ in range(500):
        move, events = progress(), []
        while move.phase not in ENDS:
            event = chance.choice([event for phase, event in TRANSITIONS if phase is move.phase])
            passed[move.phase, event] += 1
            move.apply(event)
            events.append(event)
        if move.phase is Phase.DONE:
            steps = [event for event in events if event not in FAILURES]
            assert steps[-1] is MoveEvent.COMMIT
            assert steps[-2] is MoveEvent.SKIP or (
                steps[-2] is MoveEvent.SWITCH
                and steps[-3] is MoveEvent.FREEZE
                and steps[-4] in (MoveEvent.BEGIN, MoveEvent.REPEAT)
            )
        assert move.result in ("done", "cancelled", "")
        assert not [event for event in MoveEvent if (move.phase, event) in TRANSITIONS]
    assert passed.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize("before", [phase for phase in Phase if phase not in ENDS])
@pytest.mark.parametrize("event", [event for event in MoveEvent if event in FAILURES])
def test_a_failure_that_a_phase_does_not_expect_breaks_the_move(before: Phase, event: MoveEvent) -> None:
    move = progress(before)
    expected = event if (before, event) in TRANSITIONS else MoveEvent.BREAK
    assert move.fail(event) is expected
    assert move.phase is TRANSITIONS[before, expected]


@pytest.mark.parametrize(("event", "result"), [(MoveEvent.COMMIT, "done"), (MoveEvent.CANCEL, "cancelled")])
def test_the_phase_in_which_a_move_ended_is_shown_beside_its_result(event: MoveEvent, result: str) -> None:
    move = progress(Phase.SWITCH)
    move.apply(event)
    shown = move.describe(2_500)
    assert (shown["phase"], shown["result"], shown["seconds"]) == ("switch", result, 1.5)
