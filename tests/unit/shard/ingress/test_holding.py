"""Routed batches before a full queue that lets senders wait: they wait in order and hold up nobody else."""

import pytest

from lightrail.model import conditions
from lightrail.shard.queue.values.commands import Change
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queues import memory
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind, frame
from tests.support.shard.scene import Peer, Scene

FLOW = Policy(max_length=2, overflow="flow_control")


def opened(policy: Policy = FLOW) -> tuple[Scene, Peer]:
    """A router's link, 1, whose set 5 is the queues a and b; b has the policy, and is full."""
    scene = Scene()
    peer = scene.peer()
    peer.produce(1)
    peer.targets(1, 5, "a", "b")
    queue = scene.engine._queues.find("b")
    assert queue is not None
    queue.machine.apply(Change(policy), 0)
    peer.route(1, 1, 5, [b"1", b"2"])
    scene.settle_down()
    assert peer.accepted(1) == [1]
    return scene, peer


def depths(scene: Scene) -> list[int]:
    return [scene.queue(name)["ready"] for name in "ab"]


def take(scene: Scene, peer: Peer, count: int) -> None:
    """Somebody takes messages of b."""
    before = len(peer.messages(7))
    if not before:
        peer.consume(7, "b")
    peer.credit(7, before + count)
    peer.settle(7, before, count)
    scene.settle_down()


def test_what_does_not_fit_waits_and_is_stored_in_every_queue_when_there_is_room() -> None:
    scene, peer = opened()
    peer.route(1, 2, 5, [b"3", b"4"])
    scene.settle_down()
    assert (peer.accepted(1), peer.refusals, depths(scene)) == ([], [], [2, 2])
    take(scene, peer, 1)
    assert (peer.accepted(1), depths(scene)) == ([], [2, 1])
    take(scene, peer, 1)
    assert peer.accepted(1) == [2]
    assert scene.engine._house.memory.parked == 0
    assert (peer.refusals, depths(scene)) == ([], [4, 2])


def test_what_comes_behind_on_the_link_waits_as_well_and_stays_in_order() -> None:
    scene, peer = opened()
    peer.targets(1, 6, "a")
    peer.route(1, 2, 5, [b"3"])
    peer.route(1, 3, 6, [b"4"])
    scene.settle_down()
    assert depths(scene) == [2, 2]
    take(scene, peer, 1)
    assert peer.accepted(1) == [2, 3]
    peer.consume(8, "a", 10)
    assert peer.messages(8) == [b"1", b"2", b"3", b"4"]


def test_other_links_are_not_held_up() -> None:
    scene, peer = opened()
    peer.route(1, 2, 5, [b"3"])
    peer.produce(2)
    peer.targets(2, 1, "a")
    peer.route(2, 1, 1, [b"other"])
    scene.settle_down()
    assert peer.accepted(2) == [1]
    assert depths(scene) == [3, 2]


def test_the_wait_ends_with_the_enqueue_timeout_and_the_rest_is_refused() -> None:
    scene, peer = opened(Policy(max_length=2, overflow="reject", enqueue_timeout_ms=700))
    peer.route(1, 2, 5, [b"3"])
    peer.route(1, 3, 5, [b"4"])
    scene.settle_down()
    assert scene.engine.deadline_ms == scene.now_ms + 700
    scene.tick(699)
    assert peer.refusals == []
    scene.tick(1)
    assert [(number, refusal.condition) for _, number, refusal in peer.refusals] == [
        (2, conditions.RESOURCE_LIMIT_EXCEEDED),
        (3, conditions.RESOURCE_LIMIT_EXCEEDED),
    ]
    assert depths(scene) == [2, 2]
    assert scene.engine.deadline_ms is None


def test_a_batch_larger_than_the_queue_waits_until_it_is_empty_and_fits_in_part() -> None:
    scene, peer = opened()
    peer.route(1, 2, 5, [b"3", b"4", b"5"])
    scene.settle_down()
    take(scene, peer, 1)
    assert peer.refusals == []
    take(scene, peer, 1)
    ((_, number, refusal),) = peer.refusals
    assert (number, refusal.accepted) == (2, 2)
    assert depths(scene) == [4, 2]


def test_a_link_that_says_everything_once_more_waits_once() -> None:
    scene, peer = opened()
    peer.route(1, 2, 5, [b"3"])
    scene.settle_down()
    peer.greet()
    peer.produce(1)
    peer.targets(1, 5, "a", "b")
    peer.route(1, 2, 5, [b"3"])
    scene.settle_down()
    take(scene, peer, 2)
    assert peer.accepted(1)[-1] == 2
    assert depths(scene) == [3, 1]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, peer = opened()
    monkeypatch.setattr(memory, "PARKED_BYTES_MAX", 100)
    peer.route(1, 2, 5, [b"x" * 40])
    peer.route(1, 3, 5, [b"x" * 40])
    peer.route(1, 4, 5, [b"behind"])
    scene.settle_down()
    assert [number for _, number, _ in peer.refusals] == [3, 4]
    take(scene, peer, 2)
    assert peer.accepted(1) == [2]
    peer.route(1, 5, 5, [b"afresh"], afresh=True)
    scene.settle_down()
    assert peer.accepted(1) == [5]


def test_a_queue_that_is_dropped_lets_the_sender_look_anew() -> None:
    scene, peer = opened()
    peer.route(1, 2, 5, [b"3"])
    scene.settle_down()
    assert isinstance(scene.names, EveryName)
    scene.names.drop("b")
    scene.refresh()
    scene.settle_down()
    ((_, number, refusal),) = [each for each in peer.refusals if each[1] == 2]
    assert (number, refusal.condition) == (2, conditions.NOT_FOUND)


def test_what_a_client_that_has_gone_left_waiting_is_refused_and_not_stored_later() -> None:
    scene, peer = opened()
    peer.route(1, 2, 5, [b"3"])
    peer.route(1, 3, 5, [b"4"])
    scene.settle_down()
    peer.say(frame(Kind.PRODUCER_ABANDON, link=1))
    scene.settle_down()
    assert [number for _, number, _ in peer.refusals] == [2, 3]
    peer.route(1, 4, 5, [b"5"], afresh=True)
    scene.settle_down()
    assert [number for _, number, _ in peer.refusals] == [2, 3, 4]
    take(scene, peer, 2)
    peer.route(1, 5, 5, [b"6"], afresh=True)
    scene.settle_down()
    assert peer.accepted(1) == [5]
    assert depths(scene) == [3, 1]
