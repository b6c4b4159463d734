"""Where a shard lives: which directory it takes, its number, and that a crash in between costs none."""

import asyncio
import json
from pathlib import Path

import pytest

from lightrail.shard.journal import identity
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import StoreRefusedError
from lightrail.shard.startup import data_directory
from lightrail.shard.startup.data_directory import DataDirectory, network_storage
from tests.support.now import now


class Numbers:
    """Gives each disk a number, as the coordinator does."""

    def __init__(self, *taken: str) -> None:
        self.disks = list(taken)
        self.fails = False

    async def allocate(self, disk: str) -> tuple[int, bool]:
        if disk not in self.disks:
            self.disks.append(disk)
        if self.fails:
            raise RuntimeError("died")
        return self.disks.index(disk), True


def find(data: Path, numbers: Numbers, store: str = "journal") -> DataDirectory:
    found = asyncio.run(data_directory.find(str(data), store, "c", numbers.allocate))
    assert found is not None
    return found


def test_a_directory_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    first = data_directory.hold(str(tmp_path), 3)
    assert first is not None
    assert data_directory.hold(str(tmp_path), 3) is None
    first.leave()
    again = data_directory.hold(str(tmp_path), 3)
    assert again is not None
    again.leave()


def test_the_first_free_directory_is_taken_and_then_a_new_one_made(tmp_path: Path) -> None:
    numbers = Numbers("elsewhere 0", "elsewhere 1")
    one = find(tmp_path, numbers)
    two = find(tmp_path, numbers)
    assert (one.shard, two.shard) == (2, 3)
    assert data_directory.known(str(tmp_path)) == [2, 3]
    disks = one.disk, two.disk
    assert list(disks) == numbers.disks[2:]
    two.leave()
    assert find(tmp_path, numbers).shard == 3
    one.leave()
    again = find(tmp_path, numbers)
    assert (again.shard, again.disk) == (2, disks[0])
    assert len(numbers.disks) == 4


def test_a_number_is_not_lost_when_the_process_dies_before_it_has_a_directory(tmp_path: Path) -> None:
    numbers = Numbers()
    numbers.fails = True
    for _ in range(3):
        with pytest.raises(RuntimeError):
            find(tmp_path, numbers)
    assert len(numbers.disks) == 1
    numbers.fails = False
    found = find(tmp_path, numbers)
    assert (found.shard, found.disk) == (0, numbers.disks[0])
    assert not (tmp_path / data_directory.DRAFT).exists()
    assert find(tmp_path, numbers).shard == 1


def test_a_half_written_draft_is_no_draft(tmp_path: Path) -> None:
    (tmp_path / data_directory.DRAFT).write_text('{"di')
    assert find(tmp_path, Numbers()).shard == 0


def test_only_one_process_looks_for_a_new_number(tmp_path: Path) -> None:
    async def story() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(disk: str) -> tuple[int, bool]:
            begun.set()
            await go_on.wait()
            return 0, True

        first = asyncio.create_task(data_directory.find(str(tmp_path), "journal", "c", slowly))
        await begun.wait()
        assert await data_directory.find(str(tmp_path), "journal", "c", slowly) is None
        go_on.set()
        found = await first
        assert found is not None
        found.leave()

    asyncio.run(story())


def test_the_disk_of_a_journal_is_that_of_its_identity(tmp_path: Path) -> None:
    found = find(tmp_path, Numbers())
    journal = Journal(RealFiles(found.directory), "c", 0)
    journal.recover(0)
    journal.close()
    files = RealFiles(found.directory)
    known = identity.load_identity(files)
    files.unlock()
    assert known is not None
    assert (known.disk, known.cluster, known.shard) == (found.disk, "c", 0)
    assert found.settle("journal", "c") == found.disk


def test_a_directory_that_holds_nothing_has_no_disk_until_it_settles(tmp_path: Path) -> None:
    found = data_directory.hold(str(tmp_path), 0)
    assert found is not None
    assert now(found.disk) is None
    disk = found.settle("sqlite", "c")
    assert found.disk == disk
    assert found.settle("sqlite", "c") == disk
    found.leave()


def test_a_store_in_memory_is_another_disk_each_time(tmp_path: Path) -> None:
    found = data_directory.hold(str(tmp_path), 0)
    assert found is not None
    assert found.settle("memory", "c") != found.settle("memory", "c")
    assert found.disk is None
    found.leave()


def test_a_disk_file_that_nobody_can_read_is_told(tmp_path: Path) -> None:
    found = data_directory.hold(str(tmp_path), 0)
    assert found is not None
    found.settle("sqlite", "c")
    path = Path(found.directory) / data_directory.DISK_FILE
    for text in ("", "[]", json.dumps({"other": 1})):
        path.write_text(text)
        with pytest.raises(StoreRefusedError, match="expected the id of a disk"):
            assert found.disk
    found.leave()


MOUNTS = """\
22 27 0:21 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:22 / /data rw,relatime - nfs4 nas.example:/exports/a rw,vers=4.2
24 23 0:23 / /data/local rw,relatime - xfs /dev/sdb rw
25 22 0:24 / /with\\040space rw - cifs //files/share rw
26 22 0:25 / /over rw - ext4 /dev/sdc rw
27 22 0:26 / /over rw - ceph 10.0.0.1:6789,10.0.0.2:6789:/volumes rw
a line that is none
28 22 0:27 / /short
"""


@pytest.mark.parametrize(
    ("path", "server"),
    [
        ("/var/lib/lightrail/shard-0", ""),
        ("/data", "nas.example"),
        ("/data/shard-0", "nas.example"),
        ("/database/shard-0", ""),
        ("/data/local/shard-0", ""),
        ("/with space/shard-0", "files"),
        ("/over/shard-0", "10.0.0.1:6789,10.0.0.2:6789"),
    ],
)
def test_the_storage_of_a_directory_is_the_server_of_its_network_file_system(path: str, server: str) -> None:
    assert network_storage(MOUNTS, path) == server


def test_a_kernel_that_shows_no_mounts_leaves_the_storage_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = DataDirectory(0, str(tmp_path), -1)
    monkeypatch.setattr(data_directory, "MOUNTS", str(tmp_path / "none"))
    assert directory.storage == ""
    (tmp_path / "mounts").write_text("23 22 0:22 / / rw - nfs nas:/ rw\n")
    monkeypatch.setattr(data_directory, "MOUNTS", str(tmp_path / "mounts"))
    assert directory.storage == "nas"
