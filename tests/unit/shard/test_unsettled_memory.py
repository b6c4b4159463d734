"""Unsettled deliveries count for what they cost, and who has many gets no more while memory is short."""

import pytest

from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.shard.queue.values.counters import NO_BOUND
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.memory import UNSETTLED_RUNS_MIN, UNSETTLED_SHARE, Memory
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.now import now
from tests.support.shard.scene import Peer, Scene, numbered_messages

MARK = 1_000_000
FULL = MARK // UNSETTLED_SHARE // limits.RUN_ON_DISK_BYTES
"""Runs that fill the share of unsettled deliveries."""


def opened(**policy: object) -> tuple[Scene, Peer]:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    scene = Scene(memory_mark=MARK, names=names)
    peer = scene.peer()
    for link, queue in ((1, "q"), (2, "other")):
        peer.produce(link, queue)
    return scene, peer


def send(peer: Peer, link: int, first: int, count: int) -> None:
    """Sends so many messages, each in a batch of its own, under the numbers from `first` on."""
    for number in range(first, first + count):
        peer.send(link, number, numbered_messages(1, number), durable=False)


def received(peer: Peer, link: int) -> list[int]:
    """Delivery numbers since the last call."""
    return [each.number for each in peer.delivered.pop(link, [])]


def memory_of(scene: Scene) -> Memory:
    return scene.engine._house.memory


@pytest.mark.parametrize("policy", [{}, {"priorities": 10}, {"groups": True}, {"lock_duration": 3_600}])
def test_messages_that_came_alone_count_for_the_objects_around_them(policy: dict[str, object]) -> None:
    scene, peer = opened(**policy)
    peer.consume(5, "q", 10_000)
    send(peer, 1, 1, 400)
    assert len(received(peer, 5)) == 400
    assert memory_of(scene).resident >= 400 * 0.7 * limits.RUN_BYTES
    peer.settle(5, 0, 400)
    assert memory_of(scene).resident <= limits.RUNS_UNCOUNTED_MAX * limits.RUN_BYTES


def test_what_is_left_of_a_batch_counts_by_its_runs() -> None:
    """Also where messages are deferred: their number does not change then."""
    for detail, code in (
        (SettleDetail(), OutcomeCode.ACCEPTED),
        (SettleDetail(deferred=True), OutcomeCode.MODIFIED),
    ):
        scene, peer = opened()
        peer.consume(5, "q", 10_000)
        peer.send(1, 1, numbered_messages(500), durable=False)
        assert memory_of(scene).resident < 20_000
        for number in range(0, 500, 2):
            peer.settle(5, number, 1, code, detail)
        assert memory_of(scene).resident >= 250 * 0.7 * limits.RUN_BYTES


def test_who_has_many_gets_no_more_until_it_has_settled_some(caplog: pytest.LogCaptureFixture) -> None:
    _, peer = opened()
    peer.consume(5, "q", 10_000)
    peer.consume(6, "other", 10_000)
    send(peer, 1, 1, FULL + 500)
    send(peer, 2, 1, 100)
    first = received(peer, 5)
    assert FULL <= len(first) < 1.25 * FULL + 20
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    # One with few goes on: at another queue, and at the same one.
    assert len(received(peer, 6)) == 100
    peer.settle(6, 0, 100)
    peer.consume(7, "q", 5)
    assert len(received(peer, 7)) == 5
    # Senders are answered.
    assert len(peer.accepted(1)) == FULL + 500
    peer.settle(5, 0, len(first))
    assert first + received(peer, 5) == list(range(FULL + 495))


def test_it_gets_more_as_well_when_others_have_settled() -> None:
    scene, peer = opened()
    peer.consume(5, "q", 10_000)
    peer.consume(6, "other", 10_000)
    send(peer, 1, 1, FULL + 200)
    many = received(peer, 5)
    send(peer, 2, 1, FULL)
    few = received(peer, 6)
    assert len(few) < FULL
    assert now(scene.engine.deadline_ms) is None
    peer.settle(5, 0, len(many))
    # Nothing else has to happen.
    assert now(scene.engine.deadline_ms) == 0
    scene.turn()
    assert len(few) + len(received(peer, 6)) == FULL


def test_a_drain_is_answered_though_messages_are_ready() -> None:
    _, peer = opened()
    peer.consume(5, "q", 10_000)
    send(peer, 1, 1, FULL + 500)
    peer.take()
    peer.credit(5, 20_000, drain=True)
    assert [answer.link for answer in peer.take(Kind.DRAINED)] == [5]


def test_deferred_messages_count_for_every_consumer_of_their_queue() -> None:
    scene, peer = opened()
    peer.consume(5, "q", 10_000)
    for number in range(1, 2 * FULL + 1):
        send(peer, 1, number, 1)
        for delivery in received(peer, 5):
            peer.settle(5, delivery, 1, OutcomeCode.MODIFIED, SettleDetail(deferred=True))
    assert memory_of(scene).unsettled > memory_of(scene).unsettled_max
    assert memory_of(scene).unsettled < 2 * MARK // UNSETTLED_SHARE
    peer.consume(6, "other", 10)
    send(peer, 2, 1, 10)
    assert len(received(peer, 6)) == 10


def test_failed_messages_wait_up_to_their_share_and_the_others_with_their_consumers() -> None:
    """They came as few runs, and each that waits is one."""
    scene, peer = opened(retry_delay=60, max_delivery_count=0)
    peer.consume(5, "q", 1_000_000)
    for number in range(1, 11):
        peer.send(1, number, numbered_messages(500, 500 * number), durable=False)
    came = received(peer, 5)
    assert len(came) == 5_000
    for delivery in came:
        scene.now_ms += 1
        peer.settle(5, delivery, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
        if not delivery % 100:
            peer.ping()
    retries = scene.queue_contents("q").retries
    assert retries is not None
    assert FULL // 2 < len(retries) < 1.3 * FULL + 20
    assert memory_of(scene).unsettled < 1.3 * MARK // UNSETTLED_SHARE
    assert received(peer, 5) == []
    # A stranger's messages are delivered, and those of the queue when others have waited.
    peer.consume(6, "other", 10)
    send(peer, 2, 1, 10)
    assert len(received(peer, 6)) == 10
    for _ in range(60):
        peer.ping()
        scene.tick(1_000)
    assert len(received(peer, 5)) == 5_000


def test_each_of_many_consumers_keeps_a_few() -> None:
    memory = Memory(MARK)
    assert memory.unsettled_runs_max(1) == NO_BOUND
    memory.unsettled = MARK // UNSETTLED_SHARE + 1
    assert [memory.unsettled_runs_max(count) for count in (0, 1, 10, 10_000)] == [
        FULL,
        FULL,
        FULL // 10,
        UNSETTLED_RUNS_MIN,
    ]
