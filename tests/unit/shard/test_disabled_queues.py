"""The status of a queue at its shard: who may send and receive, and what happens to those who did before."""

import pytest

from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind
from tests.support.shard.scene import Peer, Scene, numbered_messages


def set_status(scene: Scene, status: str, **fields: object) -> None:
    assert isinstance(scene.names, EveryName)
    scene.names.give("q", Policy.parse({"role": "queue", "status": status, **fields}))
    scene.refresh()
    scene.settle_down()


def scene_of(status: str = "active", **fields: object) -> tuple[Scene, Peer]:
    scene = Scene()
    set_status(scene, status, **fields)
    return scene, scene.peer()


def conditions_of(peer: Peer) -> list[tuple[int, str]]:
    return [(link, refusal.condition) for link, _, refusal in peer.refusals]


@pytest.mark.parametrize("status", ["disabled", "send_disabled"])
@pytest.mark.parametrize("durable", [True, False])
def test_batches_of_senders_are_refused_from_the_change_on_and_stored_again_after_it(
    status: str, durable: bool
) -> None:
    scene, peer = scene_of()
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(2), durable=durable)
    set_status(scene, status)
    peer.send(1, 2, numbered_messages(2), durable=durable)
    scene.settle_down()
    assert conditions_of(peer) == [(1, conditions.ENTITY_DISABLED)]
    assert scene.queue("q")["ready"] == 2
    set_status(scene, "active")
    peer.send(1, 3, numbered_messages(1), durable=durable, afresh=True)
    scene.settle_down()
    assert peer.accepted(1)[-1] == 3
    assert scene.queue("q")["ready"] == 3


def test_a_batch_that_was_stored_before_the_change_is_accepted_when_it_comes_again() -> None:
    scene, peer = scene_of()
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(2))
    set_status(scene, "disabled")
    peer.take()
    peer.send(1, 1, numbered_messages(2))
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert scene.queue("q")["ready"] == 2


def test_batches_that_wait_for_room_are_refused_with_the_change() -> None:
    scene, peer = scene_of(max_length=1, overflow="flow_control")
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(1))
    peer.send(1, 2, numbered_messages(1))
    peer.send(1, 3, numbered_messages(1))
    scene.settle_down()
    assert conditions_of(peer) == []
    set_status(scene, "send_disabled", max_length=1, overflow="flow_control")
    assert conditions_of(peer) == [
        (1, conditions.ENTITY_DISABLED),
        (1, conditions.RESOURCE_LIMIT_EXCEEDED),
    ]


def test_what_a_router_sends_is_stored() -> None:
    """A disabled subscription collects its messages, and a disabled queue stops no sender to a router."""
    scene, peer = scene_of("disabled")
    peer.produce(1)
    peer.targets(1, 1, "q")
    peer.route(1, 1, 1, numbered_messages(3))
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert scene.queue("q")["ready"] == 3


@pytest.mark.parametrize("status", ["disabled", "receive_disabled"])
def test_consumers_are_refused_browsers_among_them(status: str) -> None:
    scene, peer = scene_of(status)
    peer.consume(1, "q", 10)
    peer.consume(2, "q", 10, browse=True)
    scene.settle_down()
    assert conditions_of(peer) == [(1, conditions.ENTITY_DISABLED), (2, conditions.ENTITY_DISABLED)]
    # Dead letters stay readable.
    peer.consume(3, "q/$dlq", 10)
    assert [answer.link for answer in peer.take(Kind.CONSUMER_READY)] == [3]


@pytest.mark.parametrize("single_active", [True, False])
def test_an_attached_consumer_gets_no_message_until_the_queue_is_active_again(single_active: bool) -> None:
    fields: dict[str, object] = {"single_active": single_active}
    scene, peer = scene_of("active", **fields)
    peer.produce(1, "q")
    peer.consume(2, "q", 1)
    peer.consume(3, "q", 1)
    peer.send(1, 1, numbered_messages(1))
    scene.settle_down()
    assert len(peer.messages(2)) == 1
    set_status(scene, "receive_disabled", **fields)
    peer.send(1, 2, numbered_messages(1, first=1))
    peer.credit(2, 10)
    peer.credit(3, 10)
    scene.settle_down()
    assert len(peer.messages(2)) + len(peer.messages(3)) == 1
    # What is locked may be settled.
    peer.settle(2, 0, 1)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}
    set_status(scene, "active", **fields)
    assert len(peer.messages(2)) + len(peer.messages(3)) == 2


def test_deferred_messages_are_not_received() -> None:
    scene, peer = scene_of("receive_disabled")
    number = peer.ask("receive_deferred", queue="q", sequences=[0], key="0011")
    scene.settle_down()
    assert peer.answers[number][0]["error"]["condition"] == conditions.ENTITY_DISABLED


def test_batches_for_which_a_router_chose_the_queue_are_stored_and_wait_for_room_as_ever() -> None:
    scene, peer = scene_of("disabled", max_length=1, overflow="flow_control")
    peer.produce(1, "q", routed=True)
    peer.send(1, 1, numbered_messages(1))
    peer.send(1, 2, numbered_messages(1))
    scene.settle_down()
    assert peer.accepted(1) == [1]
    set_status(scene, "send_disabled", max_length=2, overflow="flow_control")
    scene.settle_down()
    assert peer.accepted(1)[-1] == 2
    assert conditions_of(peer) == []
    assert scene.queue("q")["ready"] == 2
