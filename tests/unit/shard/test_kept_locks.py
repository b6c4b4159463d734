"""Locks that live by time outlive the process of their shard (ADR 68)."""

from pathlib import Path
from typing import Any

import pytest

from lightrail.model.links import Ending
from lightrail.shard.links.receiving.restored_locks import LOCKED_AFTER_START_MS
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.kept_locks import LockDisk
from tests.support.shard.moving import ask as move_piece
from tests.support.shard.moving import exporting_of, importing_of
from tests.support.shard.scene import Peer, Scene

KEY = "a1" * 8
OTHER = "b2" * 8
MINUTE = 60_000


def receive(peer: Peer, link: int, count: int, key: str = KEY, first: int = 0, **options: Any) -> list[int]:
    """Opens a link of Service Bus; returns the sequences of the messages that it gets."""
    given: dict[str, Any] = {"lock_key": key, "lock_ends": "time", "first": first}
    peer.consume(link, "q", count, **given | options)
    peer.scene.settle_down()
    return [each.sequence for each in peer.delivered.get(link, [])]


def ask(peer: Peer, op: str, *locks: tuple[str, int], **fields: Any) -> list[Any]:
    number = peer.ask(op, queue="q", locks=[f"{key}-{each}" for key, each in locks], **fields)
    peer.scene.settle_down()
    (answer,) = (each for each in peer.answers[number][0].values() if isinstance(each, list))
    return answer


def pass_time(scene: Scene, peer: Peer, wait_ms: int) -> None:
    for _ in range(0, wait_ms, 1_000):
        peer.ping()
        scene.tick(1_000)


@pytest.fixture(params=["restarted", "killed"])
def end(request: pytest.FixtureRequest) -> str:
    """How the process ends."""
    found: str = request.param
    return found


def after(disk: LockDisk, end: str, wait_ms: int = 0, **options: Any) -> Scene:
    scene: Scene = getattr(disk, end)(wait_ms, **options)
    return scene


# --- a restart -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["on disk", "in memory"])
def test_a_locked_message_is_its_receivers_after_a_restart(
    tmp_path: Path, end: str, memory_bytes: int
) -> None:
    disk = LockDisk(tmp_path)
    assert receive(disk.peer(7), 5, 3) == [0, 1, 2]
    scene = after(disk, end, wait_ms=20_000, memory_bytes=memory_bytes)
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}
    other = disk.peer(8)
    assert receive(other, 5, 10, OTHER) == [3, 4, 5]
    assert ask(other, "settle_locks", (KEY, 1)) == [True]
    assert ask(other, "renew_locks", (KEY, 2)) == [MINUTE]
    pass_time(scene, other, 39_000)
    assert len(other.delivered[5]) == 3
    pass_time(scene, other, 1_000)
    # Its end is that of its delivery; marked, and not counted, as nobody could have settled it.
    assert [(each.sequence, each.attempts) for each in other.delivered[5][3:4]] == [(0, 1)]
    assert [each[2] for each in scene.everything("q") if each[3] == disk.bodies[0]] == [0]


def test_a_link_that_opens_again_after_a_restart_settles_what_it_has(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 4)
    peer.settle(5, 0, 1)
    scene = after(disk, end)
    peer = disk.peer(7)
    # The last frame was lost on its way: it comes again under the same number.
    assert receive(peer, 5, 4, first=3) == [3]
    assert scene.queue("q") == {"ready": 2, "in_flight": 3}
    peer.settle(5, 1, 2)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 2, "in_flight": 1}
    scene = after(disk, end)
    assert scene.queue("q") == {"ready": 2, "in_flight": 1}
    assert ask(disk.peer(9), "settle_locks", (KEY, 3)) == [True]


