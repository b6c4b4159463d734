"""Candidate: who looks around and claims, and when."""

import pytest

from lightrail.cluster.replica_sets import ReplicaSet, SetMember
from lightrail.shard.replicas.candidate import RANK_NS, SILENCE_NS, Candidate, Choice, Reach

FOUND = ReplicaSet(1, 5, "a", frozenset("abc"), {each: SetMember() for each in "abcd"}, 4, 2)


def test_a_member_in_sync_looks_around_when_the_owner_is_silent_each_after_the_other() -> None:
    b, c = Candidate("b", Reach(5, 9)), Candidate("c", Reach(5, 9))
    assert b.next(FOUND, SILENCE_NS - 1, is_refused=False) is Choice.FOLLOW
    assert b.next(FOUND, SILENCE_NS, is_refused=False) is Choice.LOOK
    assert c.next(FOUND, SILENCE_NS, is_refused=False) is Choice.FOLLOW
    assert c.next(FOUND, SILENCE_NS + RANK_NS, is_refused=False) is Choice.LOOK


def test_a_refused_connection_shortens_the_wait_to_the_rank() -> None:
    assert Candidate("b", Reach(5, 9)).next(FOUND, 0, is_refused=True) is Choice.LOOK
    assert Candidate("c", Reach(5, 9)).next(FOUND, RANK_NS - 1, is_refused=True) is Choice.FOLLOW


def test_the_successor_that_an_owner_has_chosen_goes_first() -> None:
    b, c = Candidate("b", Reach(5, 9)), Candidate("c", Reach(5, 9))
    assert c.next(FOUND, 0, is_refused=True, successor="c") is Choice.LOOK
    assert b.next(FOUND, RANK_NS - 1, is_refused=True, successor="c") is Choice.FOLLOW
    # It does not come.
    assert b.next(FOUND, RANK_NS, is_refused=True, successor="c") is Choice.LOOK
    assert b.next(FOUND, 0, is_refused=True, successor="d") is Choice.LOOK, "one that may not take over"


def test_a_member_that_is_not_in_sync_never_takes_over() -> None:
    assert Candidate("d", Reach(5, 9)).next(FOUND, 100 * SILENCE_NS, is_refused=True) is Choice.OUT


def test_a_member_whose_journal_is_of_a_later_epoch_than_the_entry_does_not_trust_the_entry() -> None:
    assert Candidate("b", Reach(6, 9)).next(FOUND, 100 * SILENCE_NS, is_refused=True) is Choice.OUT


def test_the_member_that_owned_before_its_restart_looks_around_at_once() -> None:
    assert Candidate("a", Reach(5, 9)).next(FOUND, 0, is_refused=False) is Choice.LOOK


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], Choice.CLAIM),
        ([Reach(5, 9)], Choice.CLAIM),
        ([Reach(4, 99), Reach(5, 8)], Choice.CLAIM),
        ([Reach(5, 8), Reach(5, 10)], Choice.YIELD),
        ([Reach(6, 1)], Choice.YIELD),
    ],
)
def test_the_one_that_reaches_furthest_goes_first(answers: list[Reach], expected: Choice) -> None:
    assert Candidate("b", Reach(5, 9)).judge(answers) is expected
