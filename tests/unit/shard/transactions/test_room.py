"""Room for prepared transactions: counted against the memory mark, shared by users, bounded over restarts."""

from typing import Any

import pytest

from lightrail.model import conditions
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.memory import Memory
from lightrail.shard.transactions import preparing
from lightrail.shard.transactions.prepared import TRANSACTION_PREPARED_BYTES
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.test_special_memory import message as numbered
from tests.unit.shard.test_special_memory import opened
from tests.unit.shard.transactions.test_prepared import answer
from tests.unit.shard.transactions.test_transactions import condition, post, ready, transact

MARK = 4_000_000
LARGE = [bytes(1_000)] * 200


def memory_of(scene: Scene) -> Memory:
    return scene.engine._house.memory


def prepare(scene: Scene, peer: Peer, number: int, user: str = "", messages: Any = LARGE) -> str:
    """Prepares a transaction; returns the condition of a refusal, or nothing."""
    fields, blob = post("a", messages=messages)
    body: dict[str, Any] = {"posts": [fields], "settles": [], "user": user}
    request = peer.ask("prepare", blob, id=f"{number:032x}", decides=1, **body)
    scene.settle_down()
    return condition(peer, request) if "error" in peer.answers[request][0] else ""


def fill(scene: Scene, peer: Peer, user: str, first: int) -> int:
    """Prepares as many transactions of a user as fit; returns their number."""
    for number in range(first, first + 1_000):
        if refused := prepare(scene, peer, number, user):
            assert refused == conditions.RESOURCE_LOCKED
            return number - first
    raise AssertionError("there is no bound")


def test_prepared_transactions_count_against_the_memory_mark_until_they_are_concluded() -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    for commits in (True, False):
        prepare(scene, peer, 1)
        memory = memory_of(scene)
        assert memory.prepared > sum(map(len, LARGE))
        assert memory.resident >= memory.prepared
        answer(scene, peer, peer.ask("conclude", id=f"{1:032x}", commit=commits))
        assert memory.prepared == 0


@pytest.mark.parametrize("op", ["transact", "prepare"])
def test_a_message_that_stays_keeps_nothing_else_of_its_transaction_in_memory(op: str) -> None:
    scene = Scene()
    peer = scene.peer()
    posts = [post("a", messages=LARGE), post("b", messages=[b"one", b"two"]), post("c", messages=LARGE)]
    if op == "transact":
        answer(scene, peer, transact(peer, 1, *posts))
    else:
        body: dict[str, Any] = {"posts": [fields for fields, _ in posts], "settles": []}
        blob = b"".join(part for _, part in posts)
        answer(scene, peer, peer.ask("prepare", blob, id=f"{1:032x}", decides=1, **body))
        answer(scene, peer, peer.ask("conclude", id=f"{1:032x}", commit=True))
    assert ready(scene, "b") == [b"one", b"two"]
    for name, most in (("a", 1 << 20), ("b", 100), ("c", 1 << 20)):
        for run in scene.queue_view(name).runs:
            data, _ = run.batch.loaded()
            whole = memoryview(data).obj
            assert isinstance(whole, bytes)
            assert len(whole) < most


def test_no_user_fills_the_room_for_all() -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    counts = [fill(scene, peer, user, 1_000 * index) for index, user in enumerate(("one", "two", "three"))]
    assert counts[0] >= counts[1] >= counts[2] > 0
    assert memory_of(scene).prepared <= MARK // 2
    # What one user has concluded is free for all.
    for number in range(counts[0]):
        answer(scene, peer, peer.ask("conclude", id=f"{number:032x}", commit=False))
    assert prepare(scene, peer, 9_000, "two") == ""


def test_no_user_has_all_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "TRANSACTIONS_PREPARED_MAX", 8)
    scene = Scene()
    peer = scene.peer()
    assert [fill(scene, peer, user, 1_000 * index) for index, user in enumerate(("one", "two"))] == [4, 2]


def test_what_is_too_large_for_all_of_the_room_is_refused_for_good() -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    assert prepare(scene, peer, 1, messages=10 * LARGE) == conditions.RESOURCE_LIMIT_EXCEEDED
    assert prepare(scene, peer, 2) == ""
    assert prepare(scene, peer, 3, messages=10 * LARGE) == conditions.RESOURCE_LOCKED


def test_a_transaction_for_a_queue_whose_index_has_no_room_is_refused_for_now() -> None:
    scene, peer = opened(FakeFiles(), {"groups": True})
    peer.produce(1, "q")
    number = 0
    while not peer.refusals:
        number += 1
        peer.send(1, number, [numbered(100 * number + each, 100) for each in range(100)])
        scene.settle_down()
    fields, blob = post("q", messages=[b"m"])
    request = peer.ask("transact", blob, producer=1, number=1, posts=[fields], settles=[])
    scene.settle_down()
    assert condition(peer, request) == conditions.RESOURCE_LOCKED


def test_small_transactions_count_what_they_cost() -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    prepare(scene, peer, 1, messages=[b"m"])
    assert memory_of(scene).prepared >= TRANSACTION_PREPARED_BYTES


def test_messages_in_queues_are_spilled_for_them() -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    peer.produce(1, "q")
    number = 0
    while memory_of(scene).resident < MARK * 7 // 8:
        number += 1
        peer.send(1, number, LARGE, durable=True)
        scene.settle_down()
    fill(scene, peer, "one", 1)
    assert memory_of(scene).resident <= MARK
    assert len(ready(scene, "q")) == number * len(LARGE)


def test_after_a_restart_they_count_as_before() -> None:
    files = FakeFiles()
    journal = Journal(files, "t", 0, segment_bytes=1 << 20)
    scene = Scene(journal, journal.recover(MARK, 1), memory_mark=MARK)
    fill(scene, scene.peer(), "one", 1)
    before = memory_of(scene).prepared
    journal.close()
    journal = Journal(files, "t", 0, segment_bytes=1 << 20)
    scene = Scene(journal, journal.recover(MARK, 1), memory_mark=MARK)
    peer = scene.peer()
    assert memory_of(scene).prepared == before
    assert prepare(scene, peer, 1_000, "one") == conditions.RESOURCE_LOCKED
    assert prepare(scene, peer, 1_000, "two") == ""
    answer(scene, peer, peer.ask("conclude", id=f"{1:032x}", commit=True))
    assert ready(scene, "a") == LARGE
    assert memory_of(scene).prepared == before
    journal.close()
