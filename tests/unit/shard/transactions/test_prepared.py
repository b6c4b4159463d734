"""Transactions over several shards at one of them: prepared, decided, asked for, concluded."""

from typing import Any

import pytest

from lightrail.journal.record import TransactionState, TransactionStep
from lightrail.model import conditions
from lightrail.model.attempts import DEFERRED, failures
from lightrail.shard.journal.store import Recovered, StoreBusyError
from lightrail.shard.transactions import prepared as prepared_module
from lightrail.shard.transactions import preparing
from lightrail.shard.transactions.decisions import TRANSACTION_ABORTED_MS
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.moving.test_freezing import Story
from tests.unit.shard.transactions.test_transactions import (
    PRODUCER,
    condition,
    post,
    ready,
    received,
    settled,
)

ID = "0f" * 16


def prepare(
    peer: Peer, *posts: tuple[list[Any], bytes], settles: Any = (), id: str = ID, decides: int = 1
) -> int:
    blob = b"".join(part for _, part in posts)
    fields = [fields for fields, _ in posts]
    return peer.ask("prepare", blob, id=id, decides=1, posts=fields, settles=list(settles))


def answer(scene: Scene, peer: Peer, request: int) -> dict[str, Any]:
    scene.settle_down()
    return peer.answers[request][0]


def prepared(scene: Scene) -> Peer:
    """A transaction that sends to queue a, and settles one of two deliveries of queue in."""
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2")
    request = prepare(peer, post("a"), settles=[settled("in", 2, 0, 1)])
    assert answer(scene, peer, request) == {"prepared": True}
    return peer


def test_until_the_decision_nothing_is_seen_of_it() -> None:
    scene = Scene()
    peer = prepared(scene)
    assert ready(scene, "a") == []
    assert scene.queue("in") == {"ready": 0, "in_flight": 2}
    peer.close_consumer(2)
    scene.settle_down()
    assert ready(scene, "in") == [b"2"]


@pytest.mark.parametrize("commits", [True, False])
def test_the_decision_is_applied(commits: bool) -> None:
    scene = Scene()
    peer = prepared(scene)
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=commits)) == {"concluded": True}
    assert ready(scene, "a") == ([b"m"] if commits else [])
    # Without an effect, the delivery is its consumer's again.
    assert scene.queue("in") == {"ready": 0, "in_flight": 1 if commits else 2}
    # Again it changes nothing.
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=commits)) == {"concluded": True}
    assert ready(scene, "a") == ([b"m"] if commits else [])


def test_work_that_is_rolled_back_is_prepared_again_under_another_id() -> None:
    """As after a move of one of its queues: the client has settled once, and its settlement counts."""
    scene = Scene()
    peer = prepared(scene)
    settles = [settled("in", 2, 0, 1)]
    for number in range(20):
        last = ID if not number else f"{number:032x}"
        assert answer(scene, peer, peer.ask("conclude", id=last, commit=False)) == {"concluded": True}
        request = prepare(peer, post("a"), settles=settles, id=f"{number + 1:032x}")
        assert answer(scene, peer, request) == {"prepared": True}
    answer(scene, peer, peer.ask("conclude", id=f"{20:032x}", commit=True))
    assert ready(scene, "a") == [b"m"]
    assert [(message, failures(attempts)) for _, _, attempts, message in scene.everything("in")] == [
        (b"2", 0)
    ]
    assert not scene.has_queue("in/$dlq")


def test_a_settlement_of_rolled_back_work_is_that_of_its_link_again() -> None:
    """The frontend releases what the client has settled; the rest stays unsettled (transactions 4.4.2)."""
    scene = Scene()
    peer = prepared(scene)
    answer(scene, peer, peer.ask("conclude", id=ID, commit=False))
    peer.settle(2, 0, 1, code=OutcomeCode.MODIFIED, detail=SettleDetail(delivery_failed=True))
    scene.settle_down()
    found = {message: failures(attempts) for _, _, attempts, message in scene.everything("in")}
    assert found == {b"1": 1, b"2": 0}


