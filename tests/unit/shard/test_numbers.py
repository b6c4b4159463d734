"""No batch that went missing is answered with another's number, and no frame is dropped without a word."""

import pytest

from lightrail.journal.record import Settle
from lightrail.shard.journal.record import Record
from lightrail.shard.journal.store import StoreBrokenError
from lightrail.shard.queue.values.runs import Location
from lightrail.wire.bodies import ProducerOpen
from lightrail.wire.frames import HEADER_SIZE, Kind, frame
from tests.support.shard.scene import Peer, Scene, SmallStore, batch


def opened(scene: Scene, link: int, next_number: int, queue: str = "q") -> Peer:
    peer = scene.peer()
    body = ProducerOpen(queue).encode()
    peer.say(frame(Kind.PRODUCER_OPEN, link=link, number=next_number, body=body))
    peer.take()
    return peer


@pytest.mark.parametrize("durable", [True, False])
def test_a_batch_behind_a_missing_one_is_not_stored_and_its_frontend_greets_again(durable: bool) -> None:
    scene = Scene()
    peer = opened(scene, 1, 1)
    peer.send(1, 1, [b"one"], durable=durable)
    peer.send(1, 3, [b"three"], durable=durable)
    scene.settle_down()
    assert [answer.kind for answer in peer.take()][-1] is Kind.ABSENT
    # The frontend sends what has no answer once more: each is stored once.
    peer.greet()
    peer.say(frame(Kind.PRODUCER_OPEN, link=1, number=4, body=ProducerOpen("q").encode()))
    for number, text in ((1, b"one"), (2, b"two"), (3, b"three")):
        peer.send(1, number, [text], durable=durable)
    scene.settle_down()
    assert peer.accepted(1) == [1, 2, 3]
    peer.consume(9, "q", 10)
    assert peer.messages(9) == [b"one", b"two", b"three"]


def test_a_batch_for_a_set_of_queues_behind_a_missing_one_is_not_stored() -> None:
    scene = Scene()
    peer = opened(scene, 1, 1, "")
    peer.targets(1, 1, "a", "b")
    peer.route(1, 1, 1, [b"one"])
    peer.route(1, 3, 1, [b"three"])
    assert [answer.kind for answer in peer.take()][-1] is Kind.ABSENT
    assert scene.queue("a")["ready"] == 1


def test_batches_that_are_sent_again_may_have_gaps() -> None:
    scene = Scene()
    # 5 was refused, and 7 and 8 were given back, before the connection went.
    peer = opened(scene, 1, 9)
    for number in (4, 6, 9, 10):
        peer.send(1, number, [b"%d" % number])
    scene.settle_down()
    assert peer.accepted(1) == [4, 6, 9, 10]


def test_a_link_that_does_not_say_its_next_number_may_begin_anywhere() -> None:
    scene = Scene()
    peer = opened(scene, 1, 0)
    for number in (4, 6):
        peer.send(1, number, [b"x"])
    scene.settle_down()
    assert peer.accepted(1) == [4, 6]


class UnluckyError(Exception):
    """Any error of the program."""


def test_an_error_with_one_frame_ends_its_link_and_applies_those_behind_it() -> None:
    scene = Scene()
    peer = opened(scene, 1, 1)
    peer.produce(2, "other")
    peer.consume(3, "q", 10)
    peer.say(batch(1, 1, [b"one"])[: HEADER_SIZE + 2], batch(2, 1, [b"two"]))
    scene.settle_down()
    gone = [(link, refusal.condition) for link, _, refusal in peer.refusals]
    assert gone == [(1, "amqp:internal-error")]
    assert [(each.link, each.number) for each in peer.take(Kind.ACCEPTED)] == [(2, 1)]
    # What comes behind it for the same link has nowhere to go, and other links of the queue stay.
    peer.send(1, 2, [b"two"])
    scene.settle_down()
    assert peer.accepted(1) == []
    peer.produce(4, "q")
    peer.send(4, 1, [b"three"])
    scene.settle_down()
    assert peer.messages(3) == [b"three"]
    assert scene.engine.answers.failure is None


def _unlucky(*_: object) -> None:
    raise UnluckyError


def test_an_error_behind_a_record_ends_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    peer = opened(scene, 1, 1)
    queue = scene.engine._queues.find("q")
    assert queue is not None
    monkeypatch.setattr(type(queue.machine), "apply", _unlucky)
    peer.send(1, 1, [b"one"])
    assert "applied in part" in (scene.engine.answers.failure or "")
    monkeypatch.undo()
    scene.settle_down()
    assert peer.accepted(1) == []


class BrokenStore(SmallStore):
    """Whose disk fails when the test says so, without a commit."""

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        if self.failure:
            raise StoreBrokenError(self.failure)
        return super().append(record, now_ms)


def test_a_store_that_fails_between_commits_ends_the_shard() -> None:
    store = BrokenStore()
    scene = Scene(store)
    peer = opened(scene, 1, 1)
    store.failure = "the disk is broken"
    peer.say(batch(1, 1, [b"one"]), batch(1, 2, [b"two"], durable=False))
    assert scene.engine.answers.failure == "the disk is broken"
    assert peer.accepted(1) == []


def test_a_store_that_fails_with_what_only_counts_a_refusal_ends_the_shard() -> None:
    store = BrokenStore()
    scene = Scene(store)
    peer = opened(scene, 1, 1)
    peer.send(1, 1, [b"one"])
    scene.settle_down()
    peer.consume(9, "q", 10)
    store.failure = "the disk is broken"
    peer.settle(9, 0, 1)
    assert scene.engine.answers.failure == "the disk is broken"
    assert not [record for record in store.records if isinstance(record, Settle)]
