"""Deferred messages through the wire: on disk, read back, moved to another shard, and in the figures."""

from pathlib import Path
from typing import Any

import pytest

from lightrail.journal.record import DEFERRED_REASON
from lightrail.model import conditions, limits
from lightrail.model.attempts import DEFERRED
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Store
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.requests.lock_requests import DEFERRED_LOCK_MS, DEFERRED_RECEIVED_MAX
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.captured import read
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.moving import QUEUE
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.moving.test_importing import Move
from tests.unit.shard.test_capture import Captured

DEFER = SettleDetail(deferred=True)
BODIES = [b"m%d" % number for number in range(5)]


def deferring(scene: Scene, *, durable: bool = True) -> Peer:
    """Of five messages the second and the third are deferred, and the first has failed."""
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, BODIES, durable=durable)
    scene.settle_down()
    peer.consume(2, "q", 5)
    peer.settle(2, 1, 2, OutcomeCode.MODIFIED, DEFER)
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    scene.settle_down()
    return peer


def receive(peer: Peer, *sequences: int, key: str = "ab", queue: str = "q") -> list[tuple[int, bytes]]:
    """(attempts, message) of what is locked."""
    fields, blob = answer(peer, queue=queue, sequences=list(sequences), key=key)
    found = []
    at = 0
    for row in fields["messages"]:
        found.append((row["attempts"], blob[at : at + row["size"]]))
        at += row["size"]
    return found


def answer(peer: Peer, **fields: Any) -> tuple[dict[str, Any], bytes]:
    number = peer.ask("receive_deferred", **fields)
    peer.scene.settle_down()
    return peer.answers[number]


def settle(peer: Peer, key: str, sequence: int, **fields: Any) -> bool:
    number = peer.ask("settle", queue="q", lock=f"{key}-{sequence}", sequence=sequence, **fields)
    peer.scene.settle_down()
    return bool(peer.answers[number][0]["found"])


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_what_is_deferred_is_so_after_a_crash(kind: str, tmp_path: Path) -> None:
    files = FakeFiles()

    def scene_of() -> Scene:
        store: Store
        store = Journal(files, "test", 0) if kind == "journal" else SqliteStore(tmp_path / "store", "test", 0)
        return Scene(store, store.recover(1 << 30, 1))

    scene = scene_of()
    peer = deferring(scene)
    assert receive(peer, 2) == [(0, b"m2")]
    assert settle(peer, "ab", 2, outcome="modified", delivery_failed=True)
    if kind == "journal":
        files = files.after_crash(1, "all")
    else:
        scene.store.close()
    scene = scene_of()
    peer = scene.peer()
    peer.consume(2, "q", 10)
    scene.settle_down()
    assert [(each.sequence, each.attempts) for each in peer.delivered[2]][:2] == [(0, 1), (3, 0)]
    assert [each.message for each in peer.delivered[2]] == [b"m0", b"m3", b"m4"]
    assert receive(peer, 1, 2, key="cd") == [(0, b"m1"), (1, b"m2")]
    assert settle(peer, "cd", 1)
    assert not settle(peer, "cd", 1)


def test_the_figures_and_a_peek_show_them() -> None:
    scene = Scene()
    peer = deferring(scene)
    receive(peer, 2)
    fields, _ = peer.answers[peer.ask("queue", queue="q")]
    assert [fields[key] for key in ("ready", "deferred", "in_flight", "bytes")] == [1, 1, 3, 10]
    fields, _ = peer.answers[peer.ask("queues", names=["q"])]
    assert dict(zip(fields["columns"], fields["queues"]["q"], strict=True))["deferred"] == 1
    fields, _ = peer.answers[peer.ask("peek", queue="q")]
    assert [(each["state"], each["deferred"], each["attempts"]) for each in fields["messages"]] == [
        ("ready", False, 1),
        ("deferred", True, 0),
        ("locked", True, 0),
        ("locked", False, 0),
        ("locked", False, 0),
    ]


def test_those_that_are_only_on_disk_are_read_to_be_received() -> None:
    scene = Scene(memory_mark=1)
    peer = deferring(scene)
    scene.tick(1)
    machine = scene.engine._queues.find("q").machine  # type: ignore[union-attr]
    machine.footprint.evict(1 << 20)
    assert all(run.batch.evicted for run in machine.contents.aside)
    assert receive(peer, 1, 2) == [(0, b"m1"), (0, b"m2")]


