"""Links that remove messages first: a message that such a link has got is in no queue after a crash."""

from typing import Any

import pytest

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.wire.bodies import ConsumerOpen, SettleDetail
from lightrail.wire.frames import VERSION, Kind, OutcomeCode, frame
from lightrail.wire.versions import for_version
from tests.support.shard.moving_scene import Cluster
from tests.unit.shard.mover.test_mover import frontend, run
from tests.unit.shard.test_durable_receivers import BODIES, Disk, messages

PRESETTLED: dict[str, Any] = {"presettled": True, "removes_first": True}
BOUNDED: dict[str, Any] = {"removes_first": True, "removed_bytes_max": 100}
"""Of a link whose client bounds the size of messages: its frontend settles what the shard does not accept."""
REMOVING = pytest.mark.parametrize("removing", [PRESETTLED, BOUNDED], ids=["presettled", "bounded"])
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "locks": ({"lock_duration": 10}, {}),
    "priorities": ({"priorities": 3}, {}),
    "groups": ({"groups": True}, {}),
    "delays": ({"delay": True}, {}),
}


@REMOVING
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["on disk", "in memory"])
@pytest.mark.parametrize("commits", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_was_delivered_is_not_in_the_queue_after_a_crash(
    kind: str, commits: int, memory_bytes: int, removing: dict[str, Any]
) -> None:
    policy, options = KINDS[kind]
    disk = Disk(**policy)
    scene = disk.killed(memory_bytes=memory_bytes)
    peer = scene.peer(boot=8)
    peer.consume(2, "q", **removing, **options)
    for number in range(commits):
        peer.credit(2, number + 1)
        scene.turn()
        assert len(peer.delivered.get(2, [])) == number, "a delivery leaves before its removal is on disk"
        scene.begin_commit()
        scene.turn()
        assert len(peer.delivered.get(2, [])) == number
        scene.end_commit()
        assert len(peer.delivered[2]) == number + 1
    # One more is on its way: it may be lost, and does not come again beside what was delivered.
    peer.credit(2, commits + 1)
    scene.turn()
    found = messages(peer, 2)
    disk.files = disk.files.after_crash(0, "none")
    scene = disk.start(memory_bytes)
    left = [message for *_, message in scene.everything("q")]
    assert found == BODIES[:commits]
    assert sorted([*found, *left]) == sorted(BODIES)


def sized(name: str, size: int) -> bytes:
    return write_message(Message(body=name.ljust(size, "-")))


@pytest.mark.parametrize("batches", [1, 4], ids=["one batch", "four batches"])
@pytest.mark.parametrize("policy", [{}, {"max_bytes": 50, "overflow": "flow_to_disk"}], ids=str)
def test_only_messages_that_certainly_fit_are_removed_and_others_are_for_the_frontend_to_settle(
    policy: dict[str, Any], batches: int
) -> None:
    sent = [sized("a", 20), sized("b", 200), sized("c", 20), sized("d", 200)]
    disk = Disk(sent if batches == 1 else sent[:1], **policy)
    scene = disk.scene
    sender = scene.peer("other", boot=4)
    sender.produce(1, "q")
    for number, message in enumerate(sent[1:] if batches > 1 else [], 1):
        sender.send(1, number, [message])
    scene.settle_down()
    peer = scene.peer(boot=8)
    peer.consume(2, "q", **BOUNDED)
    peer.credit(2, 4)
    scene.settle_down()
    assert messages(peer, 2) == sent
    assert scene.queue("q") == {"ready": 0, "in_flight": 2}
    # As a frontend does for a message that its client does not accept, and then for all that it sent.
    elsewhere = SettleDetail(undeliverable_here=True)
    peer.settle(2, 3, 1, OutcomeCode.MODIFIED, elsewhere)
    peer.settle(2, 0, 4)
    peer.credit(2, 8)
    scene.settle_down()
    assert messages(peer, 2) == []
    left = [message for *_, message in disk.killed().everything("q")]
    assert left == sent[3:]


def test_a_link_goes_on_removing_where_its_queue_moves_to() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        for shard, found in ((0, [b"a"]), (1, [b"b"])):
            peer = frontend(cluster, shard)
            peer.consume(2, "q", epoch=shard + 1, first=shard, resume=bool(shard), **BOUNDED)
            peer.produce(1, "q", epoch=shard + 1)
            peer.send(1, shard + 1, found)
            peer.credit(2, shard + 1)
            cluster.shards[shard].settle_down()
            assert messages(peer, 2) == found
            if not shard:
                await cluster.moved("q", 1)
            assert cluster.shards[1].scene.queue("q") == {"ready": 0, "in_flight": 0}

    run(story)


@REMOVING
@pytest.mark.parametrize("session", [{"session": "a"}, {"any_session": True}], ids=str)
def test_messages_of_a_session_wait_as_well(session: dict[str, Any], removing: dict[str, Any]) -> None:
    sent = [write_message(Message(Properties(group_id="a"), body=each)) for each in ("one", "two")]
    disk = Disk(sent, groups=True, lock_duration=10)
    peer = disk.scene.peer()
    peer.consume(2, "q", **removing, **session)
    disk.scene.settle_down()
    peer.credit(2, 1)
    disk.scene.turn()
    assert messages(peer, 2) == []
    disk.scene.settle_down()
    assert messages(peer, 2) == sent[:1]
    scene = disk.killed()
    assert [message for *_, message in scene.everything("q")] == sent[1:]


@REMOVING
def test_frames_of_the_link_stay_in_their_order(removing: dict[str, Any]) -> None:
    disk = Disk()
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **removing)
    peer.credit(2, len(BODIES) + 1, drain=True)
    scene.turn()
    assert peer.take(Kind.DRAINED) == []
    scene.settle_down()
    assert messages(peer, 2) == BODIES
    assert len(peer.take(Kind.DRAINED)) == 1


