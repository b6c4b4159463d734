"""The file of locks: one that is not of the last start, or is damaged, locks nothing; none grows for ever."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from lightrail.model.links import Ending
from lightrail.shard.queue.timed import lock_changes
from lightrail.shard.queues import lock_file
from lightrail.shard.queues.delivery_marks import FILE as MARKS
from lightrail.shard.queues.lock_file import (
    FILE,
    LOCK_FILE_PAUSE_MS,
    LOCK_FILE_PAUSE_MS_MAX,
    FileLocks,
    OpenFile,
)
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.kept_locks import BOOT, LockDisk, WorkerAtOnce
from tests.unit.shard.test_kept_locks import KEY, OTHER, ask, pass_time, receive
from tests.unit.shard.transactions.test_prepared import answer, prepare
from tests.unit.shard.transactions.test_transactions import settled

ALL_READY = {"ready": 6, "in_flight": 0}
LOCKED = {"ready": 3, "in_flight": 3}


def disk_with_locks(tmp_path: Path) -> LockDisk:
    disk = LockDisk(tmp_path)
    receive(disk.peer(7), 5, 3)
    assert disk.scene.queue("q") == LOCKED
    return disk


def change(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def of_another_start(directory: Path) -> None:
    change(directory / FILE, 28, b"x" * 16)


def of_a_former_version(directory: Path) -> None:
    """One that does not know the file has served meanwhile."""
    change(directory / MARKS, 28, bytes(16))


def without_marks(directory: Path) -> None:
    (directory / MARKS).unlink()


def removed(directory: Path) -> None:
    (directory / FILE).unlink()


def of_a_newer_version(directory: Path) -> None:
    change(directory / FILE, 8, b"\2")


def another_file(directory: Path) -> None:
    (directory / FILE).write_bytes(b"what is this?" * 20)


def cut_in_its_head(directory: Path) -> None:
    os.truncate(directory / FILE, 50)


def damaged_in_its_chunk(directory: Path) -> None:
    change(directory / FILE, 100, b"\xff\xff")


@pytest.mark.parametrize(
    "spoil",
    [
        of_another_start,
        of_a_former_version,
        without_marks,
        removed,
        of_a_newer_version,
        another_file,
        cut_in_its_head,
        damaged_in_its_chunk,
    ],
)
def test_a_file_that_is_not_of_the_last_start_or_damaged_locks_nothing(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_with_locks(tmp_path)
    disk.spoil = lambda: spoil(tmp_path)
    assert disk.killed().queue("q") == ALL_READY
    assert any("locks" in record.message for record in caplog.records) or spoil is removed
    # From here on it is written again.
    receive(disk.peer(9), 5, 3, OTHER)
    assert disk.killed().queue("q") == LOCKED


def test_after_a_crash_of_the_machine_only_the_file_of_an_orderly_end_is_used(tmp_path: Path) -> None:
    disk = disk_with_locks(tmp_path)
    disk.boot = bytes(16)
    assert disk.killed().queue("q") == ALL_READY
    receive(disk.peer(9), 5, 3, OTHER)
    disk.boot = BOOT
    assert disk.restarted().queue("q") == LOCKED


def test_a_chunk_that_was_not_written_wholly_is_left_out(tmp_path: Path) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 1)
    size = (tmp_path / FILE).stat().st_size
    receive(peer, 6, 2, OTHER)
    disk.spoil = lambda: os.truncate(tmp_path / FILE, size + 30)
    assert disk.killed().queue("q") == {"ready": 5, "in_flight": 1}
    assert ask(disk.peer(8), "settle_locks", (KEY, 0), (OTHER, 0)) == [True, False]


def test_a_message_that_was_lost_gives_its_lock_to_no_other_one(tmp_path: Path) -> None:
    """The machine of a delivery that no commit had is killed, and its sequence is given again."""
    disk = LockDisk(tmp_path, messages=0)
    sender, peer = disk.peer(3), disk.peer(7)
    sender.produce(1, "q")
    receive(peer, 5, 1)
    sender.send(1, 1, [b"\x00\x53\x75\xa0\x01a"])
    disk.scene.turn()
    assert [each.sequence for each in peer.delivered[5]] == [0]
    # Killed before the commit.
    os.close(disk.marks._make(0, disk.marks._noted))
    disk.files = disk.files.after_crash(0, "none")
    scene = disk.start()
    sender = disk.peer(4)
    sender.produce(1, "q")
    sender.send(1, 1, [b"\x00\x53\x75\xa0\x01b"])
    scene = disk.killed()
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}


# --- writing ---------------------------------------------------------------------------------------------


def test_a_file_with_much_more_than_the_present_locks_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "LOCK_FILE_BYTES_MIN", 2_000)
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    receive(peer, 5, 2)
    largest = 0
    for _ in range(300):
        assert ask(peer, "renew_locks", (KEY, 0)) == [60_000]
        largest = max(largest, (tmp_path / FILE).stat().st_size)
    assert 1_800 < largest < 2_400
    assert disk.killed().queue("q") == {"ready": 4, "in_flight": 2}


def test_a_file_is_written_anew_a_few_locks_at_a_time_and_misses_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "LOCKS_GATHERED_AT_ONCE", 3)
    monkeypatch.setattr(lock_changes, "LOCKS_LISTED_AT_ONCE", 2)
    disk = LockDisk(tmp_path, messages=20)
    peer = disk.peer(7)
    keys = [f"{number:016x}" for number in range(8)]
    for number, key in enumerate(keys[:6]):
        receive(peer, number, 3, key)
    gathered: list[int] = []
    gather = OpenFile.gather

    def counted(file: OpenFile) -> bool:
        before = len(file.entries.data)
        is_whole = gather(file)
        gathered.append(len(file.entries.data) - before)
        return is_whole

    monkeypatch.setattr(OpenFile, "gather", counted)
    former = disk.locks._present
    disk.worker.is_slow, disk.locks._rewrite_at = True, 0
    ask(peer, "renew_locks", (keys[5], 0))
    # The first key is in the new file, and the others are not: each change is after or before its lock.
    for number in (0, 5):
        peer.settle(number, 1, 1, OutcomeCode.RELEASED)
        peer.close_consumer(number, Ending.FAILED)
    disk.scene.settle_down()
    disk.worker.work(1)
    assert len(gathered) == 2
    assert disk.locks._present is former
    for number in (1, 4):
        request = prepare(peer, settles=[[*settled("q", 0, 0, 2), keys[number]]], id=f"{number:032x}")
        assert answer(disk.scene, peer, request) == {"prepared": True}
    receive(peer, 6, 1, keys[6])
    disk.worker.work(1)
    receive(peer, 7, 1, keys[7])
    while disk.locks._present is former:
        disk.worker.work(1)
    disk.worker.work()
    # The entry of a key has up to 46 bytes, that of a lock 42.
    assert len(gathered) > 6
    assert max(gathered) <= 4 * (46 + 42)
    scene = disk.killed()
    other = disk.peer(9)
    for number in (1, 4):
        assert answer(scene, other, other.ask("conclude", id=f"{number:032x}", commit=False)) == {
            "concluded": True
        }
    for number, key in enumerate(keys):
        expected = [True, number not in (0, 5), True] if number < 6 else [True, False, False]
        assert (key, ask(other, "are_locked", *((key, each) for each in range(3)))) == (key, expected)
    pass_time(scene, other, 61_000)
    attempts = {each[3]: each[2] for each in scene.everything("q")}
    # The oldest of each client that failed.
    assert [at for at, body in enumerate(disk.bodies) if attempts[body]] == [0, 15]


def test_a_disk_that_hangs_gathers_no_more_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "LOCK_BYTES_GATHERED_MAX", 1_000)
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    disk.worker.is_slow = True
    receive(peer, 5, 2)
    for _ in range(100):
        ask(peer, "renew_locks", (KEY, 1))
        assert all(len(each.entries.data) <= 1_000 for each in disk.locks._files)
    peer.settle(5, 0, 1)
    disk.worker.is_slow = False
    disk.worker.work()
    scene = disk.killed()
    assert scene.queue("q") == {"ready": 4, "in_flight": 1}


def test_a_file_that_can_not_be_written_is_removed_and_written_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_with_locks(tmp_path)
    full = True

    def pwrite(file: int, data: bytes, at: int, write: Callable[..., int] = os.pwrite) -> int:
        return write(file, data[: len(data) // 2] if full else data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    peer = disk.peer(8)
    receive(peer, 5, 1, OTHER)
    assert not (tmp_path / FILE).exists()
    assert [record.levelname for record in caplog.records if record.name == lock_file.log.name] == ["ERROR"]
    pass_time(disk.scene, peer, LOCK_FILE_PAUSE_MS)
    ask(peer, "renew_locks", (OTHER, 0))
    assert not (tmp_path / FILE).exists()
    full = False
    # Also if no lock changes; after the second failure it waits twice as long.
    pass_time(disk.scene, peer, LOCK_FILE_PAUSE_MS)
    assert not (tmp_path / FILE).exists()
    pass_time(disk.scene, peer, LOCK_FILE_PAUSE_MS)
    assert caplog.records[-1].message.endswith("can be written again")
    assert disk.killed().queue("q") == {"ready": 2, "in_flight": 4}


def test_a_file_of_many_locks_is_written_again_in_pieces_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "LOCKS_GATHERED_AT_ONCE", 3)
    disk = disk_with_locks(tmp_path)
    peer = disk.peer(8)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda file, data, at: 0)
        receive(peer, 5, 1, OTHER)
    assert not (tmp_path / FILE).exists()
    pass_time(disk.scene, peer, LOCK_FILE_PAUSE_MS)
    assert (tmp_path / FILE).exists()
    assert disk.killed().queue("q") == {"ready": 2, "in_flight": 4}


def test_a_disk_that_stays_full_is_tried_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_with_locks(tmp_path)
    tried: list[int] = []

    def pwrite(file: int, data: bytes, at: int) -> int:
        tried.append(disk.scene.now_ms)
        return 0

    monkeypatch.setattr(os, "pwrite", pwrite)
    peer = disk.peer(8)
    receive(peer, 5, 1, OTHER)
    pass_time(disk.scene, peer, 5 * LOCK_FILE_PAUSE_MS_MAX)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:3] == [LOCK_FILE_PAUSE_MS, 2 * LOCK_FILE_PAUSE_MS, 4 * LOCK_FILE_PAUSE_MS]
    assert pauses[-2:] == [LOCK_FILE_PAUSE_MS_MAX] * 2


def test_a_file_that_can_not_be_closed_is_left_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_with_locks(tmp_path)
    peer = disk.peer(8)
    with monkeypatch.context() as patched:

        def close(file: int) -> None:
            raise OSError(5, "Input/output error")

        patched.setattr(os, "close", close)
        disk.locks._leave()
        receive(peer, 5, 1, OTHER)
    assert not (tmp_path / FILE).exists()
    pass_time(disk.scene, peer, LOCK_FILE_PAUSE_MS)
    ask(peer, "renew_locks", (OTHER, 0))
    assert disk.killed().queue("q") == {"ready": 2, "in_flight": 4}


def test_a_file_that_can_not_be_read_does_not_keep_the_shard_from_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_with_locks(tmp_path)

    def spoil() -> None:
        (tmp_path / FILE).unlink()
        (tmp_path / FILE).mkdir()

    disk.spoil = spoil
    assert disk.killed().queue("q") == ALL_READY
    assert any("can't be read" in record.message for record in caplog.records)


def test_the_thread_appends_in_order(tmp_path: Path) -> None:
    disk = LockDisk(tmp_path)
    peer = disk.peer(7)
    disk.worker.is_slow = True
    receive(peer, 5, 2)
    peer.settle(5, 0, 1, OutcomeCode.RELEASED)
    disk.scene.settle_down()
    receive(disk.peer(8), 5, 1, OTHER)
    assert isinstance(disk.locks, FileLocks)
    assert isinstance(disk.worker, WorkerAtOnce)
    disk.worker.is_slow = False
    disk.worker.work()
    disk.killed()
    assert ask(disk.peer(9), "are_locked", (KEY, 0), (KEY, 1), (OTHER, 0)) == [False, True, True]
