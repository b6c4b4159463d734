"""The disk of the operating system and the simulated one keep the same promises while nothing fails.

What crash simulations prove of a journal and its archive holds on a real disk as far as these laws do.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lightrail.shard.archiving.contents import RealFolders
from lightrail.shard.journal.files import COPY_SUFFIX, Files, RealFiles, copy, own_copy
from tests.support.shard.fake_files import FakeFiles, FakeFolders

FOLDER = "shard-3-00000000000000000000000000000007"
Disk = tuple[Files, RealFolders]


def real(path: Path) -> Disk:
    return RealFiles(path / "journal"), RealFolders(path / "archive")


def simulated(_: Path) -> Disk:
    disk = FakeFiles()
    return disk, FakeFolders(disk)


DISKS = pytest.mark.parametrize("make", [real, simulated])
Make = Callable[[Path], Disk]


def put(files: Files, name: str, data: bytes) -> None:
    """A file with these bytes, on disk."""
    file = files.create(name)
    file.write(0, [data])
    file.sync()
    file.close()
    files.sync()


def bytes_of(files: Files, name: str) -> bytes:
    file = files.open(name)
    data = file.read(0, 1 << 20)
    file.close()
    return data


@DISKS
def test_names_are_sorted_and_a_file_is_created_once(make: Make, tmp_path: Path) -> None:
    files, _ = make(tmp_path)
    assert files.names() == []
    put(files, "b", b"2")
    put(files, "a", b"1")
    assert files.names() == ["a", "b"]
    with pytest.raises(FileExistsError):
        files.create("a")
    with pytest.raises(FileNotFoundError):
        files.open("c")
    assert bytes_of(files, "a") == b"1"


@DISKS
def test_a_write_beyond_the_end_leaves_zeros_and_a_read_ends_with_the_file(
    make: Make, tmp_path: Path
) -> None:
    files, _ = make(tmp_path)
    file = files.create("a")
    assert file.write(3, [b"de", bytearray(b"f"), memoryview(b"gh")]) == 5
    assert file.size() == 8
    assert file.read(0, 99) == b"\0\0\0defgh"
    assert file.read(7, 99) == b"h"
    assert file.read(8, 99) == b""
    file.truncate(4)
    assert file.read(0, 99) == b"\0\0\0d"
    file.sync()
    file.forget()
    assert file.read(0, 99) == b"\0\0\0d"
    file.close()


@DISKS
def test_what_is_allocated_reads_as_zeros_and_what_was_written_is_found(make: Make, tmp_path: Path) -> None:
    files, _ = make(tmp_path)
    file = files.create("a")
    file.allocate(1 << 16)
    assert file.size() == 1 << 16
    file.write(40_000, [b"some"])
    file.allocate(1 << 10)
    assert file.size() == 1 << 16, "an allocation makes no file smaller"
    ranges = file.written(0)
    assert any(start <= 40_000 and end >= 40_004 for start, end in ranges)
    assert b"".join(file.read(start, end - start) for start, end in ranges).strip(b"\0") == b"some"
    assert file.written(1 << 16) == []
    file.close()


@DISKS
def test_a_file_keeps_its_bytes_under_another_name_and_may_supersede_one(make: Make, tmp_path: Path) -> None:
    files, _ = make(tmp_path)
    put(files, "a", b"1")
    put(files, "b", b"2")
    files.rename("a", "c")
    assert files.names() == ["b", "c"]
    files.supersede("c", "b")
    assert files.names() == ["b"]
    assert bytes_of(files, "b") == b"1"


@DISKS
def test_a_removed_file_is_read_through_its_open_handle(make: Make, tmp_path: Path) -> None:
    files, _ = make(tmp_path)
    put(files, "a", b"1")
    file = files.open("a")
    files.remove("a")
    assert files.names() == []
    assert file.read(0, 9) == b"1"
    file.close()


@DISKS
def test_a_small_file_is_replaced_whole(make: Make, tmp_path: Path) -> None:
    files, _ = make(tmp_path)
    assert files.load("a") is None
    files.replace("a", b"longer")
    files.replace("a", b"short")
    assert files.load("a") == b"short"
    assert files.names() == ["a"]
    assert len(files.random()) == 16


@DISKS
def test_a_link_shares_the_bytes_until_the_file_has_a_copy_of_its_own(make: Make, tmp_path: Path) -> None:
    files, folders = make(tmp_path)
    folder = folders.open(FOLDER)
    put(files, "a", b"1")
    files.link("a", folder)
    with pytest.raises(FileExistsError):
        files.link("a", folder)
    file = files.open("a")
    assert file.links() == 2
    own = own_copy(files, "a", file)
    own.write(0, [b"2"])
    assert own.links() == 1
    own.close()
    assert (bytes_of(files, "a"), bytes_of(folder, "a")) == (b"2", b"1")


@DISKS
def test_a_copy_replaces_an_older_file_and_one_that_was_cancelled_leaves_none(
    make: Make, tmp_path: Path
) -> None:
    files, folders = make(tmp_path)
    folder = folders.open(FOLDER)
    put(files, "a", b"new")
    put(folder, "a", b"old")
    put(folder, "a" + COPY_SUFFIX, b"of a process that was killed")
    source = files.open("a")
    with pytest.raises(OSError, match="cancelled"):
        copy(source, folder, "a", lambda: False)
    assert folder.names() == ["a"]
    assert bytes_of(folder, "a") == b"old"
    copy(source, folder, "a")
    source.close()
    assert folder.names() == ["a"]
    assert bytes_of(folder, "a") == b"new"


@DISKS
def test_an_archive_lists_its_folders_until_they_are_removed(make: Make, tmp_path: Path) -> None:
    files, folders = make(tmp_path)
    assert folders.names() == []
    folder = folders.open(FOLDER)
    put(folder, "a", b"1")
    assert folders.names() == [FOLDER]
    assert folders.open(FOLDER).names() == ["a"]
    assert folders.shares(files), "both are on one file system"
    with pytest.raises(FileNotFoundError):
        folder.remove("b")
    folder.remove("a")
    folders.remove(FOLDER)
    assert folders.names() == []
    folders.close()
