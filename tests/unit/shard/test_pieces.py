"""Batches for queues that look into each message come in pieces: no turn takes more than so many."""

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Properties
from lightrail.model import limits
from lightrail.model.policy import Policy as NamePolicy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queue.values.counters import QUEUE_WORK_OF_A_TURN
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import Hello, ProducerOpen
from lightrail.wire.frames import VERSION, Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, batch

PIECE = limits.LOOKED_INTO_AT_ONCE
GROUPS: dict[str, object] = {"groups": True}
WINDOW: dict[str, object] = {"duplicate_window": 60}
BODY = b"\x00\x53\x75\xa0"


def message(index: int) -> bytes:
    """With a message-id and a body that say its index."""
    body = b"%06d" % index
    return encode(Properties(message_id=f"id-{index}", group_id="g")) + BODY + bytes((len(body),)) + body


def index_of(found: bytes) -> int:
    return int(found[-6:])


class Turns(Scene):
    """A queue of a policy; counts the messages that come in with each call of the engine."""

    def __init__(self, policy: dict[str, object], files: FakeFiles | None = None, boot: int = 1) -> None:
        names = EveryName()
        names.give("q", NamePolicy.parse({"role": "queue"} | policy))
        if files is None:
            super().__init__(names=names)
        else:
            journal = Journal(files, "test", 0)
            super().__init__(journal, journal.recover(1 << 20, 1), names=names, boot=boot)
        self.came: list[int] = []
        receive = self.engine.receive

        def counted(identity: bytes, parts: list[bytes], now_ms: int) -> list[bytes]:
            before = self.enqueued()
            rest = receive(identity, parts, now_ms)
            self.came.append(self.enqueued() - before)
            return rest

        self.engine.receive = counted  # type: ignore[method-assign]

    def enqueued(self) -> int:
        queue = self.engine._queues.find("q")
        if queue is None:
            return 0
        return queue.machine.contents.next_sequence + queue.machine.contents.counters.duplicates

    def pieces(self) -> list[int]:
        """What came with each call since the last time, without calls that brought nothing."""
        came, self.came = [each for each in self.came if each], []
        return came


def sender(scene: Scene) -> Peer:
    peer = scene.peer()
    peer.produce(1, "q")
    return peer


def received(peer: Peer, link: int = 5) -> list[int]:
    peer.consume(link, "q", 100_000)
    return [index_of(each) for each in peer.messages(link)]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("policy", [GROUPS, WINDOW, GROUPS | WINDOW, {"delay": True}])
def test_a_large_batch_comes_in_pieces_and_is_answered_once(policy: dict[str, object], durable: bool) -> None:
    scene = Turns(policy)
    peer = sender(scene)
    count = 3 * PIECE + 7
    peer.send(1, 1, [message(index) for index in range(count)], durable=durable)
    assert scene.pieces() == [PIECE, PIECE, PIECE, 7]
    peer.send(1, 2, [message(count)], durable=durable)
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]
    assert received(peer) == list(range(count + 1))


def test_so_do_many_small_batches_of_one_message() -> None:
    scene = Turns(GROUPS)
    peer = sender(scene)
    peer.say(
        *(batch(1, 1 + index, [message(10 * index + each) for each in range(10)]) for index in range(250))
    )
    assert scene.pieces() == [PIECE, PIECE, PIECE // 2]
    scene.settle_down()
    assert peer.accepted(1) == list(range(1, 251))
    assert received(peer) == list(range(2_500))


def test_a_queue_that_looks_into_nothing_takes_all_at_once() -> None:
    scene = Turns({"priorities": 5})
    peer = sender(scene)
    peer.say(*(batch(1, number, [message(each) for each in range(PIECE)]) for number in range(1, 6)))
    assert scene.pieces() == [5 * PIECE]


def test_pieces_that_are_all_duplicates_go_on_behind_them() -> None:
    scene = Turns(WINDOW)
    peer = sender(scene)
    messages = [message(index) for index in range(3 * PIECE)]
    peer.send(1, 1, messages)
    peer.send(1, 2, [*messages, message(9_999)])
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]
    assert received(peer) == [*range(3 * PIECE), 9_999]


@pytest.mark.parametrize(
    "policy", [GROUPS, WINDOW, GROUPS | {"max_length": 5_000, "overflow": "flow_control"}]
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_after_a_crash_between_pieces_the_batch_comes_again_and_nothing_is_twice(
    pieces: int, policy: dict[str, object]
) -> None:
    files = FakeFiles()
    scene = Turns(policy, files)
    peer = sender(scene)
    messages = [message(index) for index in range(3 * PIECE)]
    rest = [batch(1, 1, messages)]
    for _ in range(pieces):
        rest = scene.engine.receive(peer.identity, rest, scene.now_ms)
        scene.turn()
    assert rest
    scene.settle_down()
    assert peer.accepted(1) == []

    scene = Turns(policy, files.after_crash(1, "none"), 2)
    peer = sender(scene)
    peer.send(1, 1, messages)
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert received(peer) == list(range(3 * PIECE))


def test_the_pieces_that_fit_are_stored_and_the_rest_is_refused() -> None:
    scene = Turns(GROUPS | {"max_length": PIECE + 10, "overflow": "reject"})
    peer = sender(scene)
    peer.send(1, 1, [message(index) for index in range(3 * PIECE)])
    scene.settle_down()
    ((_, number, refusal),) = peer.refusals
    assert (number, refusal.accepted) == (1, PIECE + 10)
    assert received(peer) == list(range(PIECE + 10))


def test_what_waits_for_room_comes_in_piece_by_piece_when_there_is_some() -> None:
    scene = Turns(GROUPS | {"max_length": 10, "overflow": "flow_control", "enqueue_timeout": None})
    peer = sender(scene)
    for number in range(20):
        messages = [message(1_000 * number + each) for each in range(1_000)]
        peer.send(1, 1 + number, messages)
    scene.settle_down()
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert queue.machine.contents.next_sequence == 10
    scene.names.give("q", NamePolicy.parse({"role": "queue"} | GROUPS))  # type: ignore[attr-defined]
    scene.engine.refresh(scene.now_ms)
    came = []
    while queue.parked:
        before = queue.machine.contents.next_sequence
        scene.turn()
        came.append(queue.machine.contents.next_sequence - before)
        assert not queue.parked or scene.engine.deadline_ms == 0
    assert len(came) > 5
    assert max(came) <= QUEUE_WORK_OF_A_TURN // 12 + 2 * PIECE
    scene.settle_down()
    assert peer.accepted(1) == list(range(1, 21))
    assert received(peer) == list(range(20_000))


def test_a_frontend_that_greets_and_sends_at_once_is_received_piece_by_piece() -> None:
    scene = Turns(GROUPS)
    peer = Peer(scene, "frontend-9", 7)
    peer.attempt = 1
    hello = Hello(VERSION, peer.name, peer.boot, peer.attempt)
    peer.say(
        frame(Kind.HELLO, body=hello.encode()),
        frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()),
        batch(1, 1, [message(index) for index in range(3 * PIECE)]),
        batch(1, 2, [message(3 * PIECE)]),
    )
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]
    assert received(peer) == list(range(3 * PIECE + 1))
