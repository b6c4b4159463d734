"""Disowned queues: one that is claimed again has its messages, and nothing of the links that it had."""

import pytest

from lightrail.model import limits
from lightrail.model.policy import QUEUE
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.fake_map import FakeMap

ONE = "1" * 32


def disown_by_placement(scene: Scene, map: FakeMap, names: EveryName) -> None:
    """Another shard owns the queue, in an earlier epoch: the coordinator was set back."""
    map.give("q", 1, 2)
    scene.refresh()


def disown_by_name(scene: Scene, map: FakeMap, names: EveryName) -> None:
    """The coordinator was set back, and does not know the queue."""
    names.history = "second"
    names.drop("q")
    scene.refresh()


def claim(scene: Scene, map: FakeMap, names: EveryName) -> None:
    names.give("q", QUEUE)
    map.give("q", 0, 5)
    scene.refresh()


@pytest.fixture(params=[disown_by_placement, disown_by_name])
def scene(request: pytest.FixtureRequest) -> tuple[Scene, Peer]:
    """A shard whose queue has two messages, and was disowned and claimed while a consumer had one of them."""
    map, names = FakeMap(q=(0, 3)), EveryName()
    names.give("q", QUEUE)
    scene = Scene(map=map, names=names)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a"])
    peer.consume(2, "q", 1, client_link=ONE, steals=True, suspended_ms=60_000)
    scene.settle_down()
    assert peer.messages(2) == [b"a"]
    if "suspended" in request.fixturenames:
        peer.close_consumer(2)
    request.param(scene, map, names)
    claim(scene, map, names)
    return scene, peer


@pytest.fixture
def suspended() -> None:
    """The consumer's link had ended, and its client might have resumed it."""


def check(scene: Scene, peer: Peer) -> None:
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}
    assert len(scene.engine._links.receiving) == 0
    assert scene.unattached == []
    peer.consume(9, "q", 1, epoch=5, client_link=ONE, steals=True)
    scene.settle_down()
    (found,) = peer.delivered[9]
    assert (found.message, found.attempts) == (b"a", 1)
    peer.settle(9, 0, 1, OutcomeCode.ACCEPTED)
    scene.tick(limits.PEER_SILENCE_MS)
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}


def test_a_disowned_queue_has_no_message_in_flight_when_it_is_claimed(scene: tuple[Scene, Peer]) -> None:
    check(*scene)


def test_a_disowned_queue_awaits_nobody_when_it_is_claimed(
    suspended: None, scene: tuple[Scene, Peer]
) -> None:
    shard, peer = scene
    other = shard.peer("frontend-1", boot=8)
    other.consume(3, "q", epoch=5, client_link=ONE, steals=True)
    assert other.take(Kind.CONSUMER_READY)
    other.close_consumer(3)
    check(shard, peer)


def test_a_frozen_queue_that_is_disowned_has_no_message_in_flight_when_it_is_claimed() -> None:
    map, names = FakeMap(q=(0, 3)), EveryName()
    names.give("q", QUEUE)
    scene = Scene(map=map, names=names)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a"])
    peer.consume(2, "q", 1, client_link=ONE, steals=True, suspended_ms=60_000)
    scene.settle_down()
    scene.peer("shard-1", boot=50).ask("freeze", queue="q", epoch=3)
    scene.settle_down()
    map.lose("q", 1, 4)
    scene.refresh()
    assert not scene.engine._queues.find("q").is_serving  # type: ignore[union-attr]
    claim(scene, map, names)
    check(scene, peer)


def test_a_message_that_was_read_while_the_queue_was_frozen_is_delivered_when_it_is_claimed() -> None:
    files, names, map = FakeFiles(), EveryName(), FakeMap(q=(0, 3))
    names.give("q", QUEUE)
    journal = Journal(files, "test", 0)
    before = Scene(journal, journal.recover(1 << 30, 1), map=map, names=names)
    sender = before.peer()
    sender.produce(1, "q")
    sender.send(1, 1, [b"a"])
    before.settle_down()
    before.store.close()
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(0, 1), map=map, names=names)
    scene.reading = False
    peer = scene.peer()
    peer.consume(2, "q", 1)
    reads = scene.take_reads()
    assert reads
    scene.peer("shard-1", boot=50).ask("freeze", queue="q", epoch=3)
    scene.settle_down()
    for read in reads:
        read.perform(scene.store)
        scene.engine.read_ended(read, None, scene.now_ms)
    map.lose("q", 1, 4)
    scene.refresh()
    claim(scene, map, names)
    scene.reading = True
    peer.consume(9, "q", 1, epoch=5)
    scene.settle_down()
    assert peer.messages(9) == [b"a"]
    scene.store.close()
