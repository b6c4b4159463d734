"""A queue that is closed for the deletion of its node opens when that can't be applied any more."""

from typing import Any

from lightrail.model import conditions, limits, names
from lightrail.model.policy import QUEUE, Policy
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import Refusal
from tests.support.shard.scene import Peer, Scene

NODE = "$temporary/n"


def names_of(scene: Scene) -> EveryName:
    assert isinstance(scene.names, EveryName)
    return scene.names


def keep(scene: Scene, name: str) -> None:
    """The name's entry is written anew, with what it has."""
    names_of(scene).give(name, scene.names.get(name).policy)
    scene.refresh()


def close(peer: Peer, queue: str, *what: str, **fields: Any) -> None:
    peer.ask("queue", queue=queue, closes_without=what, **fields)


def is_open(peer: Peer, queue: str, link: int) -> bool:
    before = len(peer.refusals)
    peer.consume(link, queue)
    peer.close_consumer(link)
    assert all(refusal.condition == conditions.RESOURCE_DELETED for _, _, refusal in peer.refusals)
    return len(peer.refusals) == before


def test_a_node_whose_frontend_was_lost_accepts_nothing_until_it_is_kept() -> None:
    scene = Scene()
    peer, other = scene.peer(), scene.peer("frontend-1", 8)
    other.produce(1, NODE)
    close(peer, NODE, "messages")
    other.send(1, 1, [b"a"])
    peer.greet()
    assert scene.wishes_to_keep == [NODE], "a frontend that greets again may be another process"
    scene.settle_down()
    assert other.accepted(1) == []
    for _ in range(3):
        other.ping()
        scene.tick(limits.PEER_SILENCE_MS)
    assert scene.wishes_to_keep == [NODE] * 4, "the coordinator may not have answered"
    assert not is_open(other, NODE, 2)
    keep(scene, NODE)
    scene.settle_down()
    assert other.accepted(1) == [1]
    assert is_open(other, NODE, 3)
    scene.tick(limits.PEER_SILENCE_MS)
    assert scene.wishes_to_keep == [NODE] * 4


def test_the_queues_of_a_topic_open_with_the_topic() -> None:
    scene = Scene()
    peer = scene.peer()
    names_of(scene).give(NODE, Policy.parse({"role": "router"}))
    queues = [names.senders_name(NODE), names.subscription_name(NODE, "a")]
    for link, queue in enumerate(queues, 1):
        peer.consume(link, queue)
        peer.close_consumer(link)
        close(peer, queue, "links", revision=scene.names.get(NODE).revision)
        assert not is_open(peer, queue, 10 + link)
    keep(scene, queues[1])
    assert not is_open(peer, queues[1], 13), "the deletion of the topic deletes it, whatever its own revision"
    keep(scene, NODE)
    assert all(is_open(peer, queue, 20 + link) for link, queue in enumerate(queues))


def test_a_queue_is_not_closed_for_a_deletion_that_can_not_be_applied() -> None:
    scene = Scene()
    peer = scene.peer()
    names_of(scene).give(NODE, QUEUE)
    earlier = scene.names.get(NODE).revision
    keep(scene, NODE)
    peer.consume(1, NODE)
    peer.close_consumer(1)
    close(peer, NODE, "links", revision=earlier)
    assert is_open(peer, NODE, 2)
    close(peer, NODE, "links", revision=scene.names.get(NODE).revision + 1)
    assert not is_open(peer, NODE, 3), "the frontend knows a later revision than the shard"
    keep(scene, NODE)
    assert not is_open(peer, NODE, 4)
    keep(scene, NODE)
    assert is_open(peer, NODE, 5)


def test_a_changed_policy_of_its_queue_does_not_open_a_closed_topic() -> None:
    scene = Scene()
    peer = scene.peer()
    names_of(scene).give(NODE, Policy.parse({"role": "router"}))
    queue = names.subscription_name(NODE, "a")
    peer.produce(1, queue)
    close(peer, queue, "messages", revision=scene.names.get(NODE).revision)
    peer.send(1, 1, [b"a"])
    names_of(scene).give(queue, Policy.parse({"role": "queue", "max_delivery_count": 3}))
    scene.refresh()
    scene.settle_down()
    assert peer.accepted(1) == []
    keep(scene, NODE)
    scene.settle_down()
    assert peer.accepted(1) == [1]


def test_a_queue_without_consumers_whose_entry_was_written_anew_is_deleted_at_its_new_revision() -> None:
    scene = Scene()
    peer = scene.peer()
    names_of(scene).give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    peer.consume(1, "q")
    peer.close_consumer(1)
    scene.settle_down()
    assert scene.wishes == ["q"]
    keep(scene, "q")
    later = scene.names.get("q").revision
    peer.ping()
    scene.tick(limits.PEER_SILENCE_MS)
    scene.settle_down()
    assert [each.record.revision for each in scene.retired] == [later - 1, later]
    assert scene.wishes_to_keep == [], "its deletion is the shard's own"


def test_a_queue_that_no_link_has_used_yet_is_closed_as_well() -> None:
    scene = Scene()
    peer = scene.peer()
    close(peer, NODE, "links")
    assert not is_open(peer, NODE, 1)
    names_of(scene).drop(NODE)
    scene.refresh()
    assert not scene.has_queue(NODE)
    names_of(scene).give(NODE, QUEUE)
    scene.refresh()
    assert is_open(peer, NODE, 2), "made anew"


def test_a_queue_that_is_closed_does_not_move() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.consume(1, NODE)
    peer.close_consumer(1)
    close(peer, NODE, "links")
    refusal = scene.engine.freezing.freeze(NODE, 1, scene.now_ms)
    assert isinstance(refusal, Refusal)
    assert "is being deleted" in refusal.description
