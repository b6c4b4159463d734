"""Many prepared transactions: the work of one turn does not grow with their number."""

import asyncio
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.small_records import SmallRecords
from lightrail.shard.queue.lines.line import InFlight
from lightrail.shard.transactions.decision_requests import DecisionRequests
from lightrail.shard.transactions.preparing import TRANSACTION_RESOLVE_MS
from lightrail.shard.upkeep import cleaner as cleaner_module
from lightrail.shard.upkeep.cleaner import Cleaner
from lightrail.wire.bodies import Answer
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.transactions.test_prepared import answer
from tests.unit.shard.transactions.test_transactions import post, received, settled

SEGMENT_BYTES = 10_000


class Counted:
    """Counts the calls of a method."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        real = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.calls += 1
            return real(*arguments)

        patch.setattr(owner, name, counted)


def begun(count: int) -> tuple[Scene, Peer]:
    """Prepared transactions, each of which sends a message and settles one of the first segment."""
    journal = Journal(FakeFiles(), "t", 0, segment_bytes=SEGMENT_BYTES)
    scene = Scene(journal, journal.recover(1 << 30, 1))
    peer = scene.peer()
    received(scene, peer, "in", *[b"x" * 20] * count)
    for number in range(count):
        fields, blob = post("a")
        work = {"posts": [fields], "settles": [settled("in", 2, number, 1)]}
        request = peer.ask("prepare", blob, id=f"{number:032x}", decides=1, **work)
        assert answer(scene, peer, request) == {"prepared": True}
    return scene, peer


@pytest.mark.parametrize("count", [100, 200])
def test_cleaning_looks_at_each_reserved_delivery_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction has a holder of its own, and its message is a run of its own."""
    scene, _ = begun(count)
    relocated = Counted(monkeypatch, InFlight, "relocate")
    store = scene.store
    assert isinstance(store, Journal)
    cleaner: Cleaner = scene.engine._house._cleaner
    monkeypatch.setattr(store, "oldest_to_clean", lambda: min(store._segments))
    cleaner.clean(scene.now_ms)
    assert relocated.calls == count
    assert len(scene.everything("in")) == count


def test_cleaning_is_done_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "CLEAN_RUNS", 10)
    monkeypatch.setattr(limits, "TRANSACTIONS_AT_ONCE", 10)
    scene, _ = begun(100)
    written = Counted(monkeypatch, Cleaner, "_write")
    moved = Counted(monkeypatch, SmallRecords, "_transaction")
    store = scene.store
    assert isinstance(store, Journal)
    first = min(store._segments)
    cleaner: Cleaner = scene.engine._house._cleaner
    monkeypatch.setattr(store, "oldest_to_clean", lambda: first if first in store._segments else None)
    pieces: list[tuple[int, int]] = []
    while first in store._segments:
        before = written.calls, moved.calls
        cleaner.clean(scene.now_ms)
        pieces.append((written.calls - before[0], moved.calls - before[1]))
    assert max(count for count, _ in pieces) <= 10
    assert max(count for _, count in pieces) <= 10
    assert written.calls == 100
    assert len(scene.everything("in")) == 100


def test_decisions_arrive_in_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, _ = begun(100)
    scene.now_ms += TRANSACTION_RESOLVE_MS
    waiting: list[int] = []

    class Others:
        async def request(self, _shard: int, _op: str, _fields: dict[str, Any]) -> Answer:
            await asyncio.sleep(0)
            return Answer({"committed": True}, memoryview(b""))

    def turn() -> None:
        scene.settle_down()
        waiting.append(scene.engine.transactions.prepared.waiting(scene.now_ms)[0])

    failures: list[BaseException] = []
    transactions = scene.engine.transactions
    requests = DecisionRequests(0, transactions, Others(), turn, lambda: scene.now_ms, failures.append)
    asyncio.run(requests.ask_all())
    assert not failures
    assert waiting == list(range(99, -1, -1))
