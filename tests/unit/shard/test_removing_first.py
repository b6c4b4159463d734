"""Links that remove messages first: a message that such a link has got is in no queue after a crash."""

from typing import Any

import pytest

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import VERSION, Kind, OutcomeCode, frame
from lightrail.wire.versions import for_version
from tests.unit.shard.test_durable_receivers import BODIES, Disk, messages

REMOVING = {"presettled": True, "removes_first": True}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "locks": ({"lock_duration": 10}, {}),
    "priorities": ({"priorities": 3}, {}),
    "groups": ({"groups": True}, {}),
    "delays": ({"delay": True}, {}),
}


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["on disk", "in memory"])
@pytest.mark.parametrize("commits", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_was_delivered_is_not_in_the_queue_after_a_crash(
    kind: str, commits: int, memory_bytes: int
) -> None:
    policy, options = KINDS[kind]
    disk = Disk(**policy)
    scene = disk.killed(memory_bytes=memory_bytes)
    peer = scene.peer(boot=8)
    peer.consume(2, "q", **REMOVING, **options)
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


@pytest.mark.parametrize("session", [{"session": "a"}, {"any_session": True}], ids=str)
def test_messages_of_a_session_wait_as_well(session: dict[str, Any]) -> None:
    sent = [write_message(Message(Properties(group_id="a"), body=each)) for each in ("one", "two")]
    disk = Disk(sent, groups=True, lock_duration=10)
    peer = disk.scene.peer()
    peer.consume(2, "q", **REMOVING, **session)
    disk.scene.settle_down()
    peer.credit(2, 1)
    disk.scene.turn()
    assert messages(peer, 2) == []
    disk.scene.settle_down()
    assert messages(peer, 2) == sent[:1]
    scene = disk.killed()
    assert [message for *_, message in scene.everything("q")] == sent[1:]


def test_frames_of_the_link_stay_in_their_order() -> None:
    disk = Disk()
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **REMOVING)
    peer.credit(2, len(BODIES) + 1, drain=True)
    scene.turn()
    assert peer.take(Kind.DRAINED) == []
    scene.settle_down()
    assert messages(peer, 2) == BODIES
    assert len(peer.take(Kind.DRAINED)) == 1


def test_other_links_of_the_queue_wait_for_nothing() -> None:
    disk = Disk()
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **REMOVING)
    peer.consume(3, "q")
    peer.credit(2, 1)
    peer.credit(3, 1)
    scene.turn()
    assert (messages(peer, 2), messages(peer, 3)) == ([], BODIES[1:2])
    scene.settle_down()
    assert messages(peer, 2) == BODIES[:1]


def test_messages_that_are_not_durable_wait_for_nothing() -> None:
    disk = Disk(BODIES[:1])
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **REMOVING)
    peer.credit(2, 1)
    scene.settle_down()
    assert messages(peer, 2) == BODIES[:1]
    peer.produce(1, "q")
    peer.send(1, 1, BODIES, durable=False)
    peer.credit(2, 4)
    scene.turn()
    assert messages(peer, 2) == BODIES[:3]


def test_a_link_that_has_ended_leaves_nothing() -> None:
    disk = Disk()
    scene = disk.scene
    peer = scene.peer()
    peer.consume(2, "q", **REMOVING)
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


def test_a_shard_of_the_version_before_gets_the_opening_without_it() -> None:
    opening = ConsumerOpen("q", presettled=True, removes_first=True)
    (part,) = for_version([frame(Kind.CONSUMER_OPEN, link=1, body=opening.encode())], VERSION - 1)
    assert b"removes_first" not in bytes(part)
    assert ConsumerOpen.decode(opening.encode()).removes_first
