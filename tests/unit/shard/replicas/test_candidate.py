"""Candidate: who looks around and claims, and when."""

from dataclasses import replace

import pytest

from lightrail.cluster.replica_sets import ReplicaSet, SetMember
from lightrail.shard.replicas.candidate import RANK_NS, SILENCE_NS, Candidate, Choice, compared_min
from lightrail.wire.replication import Reach

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


@pytest.mark.parametrize(("member", "rank"), [("b", 0), ("c", 1), ("d", 2)])
def test_a_member_with_a_later_epoch_than_the_entry_looks_around_in_sync_or_not(
    member: str, rank: int
) -> None:
    candidate = Candidate(member, Reach(6, 9))
    wait_ns = SILENCE_NS + rank * RANK_NS
    # A refused connection is no reason for haste: the others may be about to start.
    assert candidate.next(FOUND, wait_ns - 1, is_refused=True) is Choice.FOLLOW
    assert candidate.next(FOUND, wait_ns, is_refused=True) is Choice.LOOK


def test_a_later_epoch_of_a_directory_that_is_no_member_is_no_reason_to_look_around() -> None:
    assert Candidate("e", Reach(6, 9)).next(FOUND, 100 * SILENCE_NS, is_refused=True) is Choice.OUT


@pytest.mark.parametrize("member", "abcd")
def test_each_member_looks_around_while_nobody_is_known_to_be_in_sync(member: str) -> None:
    found = replace(FOUND, in_sync=frozenset())
    assert Candidate(member, Reach(2, 9)).next(found, 100 * SILENCE_NS, is_refused=False) is Choice.LOOK


def test_a_claim_waits_until_enough_journals_are_compared() -> None:
    candidate = Candidate("b", Reach(6, 9))
    assert candidate.judge([Reach(6, 9)], 3) is Choice.OUT
    assert candidate.judge([Reach(6, 9), Reach(3, 4)], 3) is Choice.CLAIM
    assert candidate.judge([Reach(6, 10)], 3) is Choice.YIELD


@pytest.mark.parametrize(
    ("members", "replicas", "min_in_sync", "expected"),
    [("ab", 2, 1, 2), ("abc", 3, 2, 2), ("abc", 3, 1, 3), ("abcd", 4, 2, 3), ("a", 3, 2, 2), ("a", 1, 1, 1)],
)
def test_journals_that_are_compared_meet_each_set_that_can_have_accepted_something(
    members: str, replicas: int, min_in_sync: int, expected: int
) -> None:
    known = {each: SetMember() for each in members}
    found = ReplicaSet(1, 5, "a", frozenset("a"), known, replicas, min_in_sync)
    assert compared_min(found, is_unknown=True) == expected
    assert compared_min(found, is_unknown=False) == 1


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