def test_what_returned_to_the_queue_before_a_restart_is_locked_no_longer(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 4)
    peer.settle(5, 0, 1, OutcomeCode.RELEASED)
    peer.settle(5, 1, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    disk.scene.settle_down()
    other = disk.peer(8)
    assert receive(other, 5, 1, OTHER) == [0]
    after(disk, end)
    other = disk.peer(9)
    locks = [(KEY, 0), (KEY, 1), (KEY, 2), (OTHER, 0)]
    assert ask(other, "are_locked", *locks) == [False, False, True, True]
    assert receive(other, 5, 9, "c3" * 8) == [1, 4, 5]
    assert [each.attempts for each in other.delivered[5]] == [1, 0, 0]


def test_a_renewed_lock_ends_when_the_renewal_said_and_counts_then(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 3)
    peer.close_consumer(5)
    pass_time(disk.scene, peer, 30_000)
    assert ask(peer, "renew_locks", (KEY, 1)) == [MINUTE]
    scene = after(disk, end)
    other = disk.peer(8)
    receive(other, 5, 9, OTHER, first=0)
    pass_time(scene, other, 30_000)
    assert ask(other, "are_locked", (KEY, 0), (KEY, 1), (KEY, 2)) == [False, True, False]
    pass_time(scene, other, 30_000)
    found = {each.sequence: each.attempts for each in other.delivered[5]}
    assert (found[0], found[1], found[2]) == (1, 1, 1)
    # Only that of the renewed one has failed.
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    assert [attempts[body] for body in disk.bodies[:3]] == [0, 1, 0]


def test_what_did_not_reach_a_process_whose_link_has_ended_returns_and_counts_nothing(
    tmp_path: Path, end: str
) -> None:
    disk = LockDisk(tmp_path)
    receive(disk.peer(7), 5, 2, lock_ends="", lock_ms=30_000)
    receive(disk.peer(8), 5, 3, OTHER)
    scene = after(disk, end)
    other = disk.peer(9)
    other.ask("return_unsent", queue="q", locks=[f"{KEY}-1", f"{OTHER}-1", f"{'c3' * 8}-0"])
    scene.settle_down()
    assert scene.queue("q") == {"ready": 4, "in_flight": 2}
    assert ask(other, "are_locked", (KEY, 0), (OTHER, 0)) == [True, True]
    assert [each[2] for each in scene.everything("q")] == [0] * 6
    # Those of a link that is there are its own.
    assert receive(other, 5, 1, "d4" * 8) == [1]
    other.ask("return_unsent", queue="q", locks=[f"{'d4' * 8}-0"])
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}
    scene = after(disk, end)
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}


def test_the_oldest_delivery_of_a_client_that_failed_counts_after_a_restart_too(
    tmp_path: Path, end: str
) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 2)
    peer.close_consumer(5, Ending.FAILED)
    disk.scene.settle_down()
    scene = after(disk, end)
    pass_time(scene, disk.peer(8), 61_000)
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    assert [attempts[body] for body in disk.bodies[:2]] == [1, 0]


def test_no_lock_ends_within_ten_seconds_after_a_restart_unless_it_had_ended_before(
    tmp_path: Path, end: str
) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 1)
    pass_time(disk.scene, peer, 59_000)
    # It ends while the shard is not there, so that nobody can renew it.
    scene = after(disk, end, wait_ms=5_000)
    other = disk.peer(8)
    assert ask(other, "are_locked", (KEY, 0)) == [True]
    pass_time(scene, other, LOCKED_AFTER_START_MS)
    assert ask(other, "are_locked", (KEY, 0)) == [False]
    scene = after(disk, end)
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}


