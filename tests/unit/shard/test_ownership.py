"""Ownership of a queue: every state with every event, and what placements and names make of a queue."""

from collections import Counter
from itertools import product

import pytest

from lightrail.cluster.map import Placed
from lightrail.model.names import TEMPORARY_SEGMENT
from lightrail.model.policy import NONE, QUEUE, Policy
from lightrail.namespace.records import Name
from lightrail.shard.journal.record import Declared
from lightrail.shard.queues.ownership import (
    PLACED,
    TRANSITIONS,
    Event,
    Ownership,
    OwnershipError,
    State,
    Verdict,
    judge,
    judge_name,
    recovered,
)
from tests.support.transitions import rows

HERE, ELSEWHERE = 0, 1
EPOCH = 3
OTHER = Policy.parse({"role": "queue", "max_length": 5})

# Every state with every event: the state that follows, or a dash where the event is refused.
TABLE = """
            open     freeze  thaw     claim    renew    disown   leave  delete
copying     serving  -       -        -        -        -        -      deleted
serving     -        frozen  -        -        serving  unowned  -      deleted
frozen      -        -       serving  -        -        unowned  moved  deleted
unowned     -        -       -        serving  unowned  -        -      deleted
moved       -        -       -        -        -        -        -      -
deleted     -        -       -        -        -        -        -      -
"""
ROWS = rows(TABLE, State, Event)


def test_the_table_has_every_state_with_every_event() -> None:
    assert {(state, event) for state, event, _ in ROWS} == set(product(State, Event))
    assert len(TRANSITIONS) == sum(after is not None for _, _, after in ROWS)


@pytest.mark.parametrize(("before", "event", "after"), ROWS)
def test_an_event_leads_to_the_state_of_the_table_or_is_refused(
    before: State, event: Event, after: State | None
) -> None:
    ownership = Ownership(before, EPOCH)
    epoch = EPOCH + 2 if event in PLACED else None
    if after is None:
        with pytest.raises(OwnershipError, match=f"expected an event that {before.value} allows"):
            ownership.apply(event, epoch)
        assert (ownership.state, ownership.epoch) == (before, EPOCH)
    else:
        ownership.apply(event, epoch)
        assert (ownership.state, ownership.epoch) == (after, EPOCH if epoch is None else epoch)
    assert ownership.is_serving is (ownership.state is State.SERVING)


@pytest.mark.parametrize(("before", "event", "after"), [each for each in ROWS if each[2] is not None])
def test_only_an_event_that_follows_a_placement_brings_its_epoch(
    before: State, event: Event, after: State
) -> None:
    with pytest.raises(OwnershipError):
        Ownership(before, EPOCH).apply(event, None if event in PLACED else EPOCH + 1)


# --- placements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "epoch", "state", "expected"),
    [
        (HERE, 3, State.SERVING, Verdict.SERVE),
        (HERE, 4, State.SERVING, Verdict.SERVE),
        (HERE, 2, State.SERVING, Verdict.SERVE),
        (HERE, 3, State.FROZEN, Verdict.STAY),
        (HERE, 5, State.FROZEN, Verdict.SERVE),
        (ELSEWHERE, 4, State.SERVING, Verdict.KEEP),
        (ELSEWHERE, 4, State.FROZEN, Verdict.LEAVE),
        (ELSEWHERE, 3, State.SERVING, Verdict.KEEP),
        (ELSEWHERE, 3, State.FROZEN, Verdict.STAY),
        (HERE, 3, State.UNOWNED, Verdict.SERVE),
        (ELSEWHERE, 4, State.UNOWNED, Verdict.KEEP),
    ],
)
def test_a_queue_goes_on_as_its_placement_says(
    shard: int, epoch: int, state: State, expected: Verdict
) -> None:
    assert judge(state, EPOCH, Placed(shard, epoch, 9), HERE) is expected


@pytest.mark.parametrize(
    ("lost", "expected"),
    [(0, Verdict.LEAVE), (3, Verdict.LEAVE), (4, Verdict.KEEP), (7, Verdict.KEEP)],
)
def test_what_an_operator_gave_up_is_kept_where_it_comes_back(lost: int, expected: Verdict) -> None:
    placed = Placed(ELSEWHERE, 9, 9, lost)
    assert judge(State.FROZEN, EPOCH, placed, HERE) is expected
    assert judge(State.SERVING, EPOCH, placed, HERE) is Verdict.KEEP


@pytest.mark.parametrize(
    ("shard", "epoch", "expected"),
    [
        (ELSEWHERE, 2, Verdict.STAY),
        (HERE, 3, Verdict.SERVE),
        (ELSEWHERE, 3, Verdict.LEAVE),
        (ELSEWHERE, 4, Verdict.LEAVE),
        (HERE, 4, Verdict.LEAVE),
    ],
)
def test_a_copy_becomes_the_queue_in_the_epoch_that_it_was_made_for_and_no_other(
    shard: int, epoch: int, expected: Verdict
) -> None:
    assert judge(State.COPYING, EPOCH, Placed(shard, epoch, 9), HERE) is expected


def test_without_a_placement_nothing_is_decided() -> None:
    assert judge(State.SERVING, EPOCH, None, HERE) is Verdict.KEEP
    assert judge(State.UNOWNED, EPOCH, None, HERE) is Verdict.KEEP
    assert judge(State.FROZEN, EPOCH, None, HERE) is Verdict.STAY
    assert judge(State.COPYING, EPOCH, None, HERE) is Verdict.STAY


