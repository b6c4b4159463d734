"""The request to delete messages: the first ones that are ready, and older than a time."""

from typing import Any

import pytest

from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.requests import peeking
from lightrail.shard.requests.requests import DELETED_AT_ONCE_MAX
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.amqp.peer import data


def opened(*, mark: int = 1 << 30, **policy: Any) -> tuple[Scene, Peer]:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    journal = Journal(FakeFiles(), "test", 0)
    scene = Scene(journal, journal.recover(mark, 1), names=names, memory_mark=mark)
    scene.turn()
    peer = scene.peer()
    peer.produce(1, "q")
    return scene, peer


def send(scene: Scene, peer: Peer, number: int, count: int, size: int = 1) -> None:
    peer.send(1, number, [data(bytes(size)) for _ in range(count)])
    scene.settle_down()
    scene.now_ms += 10


def delete(scene: Scene, peer: Peer, count: int = DELETED_AT_ONCE_MAX, **fields: Any) -> dict[str, Any]:
    asked = peer.ask("delete", queue="q", count=count, **fields)
    for _ in range(20):
        scene.settle_down()
    found: dict[str, Any] = peer.answers[asked][0]
    return found


@pytest.mark.parametrize("policy", [{}, {"groups": True}, {"priorities": 3}, {"delay": True}])
def test_the_first_messages_are_deleted_for_good(policy: dict[str, Any]) -> None:
    scene, peer = opened(**policy)
    for number in (1, 2, 3):
        send(scene, peer, number, 4)
    assert delete(scene, peer, 6) == {"deleted": 6}
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}
    peer.consume(2, "q", 1)
    assert [each.sequence for each in peer.delivered[2]] == [6]
    # What is delivered stays.
    assert delete(scene, peer, 3) == {"deleted": 3}
    peer.settle(2, 0, 1, OutcomeCode.RELEASED)
    peer.credit(2, 10)
    assert [each.sequence for each in peer.delivered[2]] == [6, 6, 10, 11]
    assert delete(scene, peer) == {"deleted": 0}
    counters = scene.queue_view("q").counters
    assert (counters.purged, counters.enqueued) == (9, 12)


@pytest.mark.parametrize("policy", [{}, {"groups": True}])
def test_only_messages_before_a_time_are_deleted_also_those_that_are_only_on_disk(
    policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "READ_AT_ONCE_BYTES", 50_000)
    scene, peer = opened(mark=1_000_000, **policy)
    begin = scene.now_ms
    for number in range(1, 101):
        send(scene, peer, number, 2, 10_000)
    assert scene.queue_view("q").ready.evicted_runs
    assert delete(scene, peer, before_ms=begin) == {"deleted": 0}
    assert delete(scene, peer, before_ms=begin + 10 * 70) == {"deleted": 140}
    peer.consume(2, "q", 1)
    for _ in range(5):
        scene.settle_down()
    assert [each.sequence for each in peer.delivered[2]] == [140]
    assert delete(scene, peer) == {"deleted": 59}


@pytest.mark.parametrize("fields", [{"count": 0}, {"count": DELETED_AT_ONCE_MAX + 1}, {"before_ms": -1}])
def test_a_request_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    scene, peer = opened()
    send(scene, peer, 1, 1)
    found = delete(scene, peer, **{"count": 1, **fields})
    assert found["error"]["condition"] == conditions.INVALID_FIELD
    assert scene.queue("q")["ready"] == 1