@REMOVING
def test_other_links_of_the_queue_wait_for_nothing(removing: dict[str, Any]) -> None:
    disk = Disk()
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **removing)
    peer.consume(3, "q")
    peer.credit(2, 1)
    peer.credit(3, 1)
    scene.turn()
    assert (messages(peer, 2), messages(peer, 3)) == ([], BODIES[1:2])
    scene.settle_down()
    assert messages(peer, 2) == BODIES[:1]


@REMOVING
def test_messages_that_are_not_durable_wait_for_nothing(removing: dict[str, Any]) -> None:
    disk = Disk(BODIES[:1])
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **removing)
    peer.credit(2, 1)
    scene.settle_down()
    assert messages(peer, 2) == BODIES[:1]
    peer.produce(1, "q")
    peer.send(1, 1, BODIES, durable=False)
    peer.credit(2, 4)
    scene.turn()
    assert messages(peer, 2) == BODIES[:3]


@REMOVING
def test_a_link_that_has_ended_leaves_nothing(removing: dict[str, Any]) -> None:
    disk = Disk()
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **removing)
    peer.credit(2, 1)
    scene.settle_down()
    peer.close_consumer(2)
    scene.settle_down()
    peer.consume(3, "q")
    peer.credit(3, 1)
    scene.settle_down()
    peer.settle(3, 0, 1, OutcomeCode.ACCEPTED)
    scene.settle_down()
    receivers = scene.engine._links.durable
    assert (receivers.by_queue, receivers.waiting) == ({}, {})


@REMOVING
def test_a_shard_of_the_version_before_gets_the_opening_without_it(removing: dict[str, Any]) -> None:
    opening = ConsumerOpen("q", **removing)
    (part,) = for_version([frame(Kind.CONSUMER_OPEN, link=1, body=opening.encode())], VERSION - 1)
    assert b"remove" not in bytes(part)
    assert ConsumerOpen.decode(opening.encode()) == opening
