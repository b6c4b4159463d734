"""Answers leave when their records are accepted, in the order of their commits."""

from dataclasses import dataclass, field
from typing import Any, cast

from lightrail.shard.effects.answers import Answers
from lightrail.shard.effects.peers import NumberedLink, Peer
from lightrail.shard.journal.commit import NOWHERE, Reached
from lightrail.shard.queues.memory import UNSPILLABLE_SLACK_BYTES, Memory
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import HEADER, Kind


@dataclass
class Place:
    """A position that the test moves."""

    lsn: int = 0
    is_shared: bool = True
    synced_lsn: int = 0
    accepted: Reached = NOWHERE


@dataclass
class Request:
    """A waiter."""

    accepted: list[int] = field(default_factory=list)

    def accept(self, number: int) -> None:
        self.accepted.append(number)


class Rig:
    def __init__(self) -> None:
        self.place = Place()
        self.memory = Memory(1 << 30)
        self.answers = Answers(self.memory, self.place)
        self.request = Request()
        self.peer = Peer(b"f", "frontend", 1, 1, 0)
        self.link = NumberedLink(self.peer, 1, 7, 0)

    def commit(self, lsn: int) -> None:
        self.place.synced_lsn = lsn
        self.answers.commit_begun()
        self.answers.commit_ended()

    def accept(self, lsn: int) -> None:
        self.place.accepted = NOWHERE._replace(next_lsn=lsn + 1)
        self.answers.accepted()

    def heard(self) -> list[tuple[Kind, int, int]]:
        """Kind, number and count of the frames since the last time."""
        fields = [HEADER.unpack_from(part) for part in self.peer.take()]
        return [(Kind(each[0]), each[6], each[5]) for each in fields]

    def jam(self, *, is_stuck: bool) -> None:
        self.memory.index = self.memory.mark + UNSPILLABLE_SLACK_BYTES + 1 if is_stuck else 0
        assert self.memory.is_stuck is is_stuck


def test_each_answer_waits_for_the_acceptance_of_its_commit() -> None:
    rig = Rig()
    for number, lsn in ((1, 4), (2, 6), (3, 9)):
        rig.answers.when_synced(rig.request, number)
        rig.commit(lsn)
    assert rig.request.accepted == []
    rig.accept(5)
    assert rig.request.accepted == [1]
    rig.accept(9)
    assert rig.request.accepted == [1, 2, 3]


def test_an_answer_whose_commit_is_accepted_before_its_end_leaves_at_its_end() -> None:
    rig = Rig()
    rig.answers.when_synced(rig.request, 1)
    rig.place.synced_lsn = 4
    rig.answers.commit_begun()
    rig.accept(4)
    assert rig.request.accepted == []
    rig.answers.commit_ended()
    assert rig.request.accepted == [1]


@dataclass
class Rounds:
    """A stream to members that have heard what the test says."""

    number: int = 0
    heard: int = 0

    def begin_round(self) -> int:
        self.number += 1
        return self.number


def test_members_that_have_the_records_of_a_commit_before_its_end_are_not_asked_again() -> None:
    rig = Rig()
    rounds = cast("Any", Rounds())
    rig.answers.share(rounds)
    rig.commit(0)
    rig.answers.when_synced(rig.request, 1)
    rig.place.lsn = 4
    rig.answers.commit_begun()
    rig.place.synced_lsn = 4
    rig.accept(4)
    rig.answers.commit_ended()
    assert (rig.request.accepted, rounds.number) == ([1], 0)


def test_members_are_asked_if_the_records_were_sent_before_the_request_was_applied() -> None:
    rig = Rig()
    rounds = cast("Any", Rounds())
    rig.answers.share(rounds)
    rig.place.lsn = 4
    # Sent to other members, and synced by nobody: settlements.
    rig.commit(0)
    rig.answers.when_synced(rig.request, 1)
    rig.answers.commit_begun()
    rig.place.synced_lsn = 4
    rig.accept(4)
    rig.answers.commit_ended()
    assert (rig.request.accepted, rounds.number) == ([], 1)


