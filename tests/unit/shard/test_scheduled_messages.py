"""Messages that clients of Azure Service Bus schedule: each is enqueued when it is due, as a new message."""

from collections.abc import Sequence
from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.messages import read_message
from lightrail.amqp.sections import Header, Properties, with_annotations
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.journal.record import CONTINUED, Outcome
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.amqp.peer import data

DUE = "x-opt-scheduled-enqueue-time"
MARK = 1_000_000


def message(
    body: str,
    *,
    ttl: int | None = None,
    expiry: int | None = None,
    size: int = 0,
    key: str | None = None,
    **notes: int,
) -> bytes:
    """A message with annotations `due` or `time`, in milliseconds since the epoch; `key` is its subject."""
    names = {"due": DUE, "time": "x-opt-delivery-time", "delay": "x-opt-delivery-delay"}
    given = {Symbol(names[key]): Timestamp(value) for key, value in notes.items()}
    properties = Properties(subject=key, absolute_expiry_time=expiry)
    sections = write_composite(Header(ttl=ttl)) + write_composite(properties)
    return with_annotations(sections + data(body.encode() + bytes(size)), given)


def opened(
    files: FakeFiles | None = None,
    *,
    name: str = "q",
    mark: int = 1 << 30,
    now_ms: int = 1_000_000,
    **policy: Any,
) -> tuple[Scene, Peer]:
    names = EveryName()
    names.give(name, Policy.parse({"role": "queue", "delay": True, **policy}))
    if files is None:
        scene = Scene(names=names)
    else:
        journal = Journal(files, "test", 0)
        recovered = journal.recover(mark, 1)
        scene = Scene(journal, recovered, names=names, memory_mark=mark, now_ms=now_ms)
        for _ in range(20):
            scene.settle_down()
    peer = scene.peer()
    peer.produce(1, name)
    return scene, peer


def send(scene: Scene, peer: Peer, number: int, messages: Sequence[bytes], **options: Any) -> None:
    peer.send(1, number, messages, **options)
    scene.settle_down()


def bodies(peer: Peer, link: int = 2) -> list[str]:
    return [read_message(each).body.rstrip(b"\0").decode() for each in peer.messages(link)]


def peeked(scene: Scene, peer: Peer) -> list[dict[str, Any]]:
    number = peer.ask("peek", queue="q")
    scene.settle_down()
    messages: list[dict[str, Any]] = peer.answers[number][0]["messages"]
    return messages


@pytest.mark.parametrize("durable", [True, False])
def test_a_scheduled_message_gets_a_new_number_a_new_time_and_the_last_place(durable: bool) -> None:
    scene, peer = opened()
    due = scene.now_ms + 3_000
    send(scene, peer, 1, [message("late", due=due), message("soon", due=due - 1_000)], durable=durable)
    send(scene, peer, 2, [message("now"), message("other", time=due - 500)], durable=durable)
    assert [each["state"] for each in peeked(scene, peer)] == ["delayed", "delayed", "ready", "delayed"]
    scene.tick(1_500)
    send(scene, peer, 3, [message("then")], durable=durable)
    assert scene.engine.deadline_ms == due - 1_000
    scene.tick(500)
    scene.tick(1_500)
    assert [each["enqueued_at_ms"] for each in peeked(scene, peer)][3:] == [due - 1_000, due + 500]
    # A message with a time of another kind has the place that it had.
    peer.consume(2, "q", 10)
    assert bodies(peer) == ["now", "other", "then", "soon", "late"]
    assert [each.sequence for each in peer.delivered[2]] == [2, 3, 4, 5, 6]
    peer.settle(2, 0, 5, OutcomeCode.ACCEPTED)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}
    counters = scene.queue_view("q").counters
    assert (counters.enqueued, counters.accepted) == (5, 5)


def test_a_time_to_live_begins_when_a_message_is_due() -> None:
    scene, peer = opened(max_age=5)
    begin = scene.now_ms
    due = begin + 10_000
    expires = {"expires_at_ms": begin + 1_000}
    send(scene, peer, 1, [message("ttl", due=due, ttl=1_000, expiry=begin + 1_000)], **expires)
    send(scene, peer, 2, [message("age", due=due)])
    send(scene, peer, 3, [message("absolute", due=due, expiry=due + 2_000)], expires_at_ms=due + 2_000)
    send(scene, peer, 4, [message("other", time=due, ttl=1_000)], **expires)
    for _ in range(9):
        peer.ping()
        scene.tick(1_000)
    assert [each["state"] for each in peeked(scene, peer)] == ["delayed"] * 3
    assert scene.queue_view("q").counters.expired == 1
    scene.tick(1_000)
    ends = [each["expires_at_ms"] - due for each in peeked(scene, peer)]
    assert ends == [1_000, 5_000, 2_000]
    scene.tick(1_000)
    assert [each["expires_at_ms"] - due for each in peeked(scene, peer)] == [5_000, 2_000]


