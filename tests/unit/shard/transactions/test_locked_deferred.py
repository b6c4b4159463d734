"""Transactions that settle deferred messages which a client has received by their sequences."""

from typing import Any

import pytest

from lightrail.journal.record import CONTINUED, Numbers, Settle
from lightrail.model import conditions
from lightrail.model.attempts import DEFERRED, failures
from lightrail.model.policy import Policy
from lightrail.shard.journal.record import Append
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.requests.lock_requests import DEFERRED_LOCK_MS
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.transactions.test_prepared import ID, answer, prepare
from tests.unit.shard.transactions.test_transactions import (
    committed,
    condition,
    post,
    ready,
    received,
    settled,
    transact,
)

KEY = "00ff00ff00ff00ff"
FAILED = {"delivery_failed": True}


def by_lock(sequence: int, code: int = 0, *, key: Any = KEY, **detail: Any) -> list[Any]:
    return [*settled("in", 0, sequence, 1, code, **detail), key]


def locked(store: SmallStore | None = None, **options: Any) -> tuple[Scene, Peer]:
    """Messages 1, 2 and 3 of queue `in` are deferred, and the first two are locked under the key."""
    scene = Scene(store, **options) if store is not None else Scene(**options)
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2", b"3")
    assert committed(scene, peer, transact(peer, 1, settles=[settled("in", 2, 0, 3, 3, deferred=True)]))
    found = answer(scene, peer, peer.ask("receive_deferred", queue="in", sequences=[0, 1], key=KEY))
    assert [each["sequence"] for each in found["messages"]] == [0, 1]
    return scene, peer


def states(scene: Scene) -> dict[bytes, tuple[bool, int, bool]]:
    """By message: whether it is deferred, its failed deliveries, and whether it is locked or reserved."""
    aside = scene.queue_contents("in").aside
    free = {sequence for run in aside for sequence in range(run.sequence, run.end)}
    return {
        message: (bool(attempts & DEFERRED), failures(attempts), int(message) - 1 not in free)
        for _, _, attempts, message in scene.everything("in")
    }


LEFT = {b"2": (True, 0, True), b"3": (True, 0, False)}


def test_a_message_is_settled_by_its_lock_together_with_everything_else() -> None:
    store = SmallStore()
    scene, peer = locked(store)
    before = len(store.records)
    request = transact(peer, 2, post("a"), settles=[by_lock(0)])
    assert committed(scene, peer, request)
    group = [each for each in store.records[before:] if isinstance(each, Append | Settle | Numbers)]
    assert [type(each) for each in group] == [Settle, Append, Numbers]
    assert [bool(each.flags & CONTINUED) for each in group] == [True, True, False]
    assert states(scene) == LEFT
    assert ready(scene, "a") == [b"m"]


@pytest.mark.parametrize(
    ("code", "detail", "after", "dead"),
    [
        (OutcomeCode.REJECTED, {"condition": "app:bad"}, None, [b"1"]),
        (OutcomeCode.MODIFIED, FAILED, (True, 1, False), []),
        (OutcomeCode.MODIFIED, {"deferred": True}, (True, 0, False), []),
    ],
)
def test_each_outcome_is_applied_by_the_commit(
    code: OutcomeCode, detail: dict[str, Any], after: tuple[bool, int, bool] | None, dead: list[bytes]
) -> None:
    scene, peer = locked()
    assert committed(scene, peer, transact(peer, 2, settles=[by_lock(0, int(code), **detail)]))
    assert states(scene) == LEFT | ({} if after is None else {b"1": after})
    found = ready(scene, "in/$dlq") if scene.has_queue("in/$dlq") else []
    assert [each[-1:] for each in found] == dead