def test_a_lock_lasts_as_long_as_the_policy_says_or_else_for_a_minute() -> None:
    names = EveryName()
    scene = Scene(names=names)
    peer = deferring(scene)
    fields, _ = answer(peer, queue="q", sequences=[1], key="ab")
    assert fields["locked_until_ms"] == scene.now_ms + DEFERRED_LOCK_MS
    scene.tick(DEFERRED_LOCK_MS - 1)
    assert receive(peer, 1, key="cd") == []
    scene.tick(1)
    assert receive(peer, 1, key="cd") == [(1, b"m1")]
    number = peer.ask("renew", queue="q", lock="cd-1", sequence=1)
    assert peer.answers[number][0] == {
        "found": True,
        "locked_until_ms": scene.now_ms + DEFERRED_LOCK_MS,
    }


def test_a_dead_letter_of_a_deferred_message_is_a_message_like_others() -> None:
    scene = Scene()
    peer = deferring(scene)
    receive(peer, 1, 2)
    assert settle(peer, "ab", 1, outcome="rejected", condition="acme:bad")
    assert settle(peer, "ab", 2, outcome="modified", deferred=True)
    peer.consume(3, "q/$dlq", 5)
    (dead,) = peer.delivered[3]
    assert dead.attempts == 0
    assert receive(peer, 2, key="cd") == [(0, b"m2")]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "expected a list of 1 to 500 sequences"),
        ({"sequences": []}, "expected a list of"),
        ({"sequences": ["1"]}, "expected a list of"),
        ({"sequences": [-1]}, "expected a list of"),
        ({"sequences": [1] * (DEFERRED_RECEIVED_MAX + 1)}, "expected a list of"),
        ({"sequences": [1]}, "a text without -"),
        ({"sequences": [1], "key": "a-b"}, "a text without -"),
        ({"sequences": [1], "key": ""}, "a text without -"),
    ],
)
def test_a_bad_request_says_what_was_expected(fields: dict[str, Any], text: str) -> None:
    found, _ = answer(deferring(Scene()), queue="q", **fields)
    assert found["error"]["condition"] == conditions.INVALID_FIELD
    assert text in found["error"]["description"]


def test_few_requests_wait_for_the_disk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEEKS_MAX", 0)
    found, _ = answer(deferring(Scene()), queue="q", sequences=[1], key="ab")
    assert found["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED


def test_a_captured_queue_says_that_a_message_is_deferred() -> None:
    captured = Captured()
    captured.send(1, 2)
    captured.peer.consume(2, "q", 2)
    captured.peer.settle(2, 0, 1, OutcomeCode.MODIFIED, DEFER)
    captured.scene.settle_down()
    assert [event for _, event in captured.said()][-1] == "modified"
    (settled,) = [each for each in read(captured.disk()).events if each.event == "modified"]
    assert (settled.reason, settled.attempts) == (DEFERRED_REASON, DEFERRED)


def test_a_store_without_room_delivers_it_again_after_a_restart_at_worst(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, BODIES, durable=True)
    scene.settle_down()
    peer.consume(2, "q", 5)
    store.full_for_all = True
    peer.settle(2, 1, 1, OutcomeCode.MODIFIED, DEFER)
    assert "delivery counts of queue q could not be written" in caplog.text


def test_they_move_with_their_queue_locked_or_not() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 4)
    move.peer.settle(5, 0, 3, OutcomeCode.MODIFIED, DEFER)
    move.begin()
    move.copy()
    # This one is deferred when its message is at the destination already.
    move.peer.settle(5, 3, 1, OutcomeCode.MODIFIED, DEFER)
    number = move.peer.ask("receive_deferred", queue=QUEUE, sequences=[1], key="ab")
    assert move.peer.answers[number][0]["messages"]
    move.source.settle_down()
    move.finish()
    move.open()
    gauges = move.target.engine._queues.find(QUEUE).machine.view.gauges  # type: ignore[union-attr]
    assert (gauges.ready, gauges.deferred, gauges.in_flight) == (2, 3, 1)
    number = move.peer.ask("settle", queue=QUEUE, lock="ab-1", sequence=1)
    move.target.settle_down()
    assert move.peer.answers[number][0] == {"found": True}
    number = move.peer.ask("receive_deferred", queue=QUEUE, sequences=[0, 2, 3], key="cd")
    move.target.settle_down()
    assert [each["sequence"] for each in move.peer.answers[number][0]["messages"]] == [0, 2, 3]
    found = Journal(move.files.after_crash(1, "all"), "test", 0).recover(1 << 30)
    (queue,) = [each for each in found.queues if each.name == QUEUE]
    deferred = {run.sequence for run in queue.runs if run.attempts & DEFERRED}
    assert len(deferred) == sum(run.is_deferred for run in queue.runs) >= 1
