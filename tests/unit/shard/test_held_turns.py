"""Nothing that is not accepted leaves the shard, and all frames keep their order."""

import pytest

from lightrail.shard.journal.journal import Journal
from lightrail.wire.frames import Kind
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.journal_writer import open_journal
from tests.support.shard.member import MEMBER, shared_journal
from tests.support.shard.scene import Peer, Scene, batch

SEGMENT_BYTES = 1 << 20


class SharedScene(Scene):
    """A shard with another member, which acknowledges when the test says so."""

    def __init__(self) -> None:
        journal, recovered, _ = shared_journal(FakeFiles(), SEGMENT_BYTES)
        super().__init__(journal, recovered)
        self.journal = journal

    def acknowledge(self) -> None:
        """The other member has everything that the owner's disk has."""
        self.journal.marks.synced(MEMBER, self.journal.position.synced_lsn)
        self.journal.accept()
        self.engine.accepted()
        self.turn()

    def settle_down(self) -> None:
        super().settle_down()
        self.acknowledge()


def opened() -> tuple[SharedScene, Peer]:
    """A frontend with a sending link 1 and a receiving link 2 of q, and a sending link 3 of r."""
    scene = SharedScene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.consume(2, "q", 10)
    peer.produce(3, "r")
    scene.settle_down()
    peer.take()
    return scene, peer


def commit(scene: Scene) -> None:
    scene.begin_commit()
    scene.end_commit()


def test_an_answer_waits_for_the_other_member() -> None:
    scene, peer = opened()
    peer.send(3, 1, [b"a"])
    commit(scene)
    assert peer.accepted(3) == []
    peer.send(3, 2, [b"b"])
    scene.acknowledge()
    assert peer.accepted(3) == [1], "the next commit has not begun"
    commit(scene)
    scene.acknowledge()
    assert peer.accepted(3) == [2]


def test_the_next_commit_does_not_wait_for_the_acceptance_of_the_one_before() -> None:
    scene, peer = opened()
    for number in (1, 2, 3):
        peer.send(3, number, [b"a"])
        commit(scene)
    scene.acknowledge()
    assert peer.accepted(3) == [1, 2, 3]


def test_a_request_without_a_record_is_answered_behind_what_is_not_accepted() -> None:
    scene, peer = opened()
    peer.send(3, 1, [b"a"])
    commit(scene)
    waits = peer.ask("purge", queue="q")
    assert not scene.store.pending
    assert waits not in peer.answers
    scene.settle_down()
    assert waits in peer.answers


@pytest.mark.parametrize("batches", [1, 3])
def test_a_message_is_delivered_when_it_is_accepted(batches: int) -> None:
    scene, peer = opened()
    scene.receive(peer.identity, [])
    sent = [b"m%d" % number for number in range(batches)]
    for number, message in enumerate(sent, 1):
        peer.send(1, number, [message])
    assert peer.messages(2) == []
    commit(scene)
    assert peer.messages(2) == []
    scene.acknowledge()
    assert peer.messages(2) == sent


def test_a_message_that_is_peeked_at_is_accepted() -> None:
    scene, peer = opened()
    peer.send(3, 1, [b"a"])
    commit(scene)
    asked = peer.ask("peek", queue="r", sequence=0, count=1)
    assert asked not in peer.answers
    scene.acknowledge()
    assert peer.answers[asked][1] == b"a"
    asked = peer.ask("peek", queue="r", sequence=0, count=1)
    assert asked in peer.answers, "accepted ones do not wait"


def test_later_frames_wait_behind_such_a_delivery() -> None:
    scene, peer = opened()
    peer.send(1, 1, [b"first"])
    commit(scene)
    peer.send(3, 1, [b"transient"], durable=False)
    peer.send(1, 2, [b"second"])
    assert peer.take() == []
    scene.acknowledge()
    assert [each.kind for each in peer.take()] == [Kind.DELIVER, Kind.ACCEPTED]
    commit(scene)
    scene.acknowledge()
    assert [(each.kind, each.link) for each in peer.take()] == [
        (Kind.DELIVER, 2),
        (Kind.ACCEPTED, 1),
        (Kind.ACCEPTED, 1),
    ]


def test_accepted_and_transient_messages_are_delivered_at_once() -> None:
    scene, peer = opened()
    peer.produce(4, "s")
    peer.send(4, 1, [b"stored"])
    scene.settle_down()
    peer.send(3, 1, [b"under way"])
    commit(scene)
    peer.consume(5, "s", 10)
    peer.send(1, 1, [b"transient"], durable=False)
    assert (peer.messages(5), peer.messages(2)) == ([b"stored"], [b"transient"])