def test_what_bounded_a_life_when_a_message_came_bounds_it_when_it_is_due() -> None:
    """The max_age of a router, which its shard does not know."""
    scene, peer = opened()
    begin = scene.now_ms
    due = begin + 10_000
    send(scene, peer, 1, [message("ttl", due=due, ttl=9_000)], expires_at_ms=begin + 2_000)
    send(scene, peer, 2, [message("none", due=due)], expires_at_ms=begin + 3_000)
    scene.tick(10_000)
    assert [each["expires_at_ms"] - due for each in peeked(scene, peer)] == [2_000, 3_000]


def test_what_is_due_moves_in_one_group() -> None:
    scene, peer = opened()
    store = scene.store
    assert isinstance(store, SmallStore)
    send(scene, peer, 1, [message("a", due=scene.now_ms + 1_000), message("b")])
    store.records.clear()
    scene.tick(1_000)
    (append,), (settle,) = store.appends(), store.settles()
    assert (append.flags & CONTINUED, settle.flags & CONTINUED) == (CONTINUED, 0)
    assert append.targets[0][1] == 2
    assert (settle.outcome, settle.reason, settle.ranges) == (Outcome.PURGED, "due", [(0, 1)])


def test_on_a_full_disk_what_is_due_waits_for_room_and_is_not_lost() -> None:
    scene, peer = opened()
    store = scene.store
    assert isinstance(store, SmallStore)
    send(scene, peer, 1, [message("a", due=scene.now_ms + 1_000)])
    peer.consume(2, "q", 10)
    store.full = True
    scene.tick(1_000)
    assert bodies(peer) == []
    store.full = False
    scene.tick(1_000)
    assert bodies(peer) == ["a"]


def test_a_number_cancels_a_message_until_it_is_due() -> None:
    scene, peer = opened()
    send(scene, peer, 1, [message(each, due=scene.now_ms + 1_000) for each in "ab"])
    asked = peer.ask("cancel", queue="q", sequences=[0])
    scene.settle_down()
    assert peer.answers[asked][0] == {"cancelled": 1}
    scene.tick(1_000)
    asked = peer.ask("cancel", queue="q", sequences=[1])
    scene.settle_down()
    assert peer.answers[asked][0] == {"cancelled": 0}
    peer.consume(2, "q", 10)
    assert (bodies(peer), peer.delivered[2][0].sequence) == (["b"], 2)


