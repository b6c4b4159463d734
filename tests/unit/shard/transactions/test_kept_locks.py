"""Locks that live by time and transactions that are prepared, after a restart of their shard."""

from pathlib import Path

import pytest

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
    assert answer(scene, other, other.ask("conclude", id=ID, commit=commits)) == {"concluded": True}
    # Nobody can have a lock of the former process again after the rollback: the message has failed.
    assert [(each.sequence, each.attempts) for each in other.delivered[6][3:]] == (
        [] if commits else [(1, 1)]
    )
    assert ask(other, "settle_locks", (KEY, 0), (KEY, 2)) == [True, True]


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