@pytest.mark.parametrize("closes", [True, False])
def test_a_presumed_abort_or_the_end_of_the_link_fails_the_deliveries(closes: bool) -> None:
    scene = Scene()
    peer = prepared(scene)
    if closes:
        peer.close_consumer(2)
    scene.engine.transactions.prepared.conclude(bytes.fromhex(ID), commits=False, now_ms=scene.now_ms)
    scene.settle_down()
    assert b"1" in ready(scene, "in")
    (found,) = [attempts for _, _, attempts, message in scene.everything("in") if message == b"1"]
    assert failures(found) == 1


@pytest.mark.parametrize("commits", [True, False])
def test_a_deferral_waits_for_the_decision(commits: bool) -> None:
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2")
    request = prepare(peer, settles=[settled("in", 2, 0, 1, 3, deferred=True)])
    assert answer(scene, peer, request) == {"prepared": True}
    answer(scene, peer, peer.ask("conclude", id=ID, commit=commits))
    (attempts,) = [attempts for _, _, attempts, message in scene.everything("in") if message == b"1"]
    assert bool(attempts & DEFERRED) is commits
    assert failures(attempts) == 0


def test_a_request_that_comes_again_is_prepared_once() -> None:
    scene = Scene()
    peer = prepared(scene)
    request = prepare(peer, post("a"), settles=[settled("in", 2, 0, 1)])
    assert answer(scene, peer, request) == {"prepared": True}
    answer(scene, peer, peer.ask("conclude", id=ID, commit=True))
    assert ready(scene, "a") == [b"m"]


@pytest.mark.parametrize("fields", [{"id": "xyz"}, {"id": "00"}, {"id": 5}, {"decides": -1}])
def test_what_can_not_be_read_is_refused(fields: dict[str, Any]) -> None:
    scene = Scene()
    peer = scene.peer()
    body: dict[str, Any] = {"id": ID, "decides": 1, "posts": [], "settles": []} | fields
    request = peer.ask("prepare", **body)
    assert condition(peer, request) == conditions.INVALID_FIELD


def test_a_delivery_is_settled_once() -> None:
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", b"1", b"2")
    request = prepare(peer, settles=[settled("in", 2, 0, 2), settled("in", 2, 1, 1)])
    scene.settle_down()
    assert condition(peer, request) == conditions.INVALID_FIELD
    assert scene.queue("in") == {"ready": 0, "in_flight": 2}


def test_so_many_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "TRANSACTIONS_PREPARED_MAX", 2)
    scene = Scene()
    peer = scene.peer()
    assert "prepared" in answer(scene, peer, prepare(peer, post("a"), id=f"{1:032x}"))
    request = prepare(peer, post("a"), id=f"{9:032x}")
    scene.settle_down()
    assert condition(peer, request) == conditions.RESOURCE_LOCKED


