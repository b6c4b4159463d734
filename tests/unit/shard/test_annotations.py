"""Annotations of modified outcomes: how large they may make a message, and what becomes of the rest."""

from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.dead_letters import ANNOTATIONS_BYTES_MAX
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene

MESSAGE = b"\x00\x53\x75\xa0\x01x"


def opened(**policy: Any) -> tuple[Scene, Journal, Peer]:
    """A queue of one message, which a consumer has."""
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "max_delivery_count": 0, **policy}))
    journal = Journal(FakeFiles(), "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [MESSAGE])
    scene.settle_down()
    peer.consume(2, "q", 1)
    return scene, journal, peer


def give_back(scene: Scene, peer: Peer, number: int, **annotations: bytes) -> bytes:
    """The consumer gives back a delivery, annotated; returns the message as it comes again."""
    notes = encode({Symbol(f"x-opt-{key}"): value for key, value in annotations.items()})
    peer.settle(2, number, 1, OutcomeCode.MODIFIED, SettleDetail(annotations=notes.hex()))
    peer.credit(2, number + 2)
    scene.settle_down()
    return peer.messages(2)[-1]


def test_no_consumer_makes_a_message_larger_than_the_queue_takes() -> None:
    scene, _, peer = opened(max_message_bytes=1_000)
    for number in range(20):
        message = give_back(scene, peer, number, **{f"k{number}": bytes(300)})
        assert len(message) <= 1_000
    # The first of them are there, and what was left out is counted; the message itself is whole.
    assert list(decode_annotations(message)) == ["x-opt-k0", "x-opt-k1", "x-opt-k2"]
    assert message.endswith(MESSAGE)
    (queue,) = scene.engine._queues
    assert queue.machine.contents.counters.unannotated == 17
    assert queue.figures().unannotated == 17


def test_an_annotation_may_be_replaced_by_one_as_large_or_smaller() -> None:
    scene, _, peer = opened(max_message_bytes=1_000)
    give_back(scene, peer, 0, a=bytes(900))
    message = give_back(scene, peer, 1, a=b"\x01" * 900)
    assert decode_annotations(message)[Symbol("x-opt-a")] == b"\x01" * 900
    assert decode_annotations(give_back(scene, peer, 2, a=b"small")) == {Symbol("x-opt-a"): b"small"}


def test_all_annotations_of_a_message_together_are_bounded_and_the_journal_grows_evenly() -> None:
    scene, journal, peer = opened()
    written = []
    for number in range(40):
        message = give_back(scene, peer, number, **{f"k{number}": bytes(10_000)})
        written.append(journal.usage().written_bytes)
    assert len(message) <= ANNOTATIONS_BYTES_MAX + len(MESSAGE) + 16
    # What is not merged is not written either.
    assert written[-1] - written[9] < ANNOTATIONS_BYTES_MAX


def test_annotations_count_in_the_bytes_that_a_queue_may_hold() -> None:
    scene, _, peer = opened(max_bytes=500)
    give_back(scene, peer, 0, a=bytes(300))
    give_back(scene, peer, 1, b=bytes(300))
    (queue,) = scene.engine._queues
    assert 300 < queue.machine.contents.held_bytes <= 500
    assert queue.machine.contents.counters.unannotated == 1


def test_what_comes_back_unannotated_still_counts_its_failed_delivery() -> None:
    _, _, peer = opened(max_message_bytes=100)
    notes = encode({Symbol("x-opt-a"): bytes(200)}).hex()
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True, annotations=notes))
    peer.credit(2, 2)
    assert [(each.attempts, each.message) for each in peer.delivered[2]] == [(0, MESSAGE), (1, MESSAGE)]


def at(time_ms: int) -> SettleDetail:
    """A failed attempt, to be tried again at a time."""
    notes = encode({Symbol("x-opt-delivery-time"): Timestamp(time_ms)})
    return SettleDetail(delivery_failed=True, annotations=notes.hex())


def test_a_message_that_comes_back_with_a_time_waits_for_it_counted_and_over_a_restart() -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "delay": True, "max_delivery_count": 9}))
    files = FakeFiles()
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [MESSAGE, MESSAGE])
    scene.settle_down()
    peer.consume(2, "q", 10)
    due_ms = scene.now_ms + 3_000
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, at(due_ms))
    scene.settle_down()
    fields, _ = peer.answers[peer.ask("peek", queue="q")]
    assert [(each["state"], each["due_ms"]) for each in fields["messages"]] == [
        ("delayed", due_ms),
        ("locked", None),
    ]
    assert [each.sequence for each in peer.delivered[2]] == [0, 1]
    scene.tick(3_000)
    assert [(each.sequence, each.attempts) for each in peer.delivered[2]][2:] == [(0, 1)]
    # A time that has passed already holds nothing up.
    peer.settle(2, 2, 3, OutcomeCode.MODIFIED, at(scene.now_ms - 1))
    scene.tick(1)
    assert [(each.sequence, each.attempts) for each in peer.delivered[2]][3:] == [(0, 2)]
    peer.settle(2, 1, 2, OutcomeCode.MODIFIED, at(scene.now_ms + 5_000))
    scene.settle_down()
    scene.store.close()
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names)
    # The scene's clock begins anew.
    scene.tick(3_001)
    peer = scene.peer()
    peer.consume(2, "q", 10)
    scene.settle_down()
    assert [each.sequence for each in peer.delivered[2]] == [0]
    scene.tick(5_000)
    scene.settle_down()
    assert [(each.sequence, each.attempts) for each in peer.delivered[2]][1:] == [(1, 1)]
    scene.store.close()


def test_members_of_a_group_that_come_back_with_a_time_let_the_others_pass() -> None:
    scene, _, peer = opened(delay=True, groups=True)
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, at(scene.now_ms + 1_000))
    peer.send(1, 2, [MESSAGE])
    peer.credit(2, 10)
    scene.settle_down()
    assert [each.sequence for each in peer.delivered[2]] == [0, 1]
    scene.tick(1_000)
    assert [each.sequence for each in peer.delivered[2]] == [0, 1, 0]