def test_a_message_that_failed_waits_in_its_place_whatever_its_time() -> None:
    scene, peer = opened(retry_delay=1)
    send(scene, peer, 1, [message("a", due=scene.now_ms + 1_000), message("b")])
    scene.tick(1_000)
    peer.consume(2, "q", 2)
    assert bodies(peer) == ["b", "a"]
    peer.settle(2, 0, 2, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    peer.credit(2, 4)
    scene.tick(1_000)
    assert [each.sequence for each in peer.delivered[2]] == [1, 2, 1, 2]


def test_what_waits_for_a_router_stays_in_its_place() -> None:
    """A gateway sends it when it is due."""
    scene, peer = opened(name="r/$scheduled")
    send(scene, peer, 1, [message("a", due=scene.now_ms + 1_000), message("b")])
    scene.tick(1_000)
    peer.consume(2, "r/$scheduled", 2)
    assert [each.sequence for each in peer.delivered[2]] == [0, 1]


LAST_VALUES: dict[str, Any] = {"order": "last_value", "order_key": "subject"}


@pytest.mark.parametrize("durable", [True, False])
def test_a_scheduled_value_is_the_newest_of_its_key_when_it_is_due(durable: bool) -> None:
    scene, peer = opened(**LAST_VALUES)
    due = scene.now_ms + 1_000
    messages = [message("late", key="a", due=due), message("delayed", key="b", time=due)]
    send(scene, peer, 1, [*messages, message("a", key="a"), message("b", key="b")], durable=durable)
    send(scene, peer, 2, [message("c", key="c", due=due), message("later", key="a", due=due + 500)])
    states = [each["state"] for each in peeked(scene, peer)]
    assert states == ["delayed", "delayed", "ready", "ready", "delayed", "delayed"]
    scene.tick(1_000)
    # What is scheduled replaces the former value; what was only delayed is the older one.
    found = peeked(scene, peer)
    assert [(each["sequence"], each["state"]) for each in found] == [
        (3, "ready"),
        (5, "delayed"),
        (6, "ready"),
        (7, "ready"),
    ]
    assert scene.queue_view("q").counters.replaced == 2
    peer.consume(2, "q", 10)
    assert bodies(peer) == ["b", "late", "c"]
    # One that is delivered stays its receiver's.
    scene.tick(500)
    assert bodies(peer) == ["b", "late", "c", "later"]
    assert scene.queue_view("q").counters.replaced == 2
    peer.settle(2, 1, 1, OutcomeCode.RELEASED)
    scene.settle_down()
    assert scene.queue_view("q").counters.replaced == 3


def test_after_a_restart_a_scheduled_value_is_the_newest_as_well() -> None:
    files = FakeFiles()
    scene, peer = opened(files, **LAST_VALUES)
    due = scene.now_ms + 1_000
    send(scene, peer, 1, [message("late", key="a", due=due), message("a", key="a")])
    scene, peer = opened(files.after_crash(), now_ms=due + 5_000, **LAST_VALUES)
    peer.consume(2, "q", 10)
    scene.settle_down()
    assert (bodies(peer), peer.delivered[2][0].sequence) == (["late"], 2)


@pytest.mark.parametrize("policy", [{}, {"groups": True}, LAST_VALUES])
def test_scheduled_messages_that_are_only_on_disk_are_read_when_they_are_due(policy: dict[str, Any]) -> None:
    files = FakeFiles()
    scene, peer = opened(files, mark=MARK, **policy)
    due = scene.now_ms + 60_000
    for number in range(400):
        send(scene, peer, number + 1, [message(f"m{number}", due=due + number // 100, size=10_000)])
    assert scene.queue_view("q").gauges.resident_bytes < 400 * 10_000 // 2
    asked = peer.ask("cancel", queue="q", sequences=[7])
    scene.settle_down()
    assert peer.answers[asked][0] == {"cancelled": 1}
    peer.consume(2, "q", 1_000)
    for _ in range(59):
        peer.ping()
        scene.tick(1_000)
    assert bodies(peer) == []
    scene.tick(2_000)
    for _ in range(100):
        scene.settle_down()
        peer.settle(2, 0, len(peer.delivered[2]), OutcomeCode.ACCEPTED)
    expected = [f"m{number}" for number in range(400) if number != 7]
    assert bodies(peer) == expected
    assert [each.sequence for each in peer.delivered[2]] == list(range(400, 799))
    scene.store.close()


@pytest.mark.parametrize("before", [True, False])
def test_after_a_restart_scheduled_messages_wait_and_those_that_were_due_have_their_place(
    before: bool,
) -> None:
    files = FakeFiles()
    scene, peer = opened(files)
    due = scene.now_ms + 5_000
    send(scene, peer, 1, [message("a", due=due, ttl=1_000), message("b", due=due + 5_000)], expires_at_ms=due)
    send(scene, peer, 2, [message("c")])
    if not before:
        scene.tick(5_000)
        send(scene, peer, 3, [message("d")])
    scene.store.close()
    scene, peer = opened(files, now_ms=scene.now_ms)
    if before:
        assert [each["state"] for each in peeked(scene, peer)] == ["delayed", "delayed", "ready"]
        scene.tick(5_000)
        assert [(each["sequence"], each["state"]) for each in peeked(scene, peer)] == [
            (1, "delayed"),
            (2, "ready"),
            (3, "ready"),
        ]
    else:
        found = peeked(scene, peer)
        assert [(each["sequence"], each["state"]) for each in found] == [
            (1, "delayed"),
            (2, "ready"),
            (3, "ready"),
            (4, "ready"),
        ]
        assert found[2]["enqueued_at_ms"] == due
    scene.store.close()


@pytest.mark.parametrize("size", [0, 30_000])
@pytest.mark.parametrize("is_due", [False, True])
def test_a_time_to_live_begins_when_a_message_is_due_also_where_a_shard_was_down(
    is_due: bool, size: int
) -> None:
    """Messages of 30 kB are read from disk after the restart, in many turns."""
    files = FakeFiles()
    scene, peer = opened(files, mark=MARK, max_age=1)
    begin, count = scene.now_ms, 100
    for number in range(count):
        send(scene, peer, number + 1, [message(f"m{number}", due=begin + 20_000, size=size)])
    scene.store.close()
    now_ms = begin + (30_000 if is_due else 10_000)
    scene, peer = opened(files, mark=MARK, now_ms=now_ms, max_age=1)
    assert scene.queue_view("q").gauges.delayed == (0 if is_due else count)
    if not is_due:
        scene.tick(10_000)
        now_ms = begin + 20_000
    found = peeked(scene, peer)
    assert {each["state"] for each in found} == {"ready"}
    assert {each["expires_at_ms"] for each in found} == {now_ms + 1_000}
    peer.consume(2, "q", 1_000)
    for _ in range(100):
        scene.settle_down()
        peer.settle(2, 0, len(peer.delivered[2]), OutcomeCode.ACCEPTED)
    assert bodies(peer) == [f"m{number}" for number in range(count)]
    assert [each.sequence for each in peer.delivered[2]] == list(range(count, 2 * count))
    assert scene.queue_view("q").counters.expired == 0
    # Those that were enqueued when they were due are not enqueued a third time.
    scene.store.close()
    scene, peer = opened(files, now_ms=now_ms)
    assert peeked(scene, peer) == []
    scene.store.close()


def test_a_message_that_was_due_is_not_enqueued_again_after_restarts() -> None:
    files = FakeFiles()
    scene, peer = opened(files)
    send(scene, peer, 1, [message("a", due=scene.now_ms + 1_000)])
    scene.tick(1_000)
    for _ in range(2):
        scene.store.close()
        scene, peer = opened(files, now_ms=scene.now_ms + 5_000)
        assert [(each["sequence"], each["state"]) for each in peeked(scene, peer)] == [(1, "ready")]
    scene.store.close()
