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
    Ownership,
    OwnershipError,
    OwnershipEvent,
    OwnershipState,
    QueueVerdict,
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
            open     freeze  thaw     claim    renew    disown   leave  retire   return   delete
copying     serving  -       -        -        -        -        -      -        -        deleted
serving     -        frozen  -        -        serving  unowned  -      leaving  -        deleted
frozen      -        -       serving  -        -        unowned  moved  -        -        deleted
leaving     -        -       -        -        leaving  unowned  -      -        serving  deleted
unowned     -        -       -        serving  unowned  -        -      -        -        deleted
moved       -        -       -        -        -        -        -      -        -        -
deleted     -        -       -        -        -        -        -      -        -        -
"""
ROWS = rows(TABLE, OwnershipState, OwnershipEvent)


def test_the_table_has_every_state_with_every_event() -> None:
    assert {(state, event) for state, event, _ in ROWS} == set(product(OwnershipState, OwnershipEvent))
    assert len(TRANSITIONS) == sum(after is not None for _, _, after in ROWS)


@pytest.mark.parametrize(("before", "event", "after"), ROWS)
def test_an_event_leads_to_the_state_of_the_table_or_is_refused(
    before: OwnershipState, event: OwnershipEvent, after: OwnershipState | None
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
    assert ownership.is_serving is (ownership.state is OwnershipState.SERVING)


@pytest.mark.parametrize(("before", "event", "after"), [each for each in ROWS if each[2] is not None])
def test_only_an_event_that_follows_a_placement_brings_its_epoch(
    before: OwnershipState, event: OwnershipEvent, after: OwnershipState
) -> None:
    with pytest.raises(OwnershipError):
        Ownership(before, EPOCH).apply(event, None if event in PLACED else EPOCH + 1)


# --- placements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "epoch", "state", "expected"),
    [
        (HERE, 3, OwnershipState.SERVING, QueueVerdict.SERVE),
        (HERE, 4, OwnershipState.SERVING, QueueVerdict.SERVE),
        (HERE, 2, OwnershipState.SERVING, QueueVerdict.SERVE),
        (HERE, 3, OwnershipState.FROZEN, QueueVerdict.STAY),
        (HERE, 5, OwnershipState.FROZEN, QueueVerdict.SERVE),
        (ELSEWHERE, 4, OwnershipState.SERVING, QueueVerdict.KEEP),
        (ELSEWHERE, 4, OwnershipState.FROZEN, QueueVerdict.LEAVE),
        (ELSEWHERE, 3, OwnershipState.SERVING, QueueVerdict.KEEP),
        (ELSEWHERE, 3, OwnershipState.FROZEN, QueueVerdict.STAY),
        (HERE, 3, OwnershipState.UNOWNED, QueueVerdict.SERVE),
        (ELSEWHERE, 4, OwnershipState.UNOWNED, QueueVerdict.KEEP),
    ],
)
def test_a_queue_goes_on_as_its_placement_says(
    shard: int, epoch: int, state: OwnershipState, expected: QueueVerdict
) -> None:
    assert judge(state, EPOCH, Placed(shard, epoch, 9), HERE) is expected


@pytest.mark.parametrize(
    ("lost", "expected"),
    [(0, QueueVerdict.LEAVE), (3, QueueVerdict.LEAVE), (4, QueueVerdict.KEEP), (7, QueueVerdict.KEEP)],
)
def test_what_an_operator_gave_up_is_kept_where_it_comes_back(lost: int, expected: QueueVerdict) -> None:
    placed = Placed(ELSEWHERE, 9, 9, lost)
    assert judge(OwnershipState.FROZEN, EPOCH, placed, HERE) is expected
    assert judge(OwnershipState.SERVING, EPOCH, placed, HERE) is QueueVerdict.KEEP


@pytest.mark.parametrize(
    ("shard", "epoch", "expected"),
    [
        (ELSEWHERE, 2, QueueVerdict.STAY),
        (HERE, 3, QueueVerdict.SERVE),
        (ELSEWHERE, 3, QueueVerdict.LEAVE),
        (ELSEWHERE, 4, QueueVerdict.LEAVE),
        (HERE, 4, QueueVerdict.LEAVE),
    ],
)
def test_a_copy_becomes_the_queue_in_the_epoch_that_it_was_made_for_and_no_other(
    shard: int, epoch: int, expected: QueueVerdict
) -> None:
    assert judge(OwnershipState.COPYING, EPOCH, Placed(shard, epoch, 9), HERE) is expected


def test_without_a_placement_nothing_is_decided() -> None:
    assert judge(OwnershipState.SERVING, EPOCH, None, HERE) is QueueVerdict.KEEP
    assert judge(OwnershipState.UNOWNED, EPOCH, None, HERE) is QueueVerdict.KEEP
    assert judge(OwnershipState.FROZEN, EPOCH, None, HERE) is QueueVerdict.STAY
    assert judge(OwnershipState.COPYING, EPOCH, None, HERE) is QueueVerdict.STAY


# The event that carries out a verdict; None where nothing happens.
CARRIED_OUT = {
    (OwnershipState.SERVING, QueueVerdict.SERVE): OwnershipEvent.RENEW,
    (OwnershipState.FROZEN, QueueVerdict.SERVE): OwnershipEvent.THAW,
    (OwnershipState.UNOWNED, QueueVerdict.SERVE): OwnershipEvent.CLAIM,
    (OwnershipState.COPYING, QueueVerdict.SERVE): OwnershipEvent.OPEN,
    (OwnershipState.SERVING, QueueVerdict.KEEP): OwnershipEvent.DISOWN,
    (OwnershipState.LEAVING, QueueVerdict.SERVE): OwnershipEvent.RENEW,
    (OwnershipState.LEAVING, QueueVerdict.KEEP): OwnershipEvent.DISOWN,
    (OwnershipState.FROZEN, QueueVerdict.KEEP): OwnershipEvent.DISOWN,
    (OwnershipState.UNOWNED, QueueVerdict.KEEP): None,
    (OwnershipState.FROZEN, QueueVerdict.LEAVE): OwnershipEvent.LEAVE,
    (OwnershipState.COPYING, QueueVerdict.LEAVE): OwnershipEvent.DELETE,
}


def test_every_verdict_on_a_placement_can_be_carried_out_and_no_messages_go_that_others_lack() -> None:
    """All placements within a few epochs, of all owners and losses, for all states."""
    seen: Counter[tuple[OwnershipState, QueueVerdict]] = Counter()
    live = [each for each in OwnershipState if each not in (OwnershipState.MOVED, OwnershipState.DELETED)]
    for state, shard, epoch, lost in product(live, (HERE, ELSEWHERE), range(1, 7), range(7)):
        placed = Placed(shard, epoch, 9, lost)
        verdict = judge(state, EPOCH, placed, HERE)
        seen[state, verdict] += 1
        if verdict is QueueVerdict.STAY:
            continue
        event = CARRIED_OUT[state, verdict]
        if event is None:
            continue
        ownership = Ownership(state, EPOCH)
        ownership.apply(event, epoch if event in PLACED else None)
        if ownership.is_serving:
            assert shard == HERE, "two shards would serve it"
            # What follows is that nothing follows: the same placement changes nothing more.
            assert judge(ownership.state, ownership.epoch, placed, HERE) is QueueVerdict.SERVE
        if ownership.state is OwnershipState.MOVED:
            assert (shard, state) == (ELSEWHERE, OwnershipState.FROZEN)
            assert epoch > EPOCH
            assert lost <= EPOCH
    assert set(seen) - {(state, QueueVerdict.STAY) for state in live} == set(CARRIED_OUT)


# --- names -----------------------------------------------------------------------------------------------


def name(policy: Policy = QUEUE, created: int = 5, history: str = "") -> Name:
    return Name("q", policy, created, history=history)


@pytest.mark.parametrize(
    ("state", "found", "history", "is_placed", "expected"),
    [
        (OwnershipState.SERVING, name(), "", True, QueueVerdict.STAY),
        (OwnershipState.SERVING, name(OTHER), "", True, QueueVerdict.CHANGE),
        (OwnershipState.SERVING, name(NONE), "", True, QueueVerdict.DELETE),
        (OwnershipState.SERVING, name(created=6), "", True, QueueVerdict.DELETE),
        (OwnershipState.FROZEN, name(), "", False, QueueVerdict.STAY),
        (OwnershipState.FROZEN, name(OTHER), "", False, QueueVerdict.STAY),
        (OwnershipState.FROZEN, name(NONE), "", False, QueueVerdict.DELETE),
        (OwnershipState.FROZEN, name(created=6), "", False, QueueVerdict.DELETE),
        (OwnershipState.UNOWNED, name(), "", True, QueueVerdict.SERVE),
        (OwnershipState.UNOWNED, name(), "", False, QueueVerdict.STAY),
        (OwnershipState.UNOWNED, name(NONE), "", True, QueueVerdict.STAY),
        (OwnershipState.UNOWNED, name(created=6), "", True, QueueVerdict.SERVE),
        (OwnershipState.SERVING, name(NONE), "later", True, QueueVerdict.KEEP),
        (OwnershipState.SERVING, name(created=2), "later", True, QueueVerdict.CHANGE),
        (OwnershipState.FROZEN, name(NONE), "later", True, QueueVerdict.KEEP),
        (OwnershipState.FROZEN, name(OTHER, 2), "later", True, QueueVerdict.STAY),
    ],
)
def test_a_queue_goes_on_as_its_name_says(
    state: OwnershipState, found: Name, history: str, is_placed: bool, expected: QueueVerdict
) -> None:
    ownership = Ownership(state, EPOCH)
    assert judge_name(ownership, name(), found, history, is_placed=is_placed) is expected


# --- after a start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frozen", "found", "placed", "expected"),
    [
        (False, name(), Placed(HERE, 3, 9), (OwnershipState.SERVING, 3)),
        (False, name(), Placed(HERE, 5, 9), (OwnershipState.SERVING, 5)),
        (True, name(), Placed(HERE, 3, 9), (OwnershipState.FROZEN, 3)),
        (True, name(), Placed(HERE, 5, 9), (OwnershipState.SERVING, 5)),
        (True, name(), Placed(ELSEWHERE, 4, 9), (OwnershipState.MOVED, 3)),
        (False, name(), Placed(ELSEWHERE, 4, 9), (OwnershipState.UNOWNED, 3)),
        (False, name(), None, (OwnershipState.UNOWNED, 3)),
        (True, name(), None, (OwnershipState.FROZEN, 3)),
        (False, name(created=6), Placed(HERE, 3, 9), (OwnershipState.DELETED, 3)),
        # The directory is an older copy: nobody deleted the queue.
        (False, name(created=4), Placed(HERE, 3, 9), (OwnershipState.SERVING, 3)),
        (False, name(NONE), Placed(HERE, 3, 9), (OwnershipState.UNOWNED, 3)),
        (True, name(NONE), Placed(HERE, 3, 9), (OwnershipState.FROZEN, 3)),
        (False, Name(f"{TEMPORARY_SEGMENT}/s", NONE), Placed(HERE, 3, 9), (OwnershipState.DELETED, 3)),
    ],
)
def test_what_the_journal_has_goes_on_as_name_and_placement_say(
    frozen: bool, found: Name, placed: Placed | None, expected: tuple[OwnershipState, int]
) -> None:
    declared = Declared(created=5, epoch=EPOCH, frozen=frozen)
    assert recovered(declared, found, "", placed, HERE) == expected


@pytest.mark.parametrize(
    ("revision", "history", "expected"),
    [
        (8, "", OwnershipState.LEAVING),
        (9, "", OwnershipState.SERVING),
        (8, "later", OwnershipState.SERVING),
    ],
)
def test_a_queue_that_was_leaving_is_leaving_until_its_name_is_changed(
    revision: int, history: str, expected: OwnershipState
) -> None:
    declared = Declared(created=5, epoch=EPOCH, leaving=8)
    found = Name("q", QUEUE, 5, revision)
    assert recovered(declared, found, history, Placed(HERE, 4, 9), HERE) == (expected, 4)


def test_in_another_history_no_queue_of_the_journal_is_deleted() -> None:
    declared = Declared(created=5, epoch=EPOCH, history="before")
    for found in (name(NONE), Name(f"{TEMPORARY_SEGMENT}/s", NONE)):
        assert recovered(declared, found, "after", Placed(HERE, 3, 9), HERE) == (
            OwnershipState.UNOWNED,
            EPOCH,
        )
    assert recovered(declared, name(created=9), "after", Placed(HERE, 4, 9), HERE) == (
        OwnershipState.SERVING,
        4,
    )
