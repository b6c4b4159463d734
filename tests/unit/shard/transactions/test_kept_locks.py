"""Locks that live by time and transactions that are prepared, after a restart of their shard."""

from pathlib import Path

import pytest

from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.kept_locks import LockDisk
from tests.unit.shard.test_kept_locks import KEY, OTHER, after, ask, end, pass_time, receive
from tests.unit.shard.test_scheduled_messages import message
from tests.unit.shard.transactions.test_prepared import ID, answer, prepare
from tests.unit.shard.transactions.test_schedules import cancels
from tests.unit.shard.transactions.test_transactions import settled

__all__ = ["end"]


@pytest.mark.parametrize("commits", [True, False])
def test_what_a_transaction_has_prepared_is_its_own_after_a_restart(
    tmp_path: Path, end: str, commits: bool
) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 3)
    request = prepare(peer, settles=[[*settled("q", 0, 1, 1), KEY]])
    assert answer(disk.scene, peer, request) == {"prepared": True}
    scene = after(disk, end)
    other = disk.peer(8)
    assert ask(other, "are_locked", *((KEY, each) for each in range(3))) == [True, False, True]
    assert receive(other, 6, 9, OTHER) == [3, 4, 5]
    # The file has the locks of what is reserved, also when it was written anew.
    scene = after(disk, end)
    other = disk.peer(9)
    assert answer(scene, other, other.ask("conclude", id=ID, commit=commits)) == {"concluded": True}
    assert ask(other, "settle_locks", *((KEY, each) for each in range(3))) == [True, not commits, True]
    assert scene.queue("q") == {"ready": 0, "in_flight": 3}


@pytest.mark.parametrize("renews", [True, False])
def test_a_lock_that_has_ended_when_a_rollback_follows_a_restart_ends_by_its_own_rule(
    tmp_path: Path, end: str, renews: bool
) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 3)
    peer.close_consumer(5)
    if renews:
        assert ask(peer, "renew_locks", (KEY, 1)) == [60_000]
    # Two of them, in the middle of others.
    request = prepare(peer, settles=[[*settled("q", 0, 0, 2), KEY]])
    assert answer(disk.scene, peer, request) == {"prepared": True}
    scene = after(disk, end)
    other = disk.peer(8)
    pass_time(scene, other, 61_000)
    scene = after(disk, end)
    other = disk.peer(9)
    assert scene.queue("q") == {"ready": 4, "in_flight": 2}
    assert answer(scene, other, other.ask("conclude", id=ID, commit=False)) == {"concluded": True}
    scene.tick()
    assert scene.queue("q") == {"ready": 6, "in_flight": 0}
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    assert [attempts[body] for body in disk.bodies[:3]] == [0, int(renews), 0]
    assert ask(other, "are_locked", (KEY, 0), (KEY, 1)) == [False, False]


def test_a_deferred_message_is_locked_again_by_a_rollback_after_a_restart(tmp_path: Path, end: str) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 2)
    peer.settle(5, 0, 2, OutcomeCode.MODIFIED, SettleDetail(undeliverable_here=True, deferred=True))
    disk.scene.settle_down()
    peer.ask("receive_deferred", queue="q", key=OTHER, sequences=[0, 1])
    request = prepare(peer, settles=[[*settled("q", 0, 1, 1), OTHER]])
    assert answer(disk.scene, peer, request) == {"prepared": True}
    scene = after(disk, end)
    other = disk.peer(8)
    assert ask(other, "are_locked", (OTHER, 0), (OTHER, 1)) == [True, False]
    assert answer(scene, other, other.ask("conclude", id=ID, commit=False)) == {"concluded": True}
    assert ask(other, "settle_locks", (OTHER, 0), (OTHER, 1)) == [True, True]


def test_what_is_reserved_without_a_lock_in_the_file_has_failed_after_a_rollback(tmp_path: Path) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 3)
    request = prepare(peer, settles=[[*settled("q", 0, 0, 2), KEY]])
    assert answer(disk.scene, peer, request) == {"prepared": True}
    disk.spoil = (tmp_path / "locks").unlink
    scene = after(disk, "killed")
    other = disk.peer(8)
    assert answer(scene, other, other.ask("conclude", id=ID, commit=False)) == {"concluded": True}
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    assert [attempts[body] for body in disk.bodies[:3]] == [1, 1, 0]
    assert ask(other, "are_locked", (KEY, 0)) == [False]


def test_a_key_whose_deliveries_are_all_reserved_is_not_known_after_a_restart(
    tmp_path: Path, end: str
) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 1)
    request = prepare(peer, settles=[[*settled("q", 0, 0, 1), KEY]])
    assert answer(disk.scene, peer, request) == {"prepared": True}
    scene = after(disk, end)
    queue = scene.engine._queues.find("q")
    assert queue is not None
    contents = queue.machine.contents
    assert contents.locks.by_key == {}
    other = disk.peer(8)
    assert answer(scene, other, other.ask("conclude", id=ID, commit=True)) == {"concluded": True}
    assert dict(contents.consumers.departed) == {}


def test_a_schedule_that_a_transaction_cancels_stays_through_a_restart_with_locks(
    tmp_path: Path, end: str
) -> None:
    disk = LockDisk(tmp_path, delay=True)
    peer = disk.peer(7)
    receive(peer, 5, 3)
    peer.produce(1, "q")
    peer.send(1, 1, [message("later", due=disk.scene.now_ms + 30_000)], durable=True)
    disk.scene.settle_down()
    request = prepare(peer, settles=cancels(6))
    assert answer(disk.scene, peer, request) == {"prepared": True}
    scene = after(disk, end, wait_ms=20_000)
    other = disk.peer(8)
    receive(other, 5, 9, OTHER)
    pass_time(scene, other, 20_000)
    assert [each.sequence for each in other.delivered[5]] == [3, 4, 5]
    assert answer(scene, other, other.ask("conclude", id=ID, commit=True)) == {"concluded": True}
    assert len(scene.everything("q")) == 6