def test_members_are_asked_though_earlier_records_are_not_accepted() -> None:
    """An owner that was paused finds their acknowledgements, and a request, and has been replaced."""
    rig = Rig()
    rounds = cast("Any", Rounds())
    rig.answers.share(rounds)
    rig.place.lsn = 4
    rig.commit(4)
    rig.answers.when_synced(rig.request, 1)
    rig.commit(4)
    rig.accept(4)
    assert (rig.request.accepted, rounds.number) == ([], 1)
    rounds.heard = 1
    rig.answers.accepted()
    assert rig.request.accepted == [1]


def test_members_are_asked_for_an_answer_whose_commit_has_no_new_records() -> None:
    rig = Rig()
    rig.place.lsn = rig.place.synced_lsn = 4
    rig.accept(4)
    rounds = cast("Any", Rounds())
    rig.answers.share(rounds)
    for number in (1, 2):
        rig.answers.when_synced(rig.request, number)
        rig.commit(4)
        assert (rig.request.accepted, rounds.number) == ([], number)
    rounds.heard = 1
    rig.answers.accepted()
    assert rig.request.accepted == [1]
    rounds.heard = 2
    rig.answers.accepted()
    assert rig.request.accepted == [1, 2]


def test_a_commit_without_a_sync_waits_for_those_before_it() -> None:
    rig = Rig()
    rig.answers.when_synced(rig.request, 1)
    rig.commit(4)
    rig.answers.when_synced(rig.request, 2)
    rig.place.lsn = 7
    rig.commit(4)
    assert rig.request.accepted == []
    rig.accept(4)
    assert rig.request.accepted == [1, 2]


def test_a_refusal_of_a_partially_stored_batch_waits_for_its_acceptance() -> None:
    rig = Rig()
    rig.answers.refuse(rig.link, 3, Refusal("c", "d"), durable=True)
    rig.commit(4)
    assert rig.heard() == []
    rig.accept(4)
    assert rig.heard() == [(Kind.REFUSED, 3, 0)]


def test_requests_are_answered_while_senders_must_wait_but_not_before_their_acceptance() -> None:
    rig = Rig()
    rig.answers.accept(rig.link, 1, durable=True)
    rig.answers.when_synced(rig.request, 1)
    rig.place.synced_lsn = 4
    rig.answers.answer_requests()
    assert rig.request.accepted == []
    rig.accept(4)
    assert rig.request.accepted == [1]
    assert rig.heard() == []
    rig.commit(4)
    assert rig.heard() == [(Kind.ACCEPTED, 1, 1)]


def test_batches_whose_senders_must_wait_are_answered_before_later_ones() -> None:
    rig = Rig()
    for number, lsn in ((1, 4), (2, 6)):
        rig.answers.accept(rig.link, number, durable=True)
        rig.commit(lsn)
    rig.answers.accept(rig.link, 3, durable=True)
    rig.place.synced_lsn = 8
    rig.answers.commit_begun()
    rig.answers.accept(rig.link, 4, durable=True)
    rig.jam(is_stuck=True)
    rig.accept(4)
    rig.accept(6)
    assert rig.heard() == []
    rig.jam(is_stuck=False)
    rig.answers.commit_ended()
    rig.accept(8)
    assert rig.heard() == [(Kind.ACCEPTED, 1, 3)]
    rig.commit(8)
    assert rig.heard() == [(Kind.ACCEPTED, 4, 1)]


def test_answers_keep_their_order_when_the_owner_is_the_only_required_member_again() -> None:
    rig = Rig()
    rig.answers.refuse(rig.link, 1, Refusal("c", "d"), durable=True)
    rig.commit(4)
    rig.answers.accept(rig.link, 2, durable=True)
    rig.place.is_shared = False
    rig.place.accepted = NOWHERE._replace(next_lsn=7)
    rig.commit(6)
    assert rig.heard() == [(Kind.REFUSED, 1, 0), (Kind.ACCEPTED, 2, 1)]


def test_after_a_failure_nothing_is_answered() -> None:
    rig = Rig()
    rig.answers.when_synced(rig.request, 1)
    rig.commit(4)
    rig.answers.fail(OSError("the disk is broken"))
    rig.accept(4)
    assert rig.request.accepted == []
