"""Sessions through the wire: accepted, renewed, lost, and their states on disk and at another shard."""

from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.journal.record import CONTINUED, Settle
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Store
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.memory import Memory
from lightrail.wire.frames import Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.moving import QUEUE
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.moving.test_importing import Move


def scene_with(store: Store | None = None, **policy: Any) -> tuple[Scene, Peer]:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "groups": True, **policy}))
    recovered = None if store is None else store.recover(1 << 30, 1)
    scene = Scene(store, recovered, names=names)
    return scene, scene.peer()


def put(peer: Peer, *sessions: str) -> None:
    peer.produce(1, "q")
    peer.send(1, 1, [write_message(Message(Properties(group_id=each), body=each)) for each in sessions])
    peer.scene.settle_down()


def ask(peer: Peer, operation: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
    number = peer.ask(operation, **{"queue": "q", **fields})
    peer.scene.settle_down()
    return peer.answers[number]


def state(peer: Peer, link: int, **fields: Any) -> bytes | None:
    found, blob = ask(peer, "session_state", link=link, **fields)
    return blob if found["found"] else None


def set_state(peer: Peer, link: int, text: bytes | None, **fields: Any) -> dict[str, Any]:
    return ask(peer, "set_session_state", link=link, state=None if text is None else text.hex(), **fields)[0]


def accepted(peer: Peer) -> list[tuple[int, int]]:
    """(link, milliseconds) of each SESSION."""
    return [(each.link, each.number) for each in peer.take(Kind.SESSION)]


def test_a_peek_shows_that_messages_are_locked_as_long_as_their_session() -> None:
    scene, peer = scene_with(lock_duration=5)
    put(peer, "a", "a", "b")
    peer.consume(2, "q", 1, session="a")
    found, _ = ask(peer, "peek")
    until = scene.now_ms + 5_000
    assert [each.get("locked_until_ms") for each in found["messages"]] == [until, None, None]


def test_a_session_is_accepted_renewed_and_lost() -> None:
    scene, peer = scene_with(lock_duration=5)
    put(peer, "a", "b")
    peer.consume(2, "q", 5, session="a")
    assert accepted(peer) == [(2, 5_000)]
    assert [each.sequence for each in peer.delivered[2]] == [0]
    peer.consume(3, "q", session="a")
    assert [(link, why.condition) for link, _, why in peer.refusals] == [
        (3, conditions.SESSION_CANNOT_BE_LOCKED)
    ]
    scene.tick(4_000)
    assert ask(peer, "renew_session", link=2)[0] == {"locked_ms": 5_000}
    assert accepted(peer) == [(2, 5_000)]
    scene.tick(4_999)
    peer.consume(4, "q", any_session=True)
    assert accepted(peer) == [(4, 5_000)]
    scene.tick(1)
    assert [(link, why.condition) for link, _, why in peer.refusals][1:] == [
        (2, conditions.SESSION_LOCK_LOST)
    ]
    found, _ = ask(peer, "renew_session", link=2)
    assert found["error"]["condition"] == conditions.MOVED
    peer.consume(5, "q", 5, any_session=True)
    assert accepted(peer) == [(5, 5_000)]
    assert [(each.sequence, each.attempts) for each in peer.delivered[5]] == [(0, 1)]


def test_a_session_is_free_when_its_link_is_closed_or_its_frontend_is_lost() -> None:
    scene, peer = scene_with()
    put(peer, "a")
    other = scene.peer("frontend-1", 8)
    peer.consume(2, "q", 5, session="a")
    peer.close_consumer(2)
    peer.consume(3, "q", 5, session="a")
    assert accepted(peer) == [(2, 0), (3, 0)]
    peer.say(frame(Kind.GOODBYE))
    other.consume(2, "q", 5, session="a")
    assert accepted(other) == [(2, 0)]
    assert [(each.sequence, each.attempts) for each in other.delivered[2]] == [(0, 1)]


def test_a_link_without_a_session_has_no_state() -> None:
    _, peer = scene_with()
    peer.consume(2, "q")
    for operation in ("session_state", "set_session_state"):
        found, _ = ask(peer, operation, link=2)
        assert found["error"]["condition"] == conditions.SESSION_LOCK_LOST


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("xx", "expected to be in hex"),
        (7, "expected to be in hex"),
        ("00" * (limits.SESSION_STATE_BYTES_MAX + 1), f"at most {limits.SESSION_STATE_BYTES_MAX}"),
    ],
)
def test_a_state_that_can_not_be_stored_says_what_was_expected(given: object, text: str) -> None:
    _, peer = scene_with()
    peer.consume(2, "q", session="a")
    found, _ = ask(peer, "set_session_state", link=2, state=given)
    assert found["error"]["condition"] == conditions.INVALID_FIELD
    assert text in found["error"]["description"]