# The event that carries out a verdict; None where nothing happens.
CARRIED_OUT = {
    (State.SERVING, Verdict.SERVE): Event.RENEW,
    (State.FROZEN, Verdict.SERVE): Event.THAW,
    (State.UNOWNED, Verdict.SERVE): Event.CLAIM,
    (State.COPYING, Verdict.SERVE): Event.OPEN,
    (State.SERVING, Verdict.KEEP): Event.DISOWN,
    (State.FROZEN, Verdict.KEEP): Event.DISOWN,
    (State.UNOWNED, Verdict.KEEP): None,
    (State.FROZEN, Verdict.LEAVE): Event.LEAVE,
    (State.COPYING, Verdict.LEAVE): Event.DELETE,
}


def test_every_verdict_on_a_placement_can_be_carried_out_and_no_messages_go_that_others_lack() -> None:
    """All placements within a few epochs, of all owners and losses, for all states."""
    seen: Counter[tuple[State, Verdict]] = Counter()
    live = (State.COPYING, State.SERVING, State.FROZEN, State.UNOWNED)
    for state, shard, epoch, lost in product(live, (HERE, ELSEWHERE), range(1, 7), range(7)):
        placed = Placed(shard, epoch, 9, lost)
        verdict = judge(state, EPOCH, placed, HERE)
        seen[state, verdict] += 1
        if verdict is Verdict.STAY:
            continue
        event = CARRIED_OUT[state, verdict]
        if event is None:
            continue
        ownership = Ownership(state, EPOCH)
        ownership.apply(event, epoch if event in PLACED else None)
        if ownership.is_serving:
            assert shard == HERE, "two shards would serve it"
            # What follows is that nothing follows: the same placement changes nothing more.
            assert judge(ownership.state, ownership.epoch, placed, HERE) is Verdict.SERVE
        if ownership.state is State.MOVED:
            assert (shard, state) == (ELSEWHERE, State.FROZEN)
            assert epoch > EPOCH
            assert lost <= EPOCH
    assert set(seen) - {(state, Verdict.STAY) for state in live} == set(CARRIED_OUT)


# --- names -----------------------------------------------------------------------------------------------


def name(policy: Policy = QUEUE, created: int = 5, history: str = "") -> Name:
    return Name("q", policy, created, history=history)


@pytest.mark.parametrize(
    ("state", "found", "history", "is_placed", "expected"),
    [
        (State.SERVING, name(), "", True, Verdict.STAY),
        (State.SERVING, name(OTHER), "", True, Verdict.CHANGE),
        (State.SERVING, name(NONE), "", True, Verdict.DELETE),
        (State.SERVING, name(created=6), "", True, Verdict.DELETE),
        (State.FROZEN, name(), "", False, Verdict.STAY),
        (State.FROZEN, name(OTHER), "", False, Verdict.STAY),
        (State.FROZEN, name(NONE), "", False, Verdict.DELETE),
        (State.FROZEN, name(created=6), "", False, Verdict.DELETE),
        (State.UNOWNED, name(), "", True, Verdict.SERVE),
        (State.UNOWNED, name(), "", False, Verdict.STAY),
        (State.UNOWNED, name(NONE), "", True, Verdict.STAY),
        (State.UNOWNED, name(created=6), "", True, Verdict.SERVE),
        (State.SERVING, name(NONE), "later", True, Verdict.KEEP),
        (State.SERVING, name(created=2), "later", True, Verdict.CHANGE),
        (State.FROZEN, name(NONE), "later", True, Verdict.KEEP),
        (State.FROZEN, name(OTHER, 2), "later", True, Verdict.STAY),
    ],
)
def test_a_queue_goes_on_as_its_name_says(
    state: State, found: Name, history: str, is_placed: bool, expected: Verdict
) -> None:
    ownership = Ownership(state, EPOCH)
    assert judge_name(ownership, name(), found, history, is_placed=is_placed) is expected


# --- after a start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frozen", "found", "placed", "expected"),
    [
        (False, name(), Placed(HERE, 3, 9), (State.SERVING, 3)),
        (False, name(), Placed(HERE, 5, 9), (State.SERVING, 5)),
        (True, name(), Placed(HERE, 3, 9), (State.FROZEN, 3)),
        (True, name(), Placed(HERE, 5, 9), (State.SERVING, 5)),
        (True, name(), Placed(ELSEWHERE, 4, 9), (State.MOVED, 3)),
        (False, name(), Placed(ELSEWHERE, 4, 9), (State.UNOWNED, 3)),
        (False, name(), None, (State.UNOWNED, 3)),
        (True, name(), None, (State.FROZEN, 3)),
        (False, name(created=6), Placed(HERE, 3, 9), (State.DELETED, 3)),
        # The directory is an older copy: nobody deleted the queue.
        (False, name(created=4), Placed(HERE, 3, 9), (State.SERVING, 3)),
        (False, name(NONE), Placed(HERE, 3, 9), (State.UNOWNED, 3)),
        (True, name(NONE), Placed(HERE, 3, 9), (State.FROZEN, 3)),
        (False, Name(f"{TEMPORARY_SEGMENT}/s", NONE), Placed(HERE, 3, 9), (State.DELETED, 3)),
    ],
)
def test_what_the_journal_has_goes_on_as_name_and_placement_say(
    frozen: bool, found: Name, placed: Placed | None, expected: tuple[State, int]
) -> None:
    declared = Declared(created=5, epoch=EPOCH, frozen=frozen)
    assert recovered(declared, found, "", placed, HERE) == expected


def test_in_another_history_no_queue_of_the_journal_is_deleted() -> None:
    declared = Declared(created=5, epoch=EPOCH, history="before")
    for found in (name(NONE), Name(f"{TEMPORARY_SEGMENT}/s", NONE)):
        assert recovered(declared, found, "after", Placed(HERE, 3, 9), HERE) == (State.UNOWNED, EPOCH)
    assert recovered(declared, name(created=9), "after", Placed(HERE, 4, 9), HERE) == (State.SERVING, 4)