@pytest.mark.parametrize(
    "settle",
    [by_lock(2), by_lock(7), by_lock(0, key="other"), settled("in", 2, 0, 1)],
    ids=["not-locked", "unknown", "another-key", "no-key"],
)
@pytest.mark.parametrize("op", ["transact", "prepare"])
def test_what_is_not_locked_refuses_the_whole_transaction(settle: list[Any], op: str) -> None:
    scene, peer = locked()
    before = states(scene)
    settles = [by_lock(0), settle]
    request = transact(peer, 2, post("a"), settles=settles)
    if op == "prepare":
        request = prepare(peer, post("a"), settles=settles)
    scene.settle_down()
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    assert states(scene) == before
    assert ready(scene, "a") == []


@pytest.mark.parametrize("op", ["transact", "prepare"])
def test_a_lock_that_has_ended_refuses_the_whole_transaction(op: str) -> None:
    scene, peer = locked()
    # The shard has not looked at the time since.
    scene.now_ms += DEFERRED_LOCK_MS
    settles = [by_lock(0)]
    ask = transact(peer, 2, post("a"), settles=settles) if op == "transact" else None
    request = prepare(peer, post("a"), settles=settles) if ask is None else ask
    scene.settle_down()
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    assert states(scene) == {b"1": (True, 1, False), b"2": (True, 1, False), b"3": (True, 0, False)}


@pytest.mark.parametrize("op", ["transact", "prepare"])
def test_a_message_that_is_settled_twice_in_one_transaction_refuses_it(op: str) -> None:
    scene, peer = locked()
    before = states(scene)
    settles = [by_lock(0), by_lock(1), by_lock(0, int(OutcomeCode.REJECTED))]
    ask = transact(peer, 2, post("a"), settles=settles) if op == "transact" else None
    request = prepare(peer, post("a"), settles=settles) if ask is None else ask
    scene.settle_down()
    assert condition(peer, request) == conditions.INVALID_FIELD
    assert states(scene) == before


def test_what_is_no_key_is_refused() -> None:
    scene, peer = locked()
    request = transact(peer, 2, settles=[by_lock(0, key=5)])
    scene.settle_down()
    assert condition(peer, request) == conditions.INVALID_FIELD


def test_the_key_of_a_gateways_link_is_no_lock_of_a_deferred_message() -> None:
    """Its deliveries have numbers of their own, which a client may not choose."""
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "in")
    peer.send(1, 1, [b"1"], durable=True)
    peer.consume(2, "in", 1, lock_key=KEY)
    scene.settle_down()
    request = transact(peer, 1, settles=[by_lock(0)])
    scene.settle_down()
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    assert scene.queue("in") == {"ready": 0, "in_flight": 1}


# --- several shards --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_from_the_preparation_on_only_the_decision_counts(commits: bool) -> None:
    scene, peer = locked()
    assert answer(scene, peer, prepare(peer, settles=[by_lock(0)])) == {"prepared": True}
    # Neither the token nor the end of the lock changes it, and nobody receives it.
    found = answer(scene, peer, peer.ask("settle", queue="in", lock=f"{KEY}-0", sequence=0))
    assert found == {"found": False}
    scene.tick(DEFERRED_LOCK_MS + 1)
    found = answer(scene, peer, peer.ask("receive_deferred", queue="in", sequences=[0], key="k"))
    assert found["messages"] == []
    left = {b"2": (True, 1, False), b"3": (True, 0, False)}
    assert states(scene) == left | {b"1": (True, 0, True)}
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=commits)) == {"concluded": True}
    # Without an effect it is locked as before: until an end that is over, so that it has failed.
    assert states(scene) == left | ({} if commits else {b"1": (True, 1, False)})