def test_no_lock_becomes_longer_as_the_clock_was_set_back_before_the_start(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    receive(disk.peer(7), 5, 1)
    scene = after(disk, end, wait_ms=-500_000)
    other = disk.peer(8)
    pass_time(scene, other, 59_000)
    assert ask(other, "are_locked", (KEY, 0)) == [True]
    pass_time(scene, other, 1_000)
    assert ask(other, "are_locked", (KEY, 0)) == [False]


@pytest.mark.parametrize(
    "options",
    [
        {"lock_ends": "link"},
        {"key": "", "lock_ends": ""},
        {"presettled": True, "key": "", "lock_ends": ""},
    ],
    ids=str,
)
def test_locks_that_end_with_their_link_end_with_the_process(
    tmp_path: Path, end: str, options: dict[str, Any]
) -> None:
    disk = LockDisk(tmp_path)
    receive(disk.peer(7), 5, 3, **options)
    held = disk.scene.queue("q")["ready"]
    assert held == 3
    assert after(disk, end).queue("q")["in_flight"] == 0


def test_without_a_lock_time_nothing_is_locked_after_a_restart(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path, lock_duration=None)
    receive(disk.peer(7), 5, 3)
    assert after(disk, end).queue("q") == {"ready": 6, "in_flight": 0}


def test_the_locks_of_gateways_stay_and_each_of_their_ends_counts(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path, lock_duration=None)
    receive(disk.peer(7), 5, 2, "ab" * 16, lock_ends="", lock_ms=30_000)
    scene = after(disk, end)
    other = disk.peer(8)
    assert ask(other, "renew_locks", ("ab" * 16, 1)) == [30_000]
    assert ask(other, "settle_locks", ("ab" * 16, 1)) == [True]
    pass_time(scene, other, 30_000)
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    assert attempts[disk.bodies[0]] == 1
    assert len(attempts) == 5


@pytest.mark.parametrize(
    "policy",
    [
        {"groups": True},
        {"priorities": 3},
        {"order": "last_value", "order_key": "application-properties.symbol"},
        {"delay": True},
        {"max_length": 100},
        {"retry_delay": 1},
        {"single_active": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["on disk", "in memory"])
def test_locks_stay_whatever_the_order_of_the_queue(
    tmp_path: Path, policy: dict[str, Any], memory_bytes: int
) -> None:
    disk = LockDisk(tmp_path, **policy)
    peer = disk.peer(7)
    receive(peer, 5, 3)
    found = {each.number: each.message for each in peer.delivered.pop(5)}
    scene = disk.killed(memory_bytes=memory_bytes)
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}
    other = disk.peer(8)
    receive(other, 5, 9, OTHER)
    assert not {each.message for each in other.delivered.get(5, [])} & {*found.values()}
    assert ask(other, "settle_locks", (KEY, 1)) == [True]
    pass_time(scene, other, 61_000)
    came = [each.message for each in other.delivered[5]]
    assert found[1] not in came
    assert {found[0], found[2]} <= {*came}


def test_a_deferred_message_is_locked_for_who_asked_for_it(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 2)
    peer.settle(5, 0, 2, OutcomeCode.MODIFIED, SettleDetail(undeliverable_here=True, deferred=True))
    disk.scene.settle_down()
    number = peer.ask("receive_deferred", queue="q", key=OTHER, sequences=[0, 1])
    disk.scene.settle_down()
    assert len(peer.answers[number][0]["messages"]) == 2
    scene = after(disk, end)
    other = disk.peer(8)
    number = other.ask("receive_deferred", queue="q", key="cc" * 8, sequences=[0])
    scene.settle_down()
    assert other.answers[number][0]["messages"] == []
    assert ask(other, "settle_locks", (OTHER, 0)) == [True]
    pass_time(scene, other, 61_000)
    # Deferred again.
    number = other.ask("receive_deferred", queue="q", key="cc" * 8, sequences=[1])
    scene.settle_down()
    assert len(other.answers[number][0]["messages"]) == 1


def test_a_lock_time_that_was_removed_meanwhile_does_not_end_locks(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    receive(disk.peer(7), 5, 2)
    disk.give(lock_duration=None)
    scene = after(disk, end)
    other = disk.peer(8)
    assert ask(other, "renew_locks", (KEY, 0)) == [MINUTE]
    assert scene.queue("q") == {"ready": 4, "in_flight": 2}


def test_a_link_whose_lock_time_has_changed_keeps_all_of_its_locks(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 2)
    disk.give(lock_duration=30)
    disk.scene.refresh()
    peer.credit(5, 3)
    disk.scene.settle_down()
    scene = after(disk, end)
    other = disk.peer(8)
    assert ask(other, "are_locked", *((KEY, each) for each in range(3))) == [True] * 3
    pass_time(scene, other, 30_000)
    assert ask(other, "are_locked", *((KEY, each) for each in range(3))) == [True, True, False]


def test_a_session_begins_anew(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path, groups=True)
    peer = disk.peer(7)
    receive(peer, 5, 3, session="")
    assert after(disk, end).queue("q")["in_flight"] == 0


def test_a_queue_of_another_number_has_no_locks_of_it(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    receive(disk.peer(7), 5, 3)
    disk.names.drop("q")
    disk.scene.refresh()
    disk.give()
    disk.scene.refresh()
    sender = disk.peer(3)
    sender.produce(1, "q")
    sender.send(1, 1, disk.bodies)
    disk.scene.settle_down()
    assert after(disk, end).queue("q") == {"ready": 6, "in_flight": 0}


# --- moves -----------------------------------------------------------------------------------------------


def test_locks_stay_through_a_restart_before_a_move_and_one_after_it(tmp_path: Path, end: str) -> None:
    directories = tmp_path / "source", tmp_path / "target"
    for each in directories:
        each.mkdir()
    source, target = LockDisk(directories[0]), LockDisk(directories[1], messages=0)
    peer = source.peer(7)
    receive(peer, 5, 3)
    peer.close_consumer(5)
    assert ask(peer, "renew_locks", (KEY, 1)) == [MINUTE]
    after(source, end)
    exporting, importing = exporting_of(source.scene, "q", "1"), importing_of(target.scene, "q")
    importing.begin(target.scene.now_ms)
    for rewritten in (False, True):
        answer = move_piece(
            source.scene, exporting, 0 if rewritten else importing.next, 1 << 30, 1 << 30, rewritten=rewritten
        )
        assert importing.take(*answer, target.scene.now_ms) is None
    importing.finish(*exporting.state(source.scene.now_ms), target.scene.now_ms)
    target.scene.settle_down()
    importing.open(target.scene.engine._queues.names.get("q"), 2, target.scene.now_ms)
    target.scene.settle_down()
    scene = after(target, end)
    other = target.peer(8)
    assert scene.queue("q") == {"ready": 3, "in_flight": 3}
    assert ask(other, "settle_locks", (KEY, 2)) == [True]
    pass_time(scene, other, 61_000)
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    assert [attempts.get(body) for body in source.bodies[:3]] == [0, 1, None]