def test_a_queue_without_groups_has_no_sessions() -> None:
    _, peer = scene_with(groups=False)
    peer.consume(2, "q")
    found, _ = ask(peer, "sessions")
    assert found["error"]["condition"] == conditions.NOT_ALLOWED


def test_a_new_state_and_the_end_of_the_former_one_are_one_group_of_records() -> None:
    store = SmallStore()
    scene, peer = scene_with(store)
    peer.consume(2, "q", session="a")
    set_state(peer, 2, b"one")
    set_state(peer, 2, b"two")
    records = [each for each in store.records if isinstance(each, Append | Settle)]
    assert [type(each) for each in records] == [Append, Append, Settle]
    assert [each.flags & CONTINUED for each in records] == [0, CONTINUED, 0]
    store.full = True
    assert set_state(peer, 2, b"three")["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED
    assert state(peer, 2) == b"two"
    assert set_state(peer, 2, None) == {"stored": False}
    assert state(peer, 2) is None
    assert len(store.settles()) == 2
    assert scene.engine._queues.find("q").machine.contents.states.count == 0  # type: ignore[union-attr]


def test_a_full_queue_takes_no_further_state_but_another_one_of_the_same_session() -> None:
    _, peer = scene_with(max_length=1)
    peer.consume(2, "q", session="a")
    peer.consume(3, "q", session="b")
    assert set_state(peer, 2, b"one") == {"stored": True}
    assert set_state(peer, 2, b"two") == {"stored": True}
    assert set_state(peer, 3, b"x")["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED


def test_a_shard_without_room_for_its_indexes_takes_no_further_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, peer = scene_with()
    peer.consume(2, "q", session="a")
    peer.consume(3, "q", session="b")
    set_state(peer, 2, b"one")
    monkeypatch.setattr(Memory, "index_is_full", True)
    assert set_state(peer, 2, b"two") == {"stored": True}
    assert set_state(peer, 3, b"x")["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED


def test_states_of_a_queue_that_stores_nothing_durably_are_in_memory() -> None:
    store = SmallStore()
    _, peer = scene_with(store, durable="never")
    peer.consume(2, "q", session="a")
    set_state(peer, 2, b"one")
    set_state(peer, 2, b"two")
    assert state(peer, 2) == b"two"
    assert store.appends() == []
    assert store.settles() == []


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_states_are_there_after_a_crash(kind: str, tmp_path: Path) -> None:
    files = FakeFiles()

    def scene_of() -> tuple[Scene, Peer]:
        store: Store
        store = Journal(files, "test", 0) if kind == "journal" else SqliteStore(tmp_path / "store", "test", 0)
        return scene_with(store)

    scene, peer = scene_of()
    for link, session in ((2, "a"), (3, "b"), (4, "c")):
        peer.consume(link, "q", session=session)
        set_state(peer, link, b"former")
        set_state(peer, link, session.encode() * 5_000)
    set_state(peer, 4, None)
    if kind == "journal":
        files = files.after_crash(1, "all")
    else:
        scene.store.close()
    scene, peer = scene_of()
    for link, session in ((2, "a"), (3, "b"), (4, "c")):
        peer.consume(link, "q", session=session)
    scene.settle_down()
    assert [state(peer, link) for link in (2, 3, 4)] == [b"a" * 5_000, b"b" * 5_000, None]
    assert ask(peer, "sessions")[0] == {"sessions": ["a", "b"]}


def test_a_state_that_is_only_on_disk_is_read() -> None:
    scene, peer = scene_with()
    peer.consume(2, "q", session="a")
    set_state(peer, 2, b"x" * 10_000)
    machine = scene.engine._queues.find("q").machine  # type: ignore[union-attr]
    machine.footprint.evict(1 << 20)
    assert all(run.batch.evicted for run in machine.contents.states)
    assert state(peer, 2) == b"x" * 10_000


def test_few_requests_for_states_wait_for_the_disk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, peer = scene_with()
    peer.consume(2, "q", session="a")
    set_state(peer, 2, b"x")
    monkeypatch.setattr(limits, "PEEKS_MAX", 0)
    found, _ = ask(peer, "session_state", link=2)
    assert found["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED


def test_while_the_groups_are_being_read_the_queue_is_loading() -> None:
    scene, peer = scene_with()
    peer.consume(2, "q", session="a")
    special = scene.engine._queues.find("q").machine.contents.special  # type: ignore[union-attr]
    assert special is not None
    special.order.loading = True
    for operation, fields in (
        ("session_state", {"link": 2}),
        ("set_session_state", {"link": 2, "state": ""}),
        ("sessions", {}),
    ):
        assert ask(peer, operation, **fields)[0] == {"loading": True}


def test_sessions_are_listed_in_pages() -> None:
    scene, peer = scene_with()
    put(peer, "a", "b", "c", "a")
    peer.consume(2, "q", session="d")
    before = scene.now_ms
    scene.tick(10)
    set_state(peer, 2, b"x")
    assert ask(peer, "sessions")[0] == {"sessions": ["a", "b", "c", "d"]}
    assert ask(peer, "sessions", skip=1, top=2)[0] == {"sessions": ["b", "c"]}
    assert ask(peer, "sessions", since_ms=before)[0] == {"sessions": ["d"]}
    assert ask(peer, "sessions", since_ms=scene.now_ms)[0] == {"sessions": []}
    found, _ = ask(peer, "sessions", top=limits.SESSIONS_SHOWN_MAX + 1)
    assert found["error"]["condition"] == conditions.INVALID_FIELD


def test_a_session_and_its_state_move_with_their_queue() -> None:
    move = Move({"groups": True, "lock_duration": 30})
    peer = move.peer
    peer.consume(5, QUEUE, session="a")
    peer.consume(6, QUEUE, any_session=True)
    assert accepted(peer) == [(5, 30_000)]
    assert set_state(peer, 5, b"former", queue=QUEUE) == {"stored": True}
    move.begin()
    move.copy()
    assert set_state(peer, 5, b"state", queue=QUEUE) == {"stored": True}
    move.source.settle_down()
    move.finish()
    move.open()
    peer.consume(5, QUEUE, session="a", resume=True)
    assert accepted(peer) == [(5, 30_000)]
    assert state(peer, 5, queue=QUEUE) == b"state"
    peer.consume(7, QUEUE, session="a")
    assert peer.refusals[-1][2].condition == conditions.SESSION_CANNOT_BE_LOCKED
    peer.consume(6, QUEUE, any_session=True, resume=True)
    peer.produce(1, QUEUE)
    peer.send(1, 9, [write_message(Message(Properties(group_id="b"), body="x"))])
    move.target.settle_down()
    assert accepted(peer) == [(6, 30_000)]


def test_messages_that_expire_meanwhile_are_settled_like_others() -> None:
    store = SmallStore()
    scene, peer = scene_with(store, max_age=1, expired="discard")
    peer.consume(2, "q", session="a")
    set_state(peer, 2, b"one")
    peer.produce(1, "q")
    message = write_message(Message(Properties(group_id="b"), body="x"))
    peer.send(1, 1, [message], durable=True)
    scene.settle_down()
    scene.now_ms += 1_001
    set_state(peer, 2, b"two")
    ask(peer, "renew_session", link=2)
    assert sorted((each.reason, *each.ranges) for each in store.settles()) == [
        ("expired", (1, 2)),
        ("replaced", (0, 1)),
    ]
