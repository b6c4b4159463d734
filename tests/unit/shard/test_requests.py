"""Requests to a shard: figures, peeking and purging, with what is wrong about a request said in words."""

from typing import Any

import pytest

from lightrail.amqp.sections import Header, encode_header
from lightrail.model import conditions, limits
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.queues import Queues
from lightrail.shard.requests import requests
from lightrail.wire.frames import Kind, frame
from tests.support.shard.scene import Peer, Scene, SmallStore


def answer(peer: Peer, op: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
    return peer.answers[peer.ask(op, **fields)]


def error(peer: Peer, op: str, **fields: Any) -> dict[str, str]:
    found, blob = answer(peer, op, **fields)
    assert list(found) == ["error"]
    assert blob == b""
    assert found["error"]["description"]
    return dict(found["error"])


def filled(count: int = 3) -> tuple[Scene, Peer]:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    for number in range(1, count + 1):
        peer.send(1, number, [b"<%d>" % number], durable=True)
    scene.settle_down()
    return scene, peer


# --- figures -------------------------------------------------------------------------------------------


def test_the_figures_of_one_queue() -> None:
    scene, peer = filled(3)
    scene.now_ms += 5
    peer.consume(2, "q", 2, label="client/receiver", priority=3)
    peer.credit(2, 5)
    peer.consume(3, "q", browse=True)
    peer.settle(2, 0, 1)
    fields, _ = answer(peer, "queue", queue="q")
    first, second = fields.pop("consumers")
    counters = fields.pop("counters")
    assert fields == {
        "queue": "q",
        "ready": 0,
        "delayed": 0,
        "deferred": 0,
        "in_flight": 2,
        "parked": 0,
        "promised": 0,
        "bytes": 6,
        "resident": 6,
        "captured": False,
        "next_sequence": 3,
        "consumer_count": 2,
        "producer_count": 1,
        "delays": False,
    }
    assert first == {
        "label": "client/receiver",
        "frontend": "frontend-0",
        "since_ms": scene.now_ms,
        "credit": 2,
        "held": 2,
        "browse": False,
        "exclusive": False,
        "priority": 3,
    }
    assert second["browse"]
    assert (counters["enqueued"], counters["accepted"], counters["dead_lettered"]) == (3, 1, {})


def test_a_queue_that_has_yet_to_be_used_is_empty_and_is_not_made_by_asking() -> None:
    scene = Scene()
    peer = scene.peer()
    assert answer(peer, "queue", queue="q/$dlq")[0]["ready"] == 0
    assert answer(peer, "peek", queue="q")[0] == {"messages": [], "next": None}
    assert answer(peer, "purge", queue="q")[0] == {"purged": 0}
    assert len(scene.engine._queues) == 0
    assert isinstance(scene.store, SmallStore)
    assert scene.store.records == []


def test_many_queues_in_brief_by_name_or_in_pages() -> None:
    scene = Scene()
    peer = scene.peer()
    for link, name in enumerate(("c", "a", "b"), 1):
        peer.produce(link, name)
    peer.send(1, 1, [b"xy", b"z"])
    fields, _ = answer(peer, "queues")
    assert list(fields["queues"]) == ["a", "b", "c"]
    row = dict(zip(fields["columns"], fields["queues"]["c"], strict=True))
    assert (row["ready"], row["bytes"], row["arrived"], row["left"]) == (2, 3, 2, 0)
    assert fields["next"] is None
    first, _ = answer(peer, "queues", limit=2)
    assert (list(first["queues"]), first["next"]) == (["a", "b"], "b")
    rest, _ = answer(peer, "queues", limit=2, after="b")
    assert (list(rest["queues"]), rest["next"]) == (["c"], None)
    named, _ = answer(peer, "queues", names=["b", "nowhere", "a"])
    assert list(named["queues"]) == ["b", "a"]
    assert error(peer, "queues", names="b")["condition"] == conditions.INVALID_FIELD
    assert error(peer, "queues", after=1)["condition"] == conditions.INVALID_FIELD


# --- peeking -------------------------------------------------------------------------------------------


def test_peeking_shows_what_is_ready_and_what_is_locked_and_changes_nothing() -> None:
    scene, peer = filled(5)
    peer.consume(2, "q", 2)
    fields, blob = answer(peer, "peek", queue="q")
    assert blob == b"<1><2><3><4><5>"
    states = [(each["sequence"], each["state"], each["size"]) for each in fields["messages"]]
    assert states == [(number, "locked" if number < 2 else "ready", 3) for number in range(5)]
    assert fields["messages"][0]["durable"]
    assert fields["messages"][0]["enqueued_at_ms"] == scene.now_ms
    assert fields["messages"][0]["expires_at_ms"] is None
    assert fields["next"] is None
    assert scene.queue("q") == {"ready": 3, "in_flight": 2}


def test_peeking_shows_the_priority_of_each_message_where_a_batch_has_several() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    messages = [encode_header(Header(priority=each)) + b"\x00Su\xa0\x01x" for each in (0, 255, 9)]
    peer.send(1, 1, messages, priority=PRIORITY_MIXED)
    peer.send(1, 2, [b"any"], priority=7)
    scene.settle_down()
    fields, _ = answer(peer, "peek", queue="q")
    assert [each["priority"] for each in fields["messages"]] == [0, 255, 9, 7]


def test_peeking_goes_on_where_it_stopped() -> None:
    _, peer = filled(5)
    seen = b""
    start: int | None = 0
    pages = 0
    while start is not None:
        fields, blob = answer(peer, "peek", queue="q", count=2, **{"from": start})
        seen += blob
        start = fields["next"]
        pages += 1
    assert (seen, pages) == (b"<1><2><3><4><5>", 3)


def test_peeking_is_bounded_by_bytes_and_gives_one_message_at_least() -> None:
    _, peer = filled(5)
    fields, blob = answer(peer, "peek", queue="q", bytes=7)
    assert (blob, fields["next"]) == (b"<1><2>", 2)
    fields, blob = answer(peer, "peek", queue="q", bytes=1, **{"from": 3})
    assert (blob, fields["next"]) == (b"<4>", 4)


@pytest.mark.parametrize("durable", [True, False])
def test_peeking_reads_from_disk_what_is_there(durable: bool) -> None:
    scene = Scene(memory_mark=20_000)
    peer = scene.peer()
    peer.produce(1, "q")
    for number in range(1, 101):
        peer.send(1, number, [b"%01000d" % number], durable=durable)
        scene.settle_down()
    assert scene.counts.evicted_bytes > 0
    resident = scene.engine._house.memory.resident
    fields, blob = answer(peer, "peek", queue="q", count=1_000, bytes=limits.PEEK_BYTES_MAX)
    assert blob == b"".join(b"%01000d" % number for number in range(1, 101))
    assert [each["sequence"] for each in fields["messages"]] == list(range(100))
    assert scene.engine._house.memory.resident == resident
    assert scene.engine._performer.reading == {}


def test_looks_that_wait_for_the_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEEKS_MAX", 1)
    scene = Scene(memory_mark=20_000)
    peer = scene.peer()
    peer.produce(1, "q")
    for number in range(1, 60):
        peer.send(1, number, [b"%01000d" % number])
        scene.settle_down()
    scene.reading = False
    first = peer.ask("peek", queue="q", count=1_000)
    assert first not in peer.answers
    assert error(peer, "peek", queue="q")["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED
    scene.reading = True
    scene.turn()
    assert peer.answers[first][1].startswith(b"0")
    assert answer(peer, "peek", queue="q")[0]["messages"]


# --- changing ------------------------------------------------------------------------------------------


def test_a_purge_is_answered_when_it_is_on_disk() -> None:
    scene, peer = filled(3)
    peer.consume(2, "q", 1)
    number = peer.ask("purge", queue="q")
    assert number not in peer.answers
    scene.begin_commit()
    assert number not in peer.answers
    scene.end_commit()
    assert peer.answers[number] == ({"purged": 2}, b"")
    assert scene.queue("q") == {"ready": 0, "in_flight": 1}


def test_a_purge_of_transient_messages_needs_no_disk() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    scene.settle_down()
    peer.send(1, 1, [b"a", b"b"], durable=False)
    assert answer(peer, "purge", queue="q")[0] == {"purged": 2}


# --- mistakes ------------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_request_is_said() -> None:
    scene = Scene()
    names = scene.names
    assert isinstance(names, EveryName)
    names.drop("nothing")
    peer = scene.peer()
    assert error(peer, "dance")["condition"] == conditions.NOT_IMPLEMENTED
    assert "peek" in error(peer, "dance")["description"]
    assert error(peer, "queue")["condition"] == conditions.INVALID_FIELD
    assert error(peer, "queue", queue=5)["condition"] == conditions.INVALID_FIELD
    for op in ("queue", "peek", "purge"):
        assert error(peer, op, queue="nothing")["condition"] == conditions.NOT_FOUND
    for bad in (0, requests.PEEK_MESSAGES_MAX + 1, "5", 1.5, True):
        assert error(peer, "peek", queue="q", count=bad)["condition"] == conditions.INVALID_FIELD
    peer.say(frame(Kind.REQUEST, number=77, body=b"\xff"))
    assert peer.answers[77][0]["error"]["condition"] == conditions.DECODE_ERROR


def test_a_mistake_of_ours_is_answered_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, peer = filled(1)
    monkeypatch.setattr(Queues, "for_request", None)
    assert error(peer, "queue", queue="q")["condition"] == conditions.INTERNAL_ERROR
    assert "was not applied" in caplog.text


def test_a_shard_whose_store_failed_says_so() -> None:
    scene, peer = filled(1)
    scene.engine.commit_failed(OSError("the disk is broken"))
    assert "the disk is broken" in error(peer, "purge", queue="q")["description"]


# --- locks ---------------------------------------------------------------------------------------------

KEY = "0123456789abcdef0123456789abcdef"


def test_a_locked_message_is_settled_and_renewed_by_whoever_knows_its_lock() -> None:
    scene, peer = filled(3)
    gateway = scene.peer("gateway", 9)
    gateway.consume(5, "q", 3, lock_ms=500, lock_key=KEY)
    gateway.say(frame(Kind.GOODBYE))
    lock: dict[str, Any] = {"queue": "q", "sequence": 1, "lock": f"{KEY}-1"}
    scene.now_ms += 100
    assert answer(peer, "renew", **lock)[0] == {"found": True, "locked_until_ms": scene.now_ms + 500}
    number = peer.ask("settle", **lock)
    assert number not in peer.answers
    scene.settle_down()
    assert peer.answers[number][0] == {"found": True}
    number = peer.ask("settle", **lock)
    scene.settle_down()
    assert peer.answers[number][0] == {"found": False}
    assert answer(peer, "renew", **lock)[0] == {"found": False, "locked_until_ms": 0}
    # The right lock of another message.
    assert not answer(peer, "renew", queue="q", sequence=0, lock=f"{KEY}-2")[0]["found"]
    rejected: dict[str, Any] = {"outcome": "rejected", "condition": "acme:bad", "description": "no"}
    peer.ask("settle", queue="q", sequence=2, lock=f"{KEY}-2", **rejected)
    peer.ask("settle", queue="q", sequence=0, lock=f"{KEY}-0", outcome="modified", delivery_failed=True)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}
    assert scene.queue("q/$dlq") == {"ready": 1, "in_flight": 0}
    peer.consume(6, "q", 1)
    assert peer.delivered[6][0].attempts == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lock": "x"}, "expected KEY-NUMBER"),
        ({"lock": f"{KEY}-x"}, "expected KEY-NUMBER"),
        ({"lock": 5}, "expected KEY-NUMBER"),
        ({"lock": f"{KEY}-0", "outcome": "lost"}, "expected one of accepted, rejected, released, modified"),
        ({"lock": f"{KEY}-0", "outcome": []}, "expected one of"),
        ({"lock": f"{KEY}-0", "annotations": "zz"}, "an encoded map in hex"),
        ({"lock": f"{KEY}-0", "sequence": -1}, "expected a whole number"),
        ({"lock": f"{KEY}-0"}, "expected a whole number"),
    ],
)
def test_what_is_wrong_about_settling_is_said(fields: dict[str, Any], said: str) -> None:
    _, peer = filled(1)
    assert said in error(peer, "settle", queue="q", **fields)["description"]


# --- bounds of answers -----------------------------------------------------------------------------------


def test_figures_of_at_most_so_many_queues_are_in_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUES_SHOWN_MAX", 2)
    scene = Scene()
    peer = scene.peer()
    for link, name in enumerate(("a", "b", "c"), 1):
        peer.produce(link, name)
    assert list(answer(peer, "queues")[0]["queues"]) == ["a", "b"]
    assert list(answer(peer, "queues", names=["b", "c"])[0]["queues"]) == ["b", "c"]
    for beyond in ({"names": ["a", "b", "c"]}, {"limit": 3}):
        assert error(peer, "queues", **beyond)["condition"] == conditions.INVALID_FIELD


def test_of_one_queue_at_most_so_many_consumers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "CONSUMERS_SHOWN_MAX", 2)
    scene = Scene()
    peer = scene.peer()
    for link in (1, 2, 3):
        peer.consume(link, "q")
    fields, _ = answer(peer, "queue", queue="q")
    assert (len(fields["consumers"]), fields["consumer_count"]) == (2, 3)