@pytest.mark.parametrize("sends", [True, False])
def test_a_queue_of_a_prepared_transaction_is_not_frozen(sends: bool) -> None:
    story = Story()
    fields, blob = post("q")
    posts, settles = ([fields], []) if sends else ([], [["q", 2, 0, 1, 0, {}]])
    request = story.peer.ask("prepare", blob, id=ID, decides=1, posts=posts, settles=settles)
    assert answer(story.scene, story.peer, request) == {"prepared": True}
    refused = story.freeze()
    assert refused["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED
    answer(story.scene, story.peer, story.peer.ask("conclude", id=ID, commit=True))
    assert "states" in story.freeze()


def test_a_shard_that_is_asked_before_it_has_decided_can_not_commit_any_more() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    assert answer(scene, peer, peer.ask("outcome", id=ID)) == {"committed": False}
    fields, blob = post("a")
    request = peer.ask(
        "transact", blob, id=ID, others=[3], producer=PRODUCER, number=1, posts=[fields], settles=[]
    )
    scene.settle_down()
    assert condition(peer, request) == conditions.TRANSACTION_ROLLBACK
    assert ready(scene, "a") == []
    states = [each.state for each in store.records if isinstance(each, TransactionStep)]
    assert states == [TransactionState.ABORTED]
    scene.tick(TRANSACTION_ABORTED_MS + 1)
    states = [each.state for each in store.records if isinstance(each, TransactionStep)]
    assert states == [TransactionState.ABORTED, TransactionState.ENDED]


def test_a_decision_is_kept_until_all_others_have_concluded_it() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    fields, blob = post("a")
    request = peer.ask(
        "transact", blob, id=ID, others=[3, 4], producer=PRODUCER, number=1, posts=[fields], settles=[]
    )
    assert answer(scene, peer, request) == {"committed": True}
    assert answer(scene, peer, peer.ask("outcome", id=ID)) == {"committed": True}
    transactions = scene.engine.transactions
    id = bytes.fromhex(ID)
    assert transactions.decisions.awaited == {3: [id], 4: [id]}
    transactions.decisions.forget(3, [id], scene.now_ms)
    assert transactions.decisions.awaited == {4: [id]}
    transactions.decisions.forget(4, [id], scene.now_ms)
    assert transactions.decisions.awaited == {}
    states = [each.state for each in store.records if isinstance(each, TransactionStep)]
    assert states == [TransactionState.COMMITTED, TransactionState.ENDED]


def test_others_are_asked_which_they_have_concluded() -> None:
    scene = Scene()
    peer = prepared(scene)
    other = f"{7:032x}"
    found = answer(scene, peer, peer.ask("concluded", ids=[ID, other]))
    assert found == {"concluded": [other]}
    answer(scene, peer, peer.ask("conclude", id=ID, commit=True))
    assert answer(scene, peer, peer.ask("concluded", ids=[ID])) == {"concluded": [ID]}


def test_one_without_a_decision_is_overdue_after_a_while() -> None:
    scene = Scene()
    prepared(scene)
    transactions = scene.engine.transactions
    assert transactions.prepared.overdue(scene.now_ms + preparing.TRANSACTION_RESOLVE_MS - 1) == []
    assert transactions.prepared.overdue(scene.now_ms + preparing.TRANSACTION_RESOLVE_MS) == [
        (bytes.fromhex(ID), 1)
    ]


def test_a_disk_without_room_leaves_a_prepared_transaction_as_it_is() -> None:
    class Full(SmallStore):
        def reserve(self, size: int, now_ms: int = 0) -> None:
            if self.full:
                super().append(None)  # type: ignore[arg-type]

        def append(self, record: Any, now_ms: int = 0) -> Any:
            return super().append(record, now_ms)

    store = Full()
    scene = Scene(store)
    peer = prepared(scene)
    store.full_for_all = store.full = True
    request = peer.ask("conclude", id=ID, commit=True)
    assert condition(peer, request) == conditions.RESOURCE_LIMIT_EXCEEDED
    store.full_for_all = store.full = False
    answer(scene, peer, peer.ask("conclude", id=ID, commit=True))
    assert ready(scene, "a") == [b"m"]


def test_what_recovery_found_is_there() -> None:
    ids = [bytes([number]) * 16 for number in range(3)]
    found = Recovered(
        transactions=[
            TransactionStep(ids[0], TransactionState.PREPARED, 5, '{"since_ms":9,"posts":[],"reserved":[]}'),
            TransactionStep(ids[1], TransactionState.COMMITTED, 0, '{"others":[2]}'),
            TransactionStep(ids[2], TransactionState.ABORTED),
        ]
    )
    scene = Scene(recovered=found)
    peer = scene.peer()
    transactions = scene.engine.transactions
    assert transactions.prepared.overdue(1 << 60) == [(ids[0], 5)]
    assert transactions.decisions.awaited == {2: [ids[1]]}
    found_outcomes = [answer(scene, peer, peer.ask("outcome", id=id.hex())) for id in ids[1:]]
    assert found_outcomes == [{"committed": True}, {"committed": False}]


def shown(scene: Scene, peer: Peer) -> dict[str, Any]:
    return answer(scene, peer, peer.ask("transactions"))


def test_what_waits_for_a_decision_is_shown_with_its_age() -> None:
    scene = Scene()
    peer = prepared(scene)
    scene.tick(4_000)
    assert shown(scene, peer) == {
        "count": 1,
        "transactions": [
            {
                "id": ID,
                "decides": 1,
                "age_ms": 4_000,
                "queues": ["a", "in"],
                "queue_count": 2,
                "messages": 1,
                "deliveries": 1,
            }
        ],
    }
    assert (scene.counts.transactions_prepared, scene.counts.transaction_prepared_seconds) == (1, 4.0)
    answer(scene, peer, peer.ask("conclude", id=ID, commit=True))
    scene.tick(1_000)
    assert shown(scene, peer) == {"count": 0, "transactions": []}
    assert (scene.counts.transactions_prepared, scene.counts.transaction_prepared_seconds) == (0, 0.0)


def test_its_age_counts_on_over_a_restart() -> None:
    detail = '{"since_ms":995000,"posts":[],"reserved":[]}'
    found = Recovered(transactions=[TransactionStep(bytes(16), TransactionState.PREPARED, 5, detail)])
    scene = Scene(recovered=found, now_ms=1_000_000)
    assert scene.engine.transactions.prepared.waiting(scene.now_ms) == (1, 5_000)


def test_of_many_the_oldest_are_shown_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "TRANSACTIONS_SHOWN_MAX", 2)
    monkeypatch.setattr(prepared_module, "TRANSACTION_QUEUES_SHOWN_MAX", 1)
    scene = Scene()
    peer = scene.peer()
    for number in range(3):
        answer(scene, peer, prepare(peer, post("a", "b"), id=f"{number:032x}"))
        scene.tick(1_000)
    found = shown(scene, peer)
    assert found["count"] == 3
    assert [each["id"] for each in found["transactions"]] == [f"{number:032x}" for number in range(2)]
    assert [(each["queues"], each["queue_count"]) for each in found["transactions"]] == [(["a"], 2)] * 2


