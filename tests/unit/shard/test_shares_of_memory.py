"""What a client makes that can't be spilled bounds itself: strangers are answered, whatever it is."""

import gc
import logging
import sys
from types import FunctionType, ModuleType

import pytest

from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.shard.links.receiving.consumer_options import SELECTOR_FACTOR
from lightrail.shard.queues import memory as memory_module
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.memory import Memory
from lightrail.wire.frames import Kind
from tests.support.shard.scene import Peer, Scene, numbered_messages

MARK = 1_000_000


def opened(**policies: dict[str, object]) -> tuple[Scene, Peer, Memory]:
    names = EveryName()
    for name, policy in policies.items():
        names.give(name, Policy.parse({"role": "queue", **policy}))
    scene = Scene(memory_mark=MARK, names=names)
    return scene, scene.peer(), scene.engine._house.memory


def identified(first: int, count: int) -> list[bytes]:
    """Messages with message-ids from `first` on."""
    return [
        b"\x00\x53\x73\xc0\x0b\x01\xa1\x08%08d" % id + b"\x00\x53\x75\xa0\x01x"
        for id in range(first, first + count)
    ]


def settle_all(peer: Peer, link: int) -> None:
    for each in peer.delivered.pop(link, []):
        peer.settle(link, each.number, 1)


def test_message_ids_beyond_their_share_are_forgotten_where_there_are_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene, peer, memory = opened(many={"duplicate_window": 3_600}, few={"duplicate_window": 3_600})
    for link, name in ((1, "many"), (2, "few"), (3, "other")):
        peer.produce(link, name)
    peer.consume(4, "many", 1_000_000)
    peer.send(2, 1, identified(0, 50))
    with caplog.at_level(logging.WARNING):
        for number in range(1, 101):
            peer.send(1, number, identified(100 * number, 100))
            scene.settle_down()
            settle_all(peer, 4)
            assert (
                memory.ids <= memory.ids_max == MARK // memory_module.IDS_SHARE // limits.REMEMBERED_ID_BYTES
            )
    scene.settle_down()
    assert len(peer.accepted(1)) == 100
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    # The oldest are stored again; the newest, and those of the other queue, are not.
    for link, number, first, stored in ((1, 101, 100, 50), (1, 102, 10_050, 0), (2, 2, 0, 0)):
        before = scene.engine._queues.find("many" if link == 1 else "few")
        assert before is not None
        enqueued = before.machine.contents.counters.enqueued
        peer.send(link, number, identified(first, 50))
        scene.settle_down()
        assert before.machine.contents.counters.enqueued - enqueued == stored
    peer.send(3, 1, numbered_messages(1))
    scene.settle_down()
    assert peer.accepted(3) == [1]


def test_the_ids_of_a_queue_without_a_window_any_more_are_not_counted() -> None:
    scene, peer, memory = opened(q={"duplicate_window": 3_600})
    peer.produce(1, "q")
    peer.send(1, 1, identified(0, 50))
    scene.settle_down()
    assert memory.ids == 50
    names = scene.names
    assert isinstance(names, EveryName)
    names.give("q", Policy.parse({"role": "queue"}))
    scene.engine.refresh(scene.now_ms)
    scene.settle_down()
    assert memory.ids == 0


def test_senders_to_a_queue_with_a_large_index_wait_for_room_and_others_do_not() -> None:
    """Messages of alternating priorities are not joined on disk, so that something stays of each."""
    scene, peer, memory = opened()
    for link, name in ((1, "alternating"), (2, "other"), (3, "other too")):
        peer.produce(link, name)
    number = 0
    while not memory.index_is_full:
        number += 1
        assert number < 5_000
        peer.send(1, number, numbered_messages(1), durable=False, priority=4 + number % 2)
        scene.settle_down()
    peer.take()
    for link in (1, 2, 3):
        peer.send(link, number + 1 if link == 1 else 1, numbered_messages(1))
    scene.settle_down()
    assert sorted(answer.link for answer in peer.take(Kind.ACCEPTED)) == [2, 3]
    peer.consume(4, "alternating", 1_000_000)
    for _ in range(100):
        settle_all(peer, 4)
        scene.settle_down()
    assert peer.accepted(1) == [number + 1]


def test_consumers_beyond_their_share_are_refused_until_some_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "LINKS_BYTES_MIN", 0)
    scene, peer, memory = opened()
    fitting = MARK // limits.LINKS_SHARE // 2 // limits.CONSUMER_BYTES
    for link in range(1, fitting + 1):
        peer.consume(link, "q")
    assert not peer.refusals
    peer.consume(fitting + 1, "other")
    ((link, _, refusal),) = peer.refusals
    assert (link, refusal.condition) == (fitting + 1, conditions.RESOURCE_LIMIT_EXCEEDED)
    assert "memory_mark" in refusal.description
    # A sender is no consumer, and messages are delivered to those that are attached.
    peer.produce(1_000, "q")
    peer.send(1_000, 1, numbered_messages(1))
    scene.settle_down()
    assert peer.accepted(1_000) == [1]
    peer.refusals.clear()
    peer.close_consumer(1)
    peer.consume(1, "other")
    assert not peer.refusals
    for link in range(1, fitting + 1):
        peer.close_consumer(link)
    scene.settle_down()
    assert memory.links == memory.consumers.total == 0