def test_when_the_last_other_member_is_not_required_any_longer_all_leaves() -> None:
    scene, peer = opened()
    peer.send(1, 1, [b"a"])
    commit(scene)
    assert peer.take() == []
    scene.journal.marks.require()
    scene.journal.accept()
    scene.engine.accepted()
    scene.turn()
    assert [each.kind for each in peer.take()] == [Kind.DELIVER, Kind.ACCEPTED]
    peer.send(1, 2, [b"b"])
    assert peer.messages(2) == [b"a", b"b"]


def test_answers_keep_their_order_when_a_commit_ends_after_the_last_other_member_is_not_required() -> None:
    scene, peer = opened()
    peer.send(3, 1, [b"a"])
    commit(scene)
    scene.journal.marks.require()
    peer.send(3, 2, [b"b"])
    commit(scene)
    assert peer.accepted(3) == [1, 2]


def test_an_owner_alone_delivers_before_its_commit() -> None:
    journal, recovered = open_journal(FakeFiles(), segment_bytes=SEGMENT_BYTES)
    assert isinstance(journal, Journal)
    scene = Scene(journal, recovered)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.consume(2, "q", 10)
    peer.send(1, 1, [b"a"])
    assert peer.messages(2) == [b"a"]
    assert peer.accepted(1) == []


class Stream:
    """A stream to members that have heard what the test says."""

    def __init__(self) -> None:
        self.number = self.heard = 0

    def begin_round(self) -> int:
        self.number += 1
        return self.number


def shared(*, may_deliver: bool) -> tuple[SharedScene, Peer, Stream, list[bool]]:
    scene, peer = opened()
    stream, leases = Stream(), [may_deliver]
    scene.engine.shared_with(stream, lambda: leases[0])  # type: ignore[arg-type]
    return scene, peer, stream, leases


def test_an_answer_without_records_waits_until_members_have_heard_the_owner_since() -> None:
    scene, peer, stream, _ = shared(may_deliver=True)
    request = peer.ask("queue", queue="q")
    scene.turn()
    assert stream.number == 1, "a message was sent after the request was applied"
    scene.acknowledge()
    assert peer.take(Kind.RESPONSE) == []
    stream.heard = 1
    scene.acknowledge()
    assert [answer.number for answer in peer.take(Kind.RESPONSE)] == [request]


def test_answers_that_wait_for_their_records_need_no_other_message() -> None:
    scene, peer, stream, _ = shared(may_deliver=True)
    peer.send(3, 1, [b"a"])
    commit(scene)
    scene.acknowledge()
    assert (peer.accepted(3), stream.number) == ([1], 0)


@pytest.mark.parametrize("durable", [True, False])
def test_without_leases_messages_are_accepted_and_not_delivered(durable: bool) -> None:
    scene, peer, _, leases = shared(may_deliver=False)
    peer.send(1, 1, [b"a"], durable=durable)
    scene.turn()
    if durable:
        commit(scene)
    scene.acknowledge()
    assert peer.accepted(1) == [1]
    assert peer.take(Kind.DELIVER) == []
    assert 2 not in peer.delivered
    leases[0] = True
    scene.acknowledge()
    assert [each.message for each in peer.delivered[2]] == [b"a"]


def test_what_was_withheld_is_delivered_in_its_order_before_later_messages() -> None:
    scene, peer, _, leases = shared(may_deliver=False)
    for number in (1, 2):
        peer.send(1, number, [b"%d" % number])
        commit(scene)
        scene.acknowledge()
    leases[0] = True
    peer.send(1, 3, [b"3"])
    commit(scene)
    scene.acknowledge()
    assert [each.message for each in peer.delivered[2]] == [b"1", b"2", b"3"]


def test_a_delivery_that_waits_for_its_acceptance_leaves_under_leases_alone() -> None:
    """The disk hangs, another member takes over and delivers the message, and then the disk answers."""
    scene, peer, _, leases = shared(may_deliver=True)
    peer.send(1, 1, [b"a"])
    commit(scene)
    assert 2 not in peer.delivered
    leases[0] = False
    peer.send(3, 1, [b"b"])
    commit(scene)
    scene.acknowledge()
    assert 2 not in peer.delivered
    assert peer.accepted(3) == [], "the order of frames stays"
    leases[0] = True
    scene.acknowledge()
    assert [each.message for each in peer.delivered[2]] == [b"a"]
    assert peer.accepted(3) == [1]


def test_a_delivery_that_waits_for_a_silent_disk_leaves_under_leases_alone() -> None:
    scene, peer, _, leases = shared(may_deliver=True)
    scene.receive(peer.identity, [batch(1, 1, [b"a"], durable=False)])
    assert not scene.engine.step(scene.now_ms, is_silent=True).output
    leases[0] = False
    scene.turn()
    assert 2 not in peer.delivered
    leases[0] = True
    scene.turn()
    assert [each.message for each in peer.delivered[2]] == [b"a"]
