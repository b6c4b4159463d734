"""Decisions of a shard: what it has aborted is never committed, however late the request arrives."""

from typing import Any

import pytest

from lightrail.journal.record import TransactionState, TransactionStep
from lightrail.model import conditions, limits
from lightrail.model.transaction_ids import born_ms, new_id
from lightrail.shard.journal.journal import Journal
from lightrail.shard.transactions import decisions
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.transactions.test_prepared import answer
from tests.unit.shard.transactions.test_transactions import condition, post, ready, transact

HOUR_MS = decisions.TRANSACTION_ABORTED_MS


def commit(scene: Scene, peer: Peer, id: bytes, number: int = 1) -> str:
    """Requests a commit; returns the condition of a refusal, or nothing."""
    request = transact(peer, number, post("a"), id=id.hex(), others=[3])
    scene.settle_down()
    return condition(peer, request) if "error" in peer.answers[request][0] else ""


def abort(scene: Scene, peer: Peer, id: bytes) -> None:
    assert answer(scene, peer, peer.ask("outcome", id=id.hex())) == {"committed": False}


def states(store: SmallStore, id: bytes) -> list[int]:
    return [each.state for each in store.records if isinstance(each, TransactionStep) and each.id == id]


def test_an_id_has_the_time_of_its_birth() -> None:
    id = new_id(1_700_000_000_123)
    assert (len(id), born_ms(id)) == (16, 1_700_000_000_123)
    assert new_id(1_700_000_000_123) != id
    assert born_ms(bytes.fromhex("0f" * 16)) is None


@pytest.mark.parametrize("hours", [0, 1, 2, 1_000])
@pytest.mark.parametrize("others_ms", [[], [-1], [1], [-1, 1]])
def test_what_was_aborted_is_never_committed(hours: int, others_ms: list[int]) -> None:
    scene = Scene()
    peer = scene.peer()
    id = new_id(scene.now_ms)
    for each in others_ms:
        abort(scene, peer, new_id(scene.now_ms + each))
    abort(scene, peer, id)
    for _ in range(hours):
        scene.tick(HOUR_MS + 1)
    peer = Peer(scene, "frontend-1", 9)
    peer.greet()
    assert commit(scene, peer, id) == conditions.TRANSACTION_ROLLBACK
    assert not scene.has_queue("a") or ready(scene, "a") == []
    assert commit(scene, peer, new_id(scene.now_ms + 2)) == ""


def test_it_is_not_committed_after_a_restart_either() -> None:
    files = FakeFiles()
    id = new_id(1_000_000)
    now_ms = 1_000_000
    for _ in range(3):
        journal = Journal(files, "t", 0)
        scene = Scene(journal, journal.recover(1 << 20, now_ms), now_ms=now_ms)
        peer = scene.peer()
        if now_ms == 1_000_000:
            abort(scene, peer, id)
        assert commit(scene, peer, id) == conditions.TRANSACTION_ROLLBACK
        for _ in range(2):
            scene.tick(HOUR_MS + 1)
            scene.settle_down()
        now_ms = scene.now_ms
        # Of all that were forgotten, one is kept.
        assert len(journal._tables.open_transactions) == 1
        journal.close()


def test_forgotten_aborts_leave_one_record() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    ids = [new_id(scene.now_ms + number) for number in (1, 3, 2)]
    for id in ids:
        abort(scene, peer, id)
    scene.tick(HOUR_MS + 4)
    aborted, ended = TransactionState.ABORTED, TransactionState.ENDED
    assert [states(store, id) for id in ids] == [[aborted, ended], [aborted, aborted], [aborted, ended]]
    younger = new_id(scene.now_ms)
    abort(scene, peer, younger)
    scene.tick(HOUR_MS + 1)
    assert [states(store, id)[-1] for id in ids] == [ended] * 3
    assert states(store, younger) == [aborted, aborted]


def test_an_abort_that_a_fast_clock_bore_makes_no_others_old() -> None:
    scene = Scene()
    peer = scene.peer()
    early = new_id(scene.now_ms + 10 * HOUR_MS)
    abort(scene, peer, early)
    scene.tick(HOUR_MS + 1)
    assert commit(scene, peer, new_id(scene.now_ms)) == ""
    assert commit(scene, peer, early, number=2) == conditions.TRANSACTION_ROLLBACK


def test_an_id_of_a_former_version_is_forgotten_after_an_hour() -> None:
    store = SmallStore()
    scene = Scene(store)
    peer = scene.peer()
    id = bytes.fromhex("0f" * 16)
    abort(scene, peer, id)
    scene.tick(HOUR_MS + 1)
    assert states(store, id) == [TransactionState.ABORTED, TransactionState.ENDED]
    # Those with a time are not affected.
    assert commit(scene, peer, new_id(1)) == ""


def test_so_many_aborts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "TRANSACTIONS_ABORTED_MAX", 2)
    scene = Scene()
    peer = scene.peer()
    ids = [new_id(scene.now_ms - 9 + number) for number in range(4)]
    for id in ids:
        abort(scene, peer, id)
    scene.tick()
    assert len(scene.engine.transactions.decisions._aborted) == 2
    assert {commit(scene, peer, id) for id in ids} == {conditions.TRANSACTION_ROLLBACK}
    assert commit(scene, peer, new_id(scene.now_ms)) == ""


def test_old_aborts_are_forgotten_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTIONS_AT_ONCE", 2)
    scene = Scene()
    peer = scene.peer()
    ids = [new_id(scene.now_ms + number) for number in range(5)]
    for id in ids:
        abort(scene, peer, id)
    left: list[Any] = []
    scene.now_ms += HOUR_MS + 9
    for _ in range(3):
        scene.tick()
        left.append(len(scene.engine.transactions.decisions._aborted))
        assert {commit(scene, peer, id) for id in ids} == {conditions.TRANSACTION_ROLLBACK}
    assert left == [3, 1, 0]
