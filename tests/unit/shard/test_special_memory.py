"""Queues that look into messages, above the memory mark: what leaves memory, who waits, what is back."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.memory import (
    INDEX_BYTES_MIN,
    INDEX_REPORTED_EVERY_MS,
    INDEX_SLACK,
    UNSPILLABLE_SLACK_BYTES,
    Memory,
)
from lightrail.wire.frames import Kind
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene

MARK = 1_000_000
POLICIES: dict[str, dict[str, Any]] = {
    "priorities": {"priorities": 10},
    "groups": {"groups": True},
    "delay": {"delay": True},
    "sorted": {"order": "sorted", "order_key": "application-properties.key"},
    "last_value": {"order": "last_value", "order_key": "application-properties.key"},
    "groups and delay": {"groups": True, "delay": True},
}


def message(number: int, size: int, delay_ms: int = 0) -> bytes:
    """A key that falls as numbers rise, one of ten groups."""
    data = b""
    if delay_ms:
        data += b"\x00\x53\x72" + encode({Symbol("x-opt-delivery-delay"): delay_ms})
    fields = b"\x40" * 10 + b"\xa1\x01%d" % (number % 10)
    data += b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, 11)) + fields
    data += b"\x00\x53\x74" + encode({"key": f"{10**8 - number:09d}"})
    return data + b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + b"%08d" % number + bytes(size - 8)


def number_of(data: bytes) -> int:
    at = data.index(b"\x00\x53\x75\xb0") + 8
    return int(data[at : at + 8])


def opened(files: FakeFiles, policy: dict[str, Any]) -> tuple[Scene, Peer]:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(MARK, 1), names=names, memory_mark=MARK)
    for _ in range(200):
        scene.settle_down()
    return scene, scene.peer()


def fill(scene: Scene, peer: Peer, batches: int, *, delay_ms: int = 0, durable: bool = True) -> None:
    peer.produce(1, "q")
    for number in range(batches):
        messages = [message(2 * number + each, 5_000, delay_ms) for each in (0, 1)]
        peer.send(1, number + 1, messages, durable=durable)
        scene.settle_down()
        assert scene.engine._house.memory.resident <= MARK + 20_000


def receive(scene: Scene, peer: Peer, count: int) -> list[int]:
    """Receives and settles, with small credit."""
    peer.consume(2, "q", 20)
    found: list[int] = []
    for _ in range(20 * count):
        came = peer.delivered.pop(2, [])
        if came:
            found += [number_of(each.message) for each in came]
            peer.settle(2, came[0].number, len(came))
            peer.credit(2, came[-1].number + 21)
        scene.settle_down()
        assert scene.engine._house.memory.resident <= MARK + 300_000
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_ten_marks_flow_to_disk_and_come_back_in_order(policy: str, durable: bool) -> None:
    scene, peer = opened(FakeFiles(), POLICIES[policy])
    fill(scene, peer, 500, durable=durable)
    assert len(peer.accepted(1)) == 500
    found = receive(scene, peer, 1_000)
    assert len(found) == 1_000
    if policy == "sorted":
        assert found == sorted(found, reverse=True)
    elif "groups" in policy:
        for group in range(10):
            assert [n for n in found if n % 10 == group] == list(range(group, 1_000, 10))
    else:
        assert found == list(range(1_000))
    assert scene.counts.evictions
    # A few keys of what has left are kept until they are many.
    assert scene.engine._house.memory.resident <= limits.STALE_RANGES_MIN * 200


def test_delayed_messages_leave_memory_and_are_back_when_their_time_comes() -> None:
    for policy in ({"delay": True}, POLICIES["groups and delay"], {**POLICIES["sorted"], "delay": True}):
        scene, peer = opened(FakeFiles(), policy)
        fill(scene, peer, 500, delay_ms=4_000)
        assert scene.engine._house.memory.resident <= MARK
        peer.consume(2, "q", 2_000)
        assert peer.messages(2) == []
        peer.ping()
        scene.tick(4_000)
        for _ in range(300):
            scene.settle_down()
        assert len({number_of(each) for each in peer.messages(2)}) == 1_000


@pytest.mark.parametrize("policy", ["groups", "delay", "sorted", "last_value"])
def test_after_a_restart_no_more_than_the_mark_is_in_memory(policy: str) -> None:
    files = FakeFiles()
    scene, peer = opened(files, POLICIES[policy])
    fill(scene, peer, 500)
    scene.store.close()
    scene, peer = opened(files, POLICIES[policy])
    assert scene.engine._house.memory.resident <= MARK + 20_000
    assert scene.queue("q")["ready"] == 1_000
    found = receive(scene, peer, 1_000)
    assert found == sorted(range(1_000), reverse=policy == "sorted")


def test_delayed_messages_are_seen_and_cancelled_while_they_are_on_disk() -> None:
    scene, peer = opened(FakeFiles(), {"delay": True})
    fill(scene, peer, 500, delay_ms=4_000)
    due_ms = scene.now_ms + 4_000
    answer = peer.ask("peek", b"", **{"queue": "q", "from": 900, "count": 3})
    scene.settle_down()
    seen = peer.answers[answer][0]["messages"]
    assert [(each["state"], each["due_ms"]) for each in seen] == [("delayed", due_ms)] * 3
    peer.ask("cancel", queue="q", sequences=list(range(1_000)))
    scene.settle_down()
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}
    assert scene.store.usage().live_bytes == 0


def test_who_sends_to_such_a_queue_waits_when_its_index_has_no_room() -> None:
    """Others do not: their messages flow to disk."""
    scene, peer = opened(FakeFiles(), {"delay": True})
    peer.produce(1, "q")
    number = 0
    while len(peer.accepted(1)) or not number:
        number += 1
        peer.send(1, number, [message(100 * number + each, 10, 10**9) for each in range(100)])
        scene.settle_down()
    memory = scene.engine._house.memory
    assert memory.index_is_full
    assert not peer.refusals
    assert number * 100 * limits.SINGLE_BYTES > MARK // limits.INDEX_SHARE
    peer.produce(3, "plain")
    peer.send(3, 1, [message(1, 10)])
    scene.settle_down()
    assert peer.accepted(3) == [1]
    # Nor is it gone around through a router.
    peer.produce(5)
    peer.targets(5, 1, "q")
    peer.route(5, 1, 1, [message(1, 10)])
    scene.settle_down()
    assert peer.take(Kind.ACCEPTED) == []
    peer.ask("cancel", queue="q", sequences=list(range(0, 1_000)))
    for _ in range(3):
        scene.tick(10)
        scene.settle_down()
    assert sorted(each.link for each in peer.take(Kind.ACCEPTED)) == [1, 5]


def test_the_backlog_of_one_queue_does_not_stop_the_senders_of_others_with_an_index(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene, peer = opened(FakeFiles(), {"delay": True})
    assert isinstance(scene.names, EveryName)
    queues = {1: "q", 3: "other", 5: "third"}
    for link, name in queues.items():
        scene.names.give(name, Policy.parse({"role": "queue", "delay": True}))
        peer.produce(link, name)
    memory = scene.engine._house.memory
    indexes = []
    for link in queues:
        number = 0
        while len(peer.accepted(link)) or not number:
            number += 1
            peer.send(link, number, [message(100 * number + each, 10, 10**9) for each in range(100)])
            scene.settle_down()
        assert not peer.refusals
        indexes.append(number * 100 * limits.SINGLE_BYTES)
    share = MARK // limits.INDEX_SHARE
    batch = 100 * limits.SINGLE_BYTES
    assert share <= indexes[0] < share + 3 * batch
    for own, queues_with_an_index in zip(indexes[1:], (2, 3), strict=True):
        assert batch < own < share // queues_with_an_index + 3 * batch
    assert share < memory.index < INDEX_SLACK * share + 3 * batch
    assert len([text for text in caplog.messages if "senders to queue" in text]) == 1
    # What leaves the first makes room for the others.
    peer.ask("cancel", queue="q", sequences=list(range(1_000)))
    peer.ask("cancel", queue="q", sequences=list(range(1_000, 2_000)))
    for _ in range(3):
        scene.tick(10)
        scene.settle_down()
    assert {each.link for each in peer.take(Kind.ACCEPTED)} >= {3, 5}


@pytest.mark.parametrize(
    ("index", "own", "reads", "waits"),
    [
        (1.0, 0.9, True, False),
        (1.1, 0.05, True, False),
        (1.1, 0.1, True, True),  # an equal part of the share of ten queues
        (1.1, 0.1, False, False),
        (1.1, 0.11, False, True),  # the average of ten queues
        (INDEX_SLACK, 0.0, True, False),
        (INDEX_SLACK + 0.1, 0.0, True, True),
        (INDEX_SLACK + 0.1, 0.0, False, False),
    ],
)
def test_who_waits_by_the_index_of_its_queue_and_by_all(
    index: float, own: float, reads: bool, waits: bool
) -> None:
    memory = Memory(MARK)
    memory.index, memory._indexed = int(index * memory.index_max), 10
    queue: Any = SimpleNamespace(
        view=SimpleNamespace(reads_messages=reads), sizes=(0, (round(own * memory.index_max), 0, 0, 0))
    )
    assert memory.must_wait(queue) is waits


def test_the_log_says_once_a_minute_that_senders_wait_for_indexes() -> None:
    memory = Memory(MARK)
    found = [memory.index_reports(at) for at in (0, 1, INDEX_REPORTED_EVERY_MS - 1, INDEX_REPORTED_EVERY_MS)]
    assert found == [True, False, False, True]


def test_what_waits_for_the_index_is_bounded_and_the_rest_is_refused_by_name() -> None:
    scene, peer = opened(FakeFiles(), {"groups": True})
    peer.produce(1, "q")
    number = 0
    while not peer.refusals:
        number += 1
        peer.send(1, number, [message(100 * number + each, 100) for each in range(100)])
        scene.settle_down()
        assert scene.engine._house.memory.resident < 3 * MARK
    refusal = peer.refusals[0][2]
    assert refusal.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert "looks into its messages" in refusal.description
    assert "memory_mark" in refusal.description


def test_receivers_that_hold_more_than_the_mark_stop_no_sender_of_durable_messages() -> None:
    """Else one that settles nothing would stop everybody; what it may hold is bounded at its connection."""
    scene, peer = opened(FakeFiles(), {})
    peer.consume(2, "q", 10_000)
    peer.produce(1, "q")
    for number in range(1, 400):
        peer.send(1, number, [message(number, 10_000)])
        scene.settle_down()
    assert len(peer.accepted(1)) == 399


@pytest.mark.parametrize("mark", [1, MARK, 1 << 30])
def test_indexes_have_their_share_of_the_mark_and_all_that_can_not_flow_little_more(mark: int) -> None:
    memory = Memory(mark)
    share = max(mark // limits.INDEX_SHARE, INDEX_BYTES_MIN)
    for index, is_full in ((share, False), (share + 1, True)):
        memory.index = index
        assert memory.index_is_full is is_full
    for more, is_stuck in ((0, False), (1, True)):
        memory.index, memory.parked = mark, UNSPILLABLE_SLACK_BYTES + more
        assert memory.is_stuck is is_stuck
