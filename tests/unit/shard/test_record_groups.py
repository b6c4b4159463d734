"""Groups of records: room for all of a group is reserved before its first record, so that none stays open."""

from typing import Any

import pytest

from lightrail.journal.record import CONTINUED, Settle
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append, Record, size_of
from lightrail.shard.journal.store import StoreBusyError, StoreFullError
from lightrail.shard.queue.values.runs import Location
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.test_session_requests import ask, scene_with, set_state, state
from tests.unit.shard.transactions.test_admitted import message
from tests.unit.shard.transactions.test_prepared import ID, prepare
from tests.unit.shard.transactions.test_transactions import post, received, settled, transact


class Reserving(SmallStore):
    """Checks that the room of each group was reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved = 0
        self.is_in_group = False
        self.groups = 0

    def reserve(self, size: int, now_ms: int = 0) -> None:
        assert not self.is_in_group, "room is reserved in the middle of a group"
        self.reserved = size

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        continues = self.is_group_open or bool(record.flags & CONTINUED)
        if continues or self.is_in_group:
            self.reserved -= size_of([record])
            assert self.reserved >= 0, f"no room was reserved for {record}"
        self.groups += continues and not self.is_in_group
        self.is_in_group = continues
        return super().append(record, now_ms)


def begun(**policy: Any) -> tuple[Reserving, Scene, Peer]:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    store = Reserving()
    scene = Scene(store, names=names)
    return store, scene, scene.peer()


def test_of_a_batch_with_its_message_ids() -> None:
    store, scene, peer = begun(duplicate_window=60)
    peer.produce(1, "q")
    peer.send(1, 1, [message(f"{number}", bytes(90)) for number in range(50)], durable=True)
    scene.settle_down()
    assert store.groups == 1


def test_of_a_batch_for_several_queues() -> None:
    store, scene, peer = begun(max_age=60)
    peer.produce(1, "")
    peer.targets(1, 5, "q", "a", "b")
    peer.route(1, 1, 5, [b"message"] * 50)
    scene.settle_down()
    assert store.groups == 1


@pytest.mark.parametrize("condition", ["", "a" * 200])
def test_of_dead_letters(condition: str) -> None:
    store, scene, peer = begun()
    received(scene, peer, "q", *[bytes(100)] * 50)
    peer.settle(2, 0, 50, OutcomeCode.REJECTED)
    scene.settle_down()
    assert store.groups


@pytest.mark.parametrize("over", ["one shard", "several"])
def test_of_a_transaction(over: str) -> None:
    store, scene, peer = begun(duplicate_window=60)
    received(scene, peer, "in", *[bytes(100)] * 3)
    posts = [post("q", messages=[message(f"{number}", b"x")]) for number in range(20)]
    settles = [
        settled("in", 2, 0, 1),
        settled("in", 2, 1, 1, 1),
        settled("in", 2, 2, 1, 3, delivery_failed=True),
    ]
    if over == "one shard":
        transact(peer, 1, *posts, settles=settles)
    else:
        prepare(peer, *posts, settles=settles)
        peer.ask("conclude", id=ID, commit=True)
    scene.settle_down()
    assert store.groups == 1


def test_of_the_state_of_a_session() -> None:
    store = Reserving()
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "groups": True}))
    scene = Scene(store, names=names)
    peer = scene.peer()
    peer.consume(2, "q", session="a")
    for text in (b"one", b"two", b"three"):
        assert set_state(peer, 2, text) == {"stored": True}
    assert store.groups == 2


@pytest.mark.parametrize("error", [StoreFullError, StoreBusyError])
def test_a_state_without_room_for_the_end_of_the_former_one_is_not_stored(
    error: type[StoreFullError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered, what is in memory and what is found after a crash are the same."""
    files = FakeFiles()
    scene, peer = scene_with(Journal(files, "t", 0))
    peer.consume(2, "q", session="a")
    assert set_state(peer, 2, b"one") == {"stored": True}
    lsn = scene.store.position.lsn
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "reserve", _raising(error))
        request = peer.ask("set_session_state", queue="q", link=2, state=b"two".hex())
        # The scene receives a request again that has to wait.
        assert (scene.store.position.lsn == lsn) is (error is StoreFullError)
    scene.settle_down()
    if error is StoreFullError:
        assert "error" in peer.answers[request][0]
    left = b"one" if error is StoreFullError else b"two"
    assert state(peer, 2) == left
    restarted, peer = scene_with(Journal(files.after_crash(1, "all"), "t", 0))
    peer.consume(2, "q", session="a")
    assert ask(peer, "session_state", link=2)[1] == left
    assert restarted.queue_contents("q").next_sequence == scene.queue_contents("q").next_sequence


def _raising(error: type[StoreFullError]) -> Any:
    calls = [0]

    def reserve(_journal: Journal, _size: int, _now_ms: int = 0) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise error("no room")

    return reserve


def test_the_sizes_are_upper_bounds() -> None:
    records: list[Record] = [Settle(1, [(each, each + 1) for each in range(0, 2_000, 2)], 1, "é" * 99)]
    files = FakeFiles()
    journal = Journal(files, "t", 0)
    journal.recover(1 << 20, 1)
    for record in records:
        before = journal.current.end
        journal.append(record, 1)
        assert journal.current.end - before <= size_of([record])
    assert not any(isinstance(record, Append) for record in records)
    journal.close()