def test_a_user_at_its_share_of_receivers_keeps_no_other_user_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "LINKS_BYTES_MIN", 0)
    scene, peer, memory = opened()
    fitting = MARK // limits.LINKS_SHARE // 2 // limits.CONSUMER_BYTES
    for link in range(1, fitting + 2):
        peer.consume(link, "q", user="ann")
    ((link, _, refusal),) = peer.refusals
    assert (link, refusal.condition) == (fitting + 1, conditions.RESOURCE_LIMIT_EXCEEDED)
    share, size = MARK // limits.LINKS_SHARE // 2, limits.CONSUMER_BYTES
    for part in (f"expected at most {share} bytes", "'ann'", f"found {fitting * size}", f"needs {size}"):
        assert part in refusal.description
    assert "close some" in refusal.description
    peer.refusals.clear()
    peer.consume(1_000, "q", user="bob")
    peer.consume(1_001, "q")
    assert not peer.refusals
    # Room that ann leaves is there at once.
    peer.close_consumer(1)
    scene.settle_down()
    peer.consume(1, "q", user="ann")
    assert [link for link, _, _ in peer.refusals] == [1]
    for link in (2, 3, 1_000, 1_001):
        peer.close_consumer(link)
    scene.settle_down()
    peer.refusals.clear()
    peer.consume(2, "q", user="ann")
    assert not peer.refusals
    assert memory.consumers.of("bob") == 0


def test_receivers_of_a_deleted_queue_do_not_count_for_their_user() -> None:
    scene, peer, memory = opened()
    peer.consume(1, "q", user="ann")
    peer.consume(2, "other", user="ann")
    scene.settle_down()
    assert memory.consumers.of("ann") == 2 * limits.CONSUMER_BYTES
    names = scene.names
    assert isinstance(names, EveryName)
    names.drop("q")
    scene.refresh()
    scene.settle_down()
    assert memory.consumers.of("ann") == memory.links == limits.CONSUMER_BYTES


def test_selectors_count_for_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "LINKS_BYTES_MIN", 0)
    _, peer, _ = opened()
    text = " OR ".join(f"a{number} = {number}" for number in range(50))
    link = 0
    while not peer.refusals:
        link += 1
        peer.consume(link, "q", filter={"sql": text})
    assert (
        link == MARK // limits.LINKS_SHARE // 2 // (len(text) * SELECTOR_FACTOR + limits.CONSUMER_BYTES) + 1
    )
    peer.consume(link, "q")
    assert len(peer.refusals) == 1


def test_queues_beyond_their_share_are_not_created_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "QUEUES_BYTES_MIN", 0)
    scene = Scene(memory_mark=10 * memory_module.QUEUES_SHARE * memory_module.QUEUE_BYTES)
    peer = scene.peer()
    for link in range(1, 12):
        peer.produce(link, f"q{link}")
    ((link, _, refusal),) = peer.refusals
    assert (link, refusal.condition) == (11, conditions.RESOURCE_LIMIT_EXCEEDED)
    assert refusal.description == (
        "this shard has no room for one more queue: it has the 10 that memory_mark allows, or its disk is "
        "full; delete some, or use another shard or a larger memory_mark"
    )
    peer.take()
    peer.send(1, 1, numbered_messages(1))
    peer.produce(12, "q2")
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert len(peer.refusals) == 1


@pytest.mark.parametrize(
    ("mark", "most"),
    [
        (0, memory_module.QUEUES_BYTES_MIN // memory_module.QUEUE_BYTES),
        (64_000_000, 7_373),
        (1 << 30, limits.QUEUES_MAX),
        (1 << 40, limits.QUEUES_MAX),
    ],
)
def test_the_default_mark_has_room_for_all_queues_that_a_shard_may_have(mark: int, most: int) -> None:
    assert Scene(memory_mark=mark).engine._queues.queues_max == most


def test_a_queue_counts_for_what_it_takes() -> None:
    """What one more queue adds to the objects that its shard can reach."""
    scene = Scene()
    peer = scene.peer()
    for link in (1, 2, 3):
        peer.produce(link, f"q{link}")
        peer.close_producer(link)
    one, other = (_reachable(scene.engine._queues.find(f"q{link}")) for link in (2, 3))
    size = sum(sys.getsizeof(one[each]) for each in one.keys() - other.keys())
    assert 0.8 * memory_module.QUEUE_BYTES <= size <= memory_module.QUEUE_BYTES


def _reachable(root: object) -> dict[int, object]:
    """All objects that one refers to, however far, except code."""
    found: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if id(each) not in found and not isinstance(each, type | ModuleType | FunctionType):
            found[id(each)] = each
            left += gc.get_referents(each)
    return found