@pytest.mark.parametrize("returns", [True, False])
def test_a_transaction_that_is_prepared_and_rolled_back_changes_no_lock(returns: bool) -> None:
    scene, peer = locked()
    assert answer(scene, peer, prepare(peer, settles=[by_lock(0)])) == {"prepared": True}
    scene.tick(DEFERRED_LOCK_MS // 2)
    if returns:
        assert answer(scene, peer, peer.ask("conclude", id=ID, commit=False)) == {"concluded": True}
    else:
        # Its frontend is lost, and the shard that decides has no decision.
        id = bytes.fromhex(ID)
        scene.engine.transactions.prepared.conclude(id, commits=False, now_ms=scene.now_ms)
    scene.tick(DEFERRED_LOCK_MS // 2 - 1)
    assert states(scene) == LEFT | {b"1": (True, 0, True)}
    found = answer(scene, peer, peer.ask("settle", queue="in", lock=f"{KEY}-0", sequence=0))
    assert found == {"found": True}
    assert states(scene) == LEFT


def test_a_message_is_settled_once() -> None:
    scene, peer = locked()
    request = prepare(peer, settles=[by_lock(0), by_lock(0)])
    scene.settle_down()
    assert condition(peer, request) == conditions.INVALID_FIELD
    assert states(scene) == LEFT | {b"1": (True, 0, True)}


@pytest.mark.parametrize("commits", [True, False])
def test_a_rejected_message_on_disk_is_read_before_the_decision_is_applied(commits: bool) -> None:
    scene, peer = locked()
    assert "prepared" in answer(scene, peer, prepare(peer, settles=[by_lock(0, int(OutcomeCode.REJECTED))]))
    scene.queue_contents("in").deliveries.evict(1 << 20, None)
    id = bytes.fromhex(ID)
    scene.engine.transactions.prepared.conclude(id, commits=commits, now_ms=scene.now_ms)
    scene.settle_down()
    assert states(scene) == LEFT | ({} if commits else {b"1": (True, 0, True)})
    assert scene.has_queue("in/$dlq") is commits


# --- sessions --------------------------------------------------------------------------------------------


def with_session(lock_s: int = 30) -> tuple[Scene, Peer]:
    """Link 2 has the session `a`, and its first two messages, of three."""
    names = EveryName()
    names.give("in", Policy.parse({"role": "queue", "groups": True, "lock_duration": lock_s}))
    scene = Scene(names=names)
    peer = scene.peer()
    peer.produce(1, "in")
    peer.send(1, 1, [of_a(b"1"), of_a(b"2"), of_a(b"3")], durable=True)
    peer.consume(2, "in", 2, session="a")
    scene.settle_down()
    assert len(peer.messages(2)) == 2
    return scene, peer


def of_a(body: bytes) -> bytes:
    """A message of the session `a`."""
    properties = b"\x00\x53\x73\xd0\x00\x00\x00\x12\x00\x00\x00\x0b" + b"\x40" * 10 + b"\xa1\x01a"
    return properties + b"\x00\x53\x75\xa0\x01" + body


@pytest.mark.parametrize("op", ["transact", "prepare"])
def test_the_end_of_a_sessions_lock_refuses_the_whole_transaction(op: str) -> None:
    scene, peer = with_session()
    # The shard has not looked at the time since: the link is not ended yet.
    scene.now_ms += 30_000
    settles = [settled("in", 2, 0, 1)]
    ask = transact(peer, 1, post("a"), settles=settles) if op == "transact" else None
    request = prepare(peer, post("a"), settles=settles) if ask is None else ask
    scene.settle_down()
    assert condition(peer, request) == conditions.SESSION_LOCK_LOST
    assert ready(scene, "a") == []
    scene.tick()
    assert scene.queue("in") == {"ready": 3, "in_flight": 0}


@pytest.mark.parametrize("commits", [True, False])
def test_a_session_goes_on_when_its_prepared_messages_are_decided(commits: bool) -> None:
    """Its lock ends meanwhile: who accepts it next gets nothing before, so that the order holds."""
    scene, peer = with_session()
    assert "prepared" in answer(scene, peer, prepare(peer, settles=[settled("in", 2, 0, 1)]))
    scene.tick(30_001)
    scene.settle_down()
    assert scene.queue("in") == {"ready": 2, "in_flight": 1}
    peer.consume(3, "in", 9, session="a")
    peer.consume(4, "in", 9, any_session=True)
    scene.settle_down()
    assert peer.messages(3) == peer.messages(4) == []
    answer(scene, peer, peer.ask("conclude", id=ID, commit=commits))
    wanted = [b"2", b"3"] if commits else [b"1", b"2", b"3"]
    assert [each[-1:] for each in peer.messages(3)] == wanted