def test_rejected_messages_on_disk_are_read_before_a_decision_is_applied() -> None:
    scene = Scene()
    peer = scene.peer()
    received(scene, peer, "in", b"1" * 100, b"2" * 100)
    request = prepare(peer, post("a"), settles=[settled("in", 2, 0, 1, 1)])
    assert answer(scene, peer, request) == {"prepared": True}
    scene.queue_contents("in").deliveries.evict(1 << 20, None)
    scene.reading = False
    first = peer.ask("conclude", id=ID, commit=True)
    # The decision may come twice while they are read, and a shard asks for it, too.
    second = peer.ask("conclude", id=ID, commit=True)
    scene.settle_down()
    assert not {first, second} & peer.answers.keys()
    assert not scene.engine.transactions.prepared.conclude(
        bytes.fromhex(ID), commits=True, now_ms=scene.now_ms
    )
    assert ready(scene, "a") == []
    scene.reading = True
    for request in (first, second):
        assert answer(scene, peer, request) == {"concluded": True}
    assert ready(scene, "a") == [b"m"]
    assert len(ready(scene, "in/$dlq")) == 1


def test_a_decision_that_finds_no_room_after_the_reading_stays_open() -> None:
    class Busy(SmallStore):
        is_busy = False

        def reserve(self, size: int, now_ms: int = 0) -> None:
            if self.is_busy:
                raise StoreBusyError("when the commit has ended")

    store = Busy()
    scene = Scene(store)
    peer = scene.peer()
    received(scene, peer, "in", b"1" * 100, b"2" * 100)
    answer(scene, peer, prepare(peer, settles=[settled("in", 2, 0, 1, 1)]))
    scene.queue_contents("in").deliveries.evict(1 << 20, None)
    store.is_busy = True
    request = peer.ask("conclude", id=ID, commit=True)
    assert condition(peer, request) == conditions.RESOURCE_LIMIT_EXCEEDED
    store.is_busy = False
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=True)) == {"concluded": True}
