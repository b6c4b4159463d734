"""A disk for tests: it loses what was not synced, tears writes, fills up, fails, and stops at any byte."""

import errno
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lightrail.shard.archiving.contents import RealFolders
from lightrail.shard.journal.files import Files

SECTOR = 16
"""Smaller than any real one, so that a small journal is torn in many ways."""


class Crash(BaseException):
    """The machine stopped; nothing after this reaches the disk. Not an Exception: nobody may handle it."""


class Fault(NamedTuple):
    """One system call fails: the one of this number among all calls of the disk, counted from 0."""

    call: int
    error: int
    """The errno."""
    is_short: bool = False
    """Half of what a write brings is written before it fails."""


class Inode:
    """A file's bytes as programs see them, and as they are on disk."""

    def __init__(self, data: bytes = b"") -> None:
        self.live = bytearray(data)
        self.durable = bytearray(data)
        self.pending: list[tuple[str, int, bytes]] = []

    def apply(self, to: bytearray, kind: str, number: int, data: bytes) -> None:
        if kind == "write":
            if len(to) < number + len(data):
                to.extend(bytes(number + len(data) - len(to)))
            to[number : number + len(data)] = data
        elif kind == "truncate":
            if number < len(to):
                del to[number:]
            else:
                to.extend(bytes(number - len(to)))
        elif len(to) < number:
            to.extend(bytes(number - len(to)))

    def change(self, kind: str, number: int, data: bytes = b"") -> None:
        self.apply(self.live, kind, number, data)
        self.pending.append((kind, number, data))

    def sync(self) -> None:
        for change in self.pending:
            self.apply(self.durable, *change)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        """As Linux does: what was written counts as clean from now on and is not on disk; sizes are."""
        for change in self.pending:
            if change[0] != "write":
                self.apply(self.durable, *change)
        self.pending.clear()

    def after_crash(self, chance: random.Random, keep: str) -> bytes:
        """What is on disk: everything synced, and of the rest all, nothing, or sectors by chance."""
        data = bytearray(self.durable)
        for kind, number, written in self.pending:
            if keep == "all":
                self.apply(data, kind, number, written)
            elif keep == "some":
                if kind != "write":
                    if chance.random() < 0.5:
                        self.apply(data, kind, number, written)
                    continue
                share = chance.choice((0.1, 0.5, 0.9, 1.0))
                start = 0
                while start < len(written):
                    stop = min(len(written), (number + start) // SECTOR * SECTOR + SECTOR - number)
                    if chance.random() < share:
                        self.apply(data, "write", number + start, written[start:stop])
                    start = stop
        return bytes(data)


class FakeFile:
    def __init__(self, disk: "FakeFiles", inode: Inode) -> None:
        self._disk = disk
        self.inode = inode
        self.closed = False

    def size(self) -> int:
        return len(self.inode.live)

    def read(self, offset: int, length: int) -> bytes:
        assert not self.closed
        self._disk.alive()
        self._disk.call("read")
        data = bytes(self.inode.live[offset : offset + length])
        self._disk.read += len(data)
        return data

    def written(self, offset: int) -> list[tuple[int, int]]:
        """As of a file system that knows which blocks of 4 KiB were written with anything but zeros."""
        live = self.inode.live
        blocks = range(offset - offset % 4096, len(live), 4096)
        ranges = [(max(offset, start), min(len(live), start + 4096)) for start in blocks]
        return [(start, end) for start, end in ranges if live[start:end] != bytes(end - start)]

    def write(self, offset: int, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        assert not self.closed
        disk = self._disk
        disk.alive()
        if disk.fail_writes:
            raise OSError(errno.EIO, "the disk is broken")
        data = b"".join(pieces)
        if (fault := disk.fault_of("write")) is not None:
            if fault.is_short:
                self.inode.change("write", offset, data[: len(data) // 2])
            raise OSError(fault.error, "the disk is broken")
        if disk.steps_left is not None and disk.steps_left < len(data):
            self.inode.change("write", offset, data[: disk.steps_left])
            disk.crash()
        if disk.steps_left is not None:
            disk.steps_left -= len(data)
        disk.begins.append(disk.written)
        disk.written += len(data)
        self.inode.change("write", offset, data)
        return len(data)

    def sync(self) -> None:
        assert not self.closed
        self._disk.step()
        if self._disk.fail_syncs:
            # As Linux does: the pages count as clean from now on, and are not on disk.
            self.inode.pending.clear()
            raise OSError(errno.EIO, "the disk is broken")
        if (fault := self._disk.fault_of("sync")) is not None:
            self.inode.fail_to_sync()
            raise OSError(fault.error, "the disk is broken")
        self.inode.sync()
        self._disk.syncs += 1

    def allocate(self, size: int) -> None:
        self._disk.step()
        self._disk.call("allocate")
        more = size - len(self.inode.live)
        if more > 0:
            if self._disk.space is not None and self._disk.used() + more > self._disk.space:
                raise OSError(errno.ENOSPC, "no space left on device")
            self.inode.change("allocate", size)

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._disk.call("truncate")
        self.inode.change("truncate", size)

    def links(self) -> int:
        return sum(1 for inode in self._disk.inodes.values() if inode is self.inode)

    def forget(self) -> None:
        assert not self.inode.pending
        self.inode.live[:] = self.inode.durable

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class FakeFiles:
    """One directory; `FakeFolders` has others on the same disk.

    `steps` counts bytes and other changes; at the given one the machine stops.
    """

    def __init__(self, steps: int | None = None, *, space: int | None = None) -> None:
        self.steps_left = steps
        self.space = space
        self.written = 0
        self.begins: list[int] = []
        """`written` before each write and each other change."""
        self.read = 0
        """Bytes that were read."""
        self.syncs = 0
        self.fail_writes = False
        self.fail_syncs = False
        self.fail_creates = 0
        """An errno."""
        self.fail_links = 0
        """An errno."""
        self.fault: Fault | None = None
        self.calls: list[str] = []
        """Every system call that could fail, in order."""
        self.crashed = False
        self.inodes: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._changes: list[tuple[str, str, Inode]] = []
        self._locked = False
        self.opened: list[FakeFile] = []

    # --- crashing --------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.crashed = True
        raise Crash

    def alive(self) -> None:
        if self.crashed:
            raise Crash

    def step(self) -> None:
        self.alive()
        if self.steps_left is not None:
            if self.steps_left <= 0:
                self.crash()
            self.steps_left -= 1
        self.begins.append(self.written)
        self.written += 1

    def fault_of(self, call: str) -> Fault | None:
        """Counts a system call; the fault where it is this one that fails."""
        self.calls.append(call)
        fault = self.fault
        return fault if fault is not None and fault.call == len(self.calls) - 1 else None

    def call(self, call: str) -> None:
        """A system call that does nothing where it fails."""
        if (fault := self.fault_of(call)) is not None:
            raise OSError(fault.error, "the disk is broken")

    def after_crash(self, seed: int = 0, keep: str = "some") -> "FakeFiles":
        """The disk as the next start finds it. `keep` of what was not synced: all, none, some."""
        chance = random.Random(seed)
        names = dict(self._durable)
        for kind, name, inode in self._changes:
            if keep == "all" or (keep == "some" and chance.random() < 0.5):
                if kind == "add":
                    names[name] = inode
                elif kind == "remove" and names.get(name) is inode:
                    del names[name]
                elif kind == "move":
                    old, new = name.split(">")
                    if names.get(old) is inode:
                        del names[old]
                        names[new] = inode
        files = FakeFiles()
        known: dict[int, Inode] = {}
        for name, inode in names.items():
            fresh = known.get(id(inode))
            if fresh is None:
                fresh = known[id(inode)] = Inode(inode.after_crash(chance, keep))
            files.inodes[name] = files._durable[name] = fresh
        return files

    def used(self) -> int:
        return sum(len(inode.live) for inode in {id(each): each for each in self.inodes.values()}.values())

    # --- the port --------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        self.alive()
        return sorted(name for name in self.inodes if "/" not in name)

    def open(self, name: str) -> FakeFile:
        self.alive()
        self.call("open")
        if name not in self.inodes:
            raise FileNotFoundError(name)
        self.opened.append(FakeFile(self, self.inodes[name]))
        return self.opened[-1]

    def create(self, name: str) -> FakeFile:
        self.step()
        self.call("create")
        if self.fail_creates:
            raise OSError(self.fail_creates, "no new file")
        if name in self.inodes:
            raise FileExistsError(name)
        inode = self.inodes[name] = Inode()
        self._changes.append(("add", name, inode))
        self.opened.append(FakeFile(self, inode))
        return self.opened[-1]

    def rename(self, old: str, new: str) -> None:
        self.step()
        self.call("rename")
        assert new not in self.inodes
        inode = self.inodes[new] = self.inodes.pop(old)
        self._changes.append(("move", f"{old}>{new}", inode))

    def supersede(self, old: str, new: str) -> None:
        self.step()
        self.call("supersede")
        inode = self.inodes[new] = self.inodes.pop(old)
        self._changes.append(("move", f"{old}>{new}", inode))

    def link(self, name: str, to: Files) -> None:
        assert isinstance(to, FakeFolder)
        assert to.disk is self
        self.step()
        self.call("link")
        if self.fail_links:
            raise OSError(self.fail_links, "no link")
        if to.prefix + name in self.inodes:
            raise FileExistsError(name)
        inode = self.inodes[to.prefix + name] = self.inodes[name]
        self._changes.append(("add", to.prefix + name, inode))

    def remove(self, name: str) -> None:
        self.step()
        self.call("remove")
        if name not in self.inodes:
            raise FileNotFoundError(name)
        self._changes.append(("remove", name, self.inodes.pop(name)))

    def sync(self) -> None:
        self.sync_below("")

    def sync_below(self, prefix: str) -> None:
        """The names of one directory."""

        def within(name: str) -> bool:
            return name.startswith(prefix) if prefix else "/" not in name

        self.step()
        self.call("sync of names")
        self._durable = {name: inode for name, inode in self._durable.items() if not within(name)}
        self._durable |= {name: inode for name, inode in self.inodes.items() if within(name)}
        self._changes = [change for change in self._changes if not within(change[1])]

    def load(self, name: str) -> bytes | None:
        self.alive()
        self.call("load")
        inode = self.inodes.get(name)
        return None if inode is None else bytes(inode.live)

    def replace(self, name: str, data: bytes) -> None:
        self.step()
        self.call("replace")
        inode = self.inodes[name] = self._durable[name] = Inode(data)
        assert inode.durable == data

    def lock(self) -> bool:
        if self._locked:
            return False
        self._locked = True
        return True

    def unlock(self) -> None:
        self._locked = False

    def random(self) -> bytes:
        return bytes(range(16))


def crashes(whole: FakeFiles, keep: Sequence[str]) -> Iterator[int]:
    """Every step at which a run may stop; the disk keeps `keep[step % len(keep)]` of what was not synced.

    Passed over is a step that leaves the same disk at the same point of the run as one before: of a write of
    which nothing is kept it does not matter how much was written.

    Args:
        whole: the run's disk where it did not stop.
    """
    begins = [*whole.begins, whole.written]
    lost: set[int] = set()
    for steps in range(whole.written + 1):
        if keep[steps % len(keep)] == "none":
            change = bisect_right(begins, steps)
            if change in lost:
                continue
            lost.add(change)
        yield steps


class FakeFolder:
    """Another directory on the disk of a FakeFiles."""

    def __init__(self, disk: FakeFiles, name: str) -> None:
        self.disk = disk
        self.prefix = f"{name}/"

    def names(self) -> list[str]:
        self.disk.alive()
        return sorted(
            name.removeprefix(self.prefix) for name in self.disk.inodes if name.startswith(self.prefix)
        )

    def open(self, name: str) -> FakeFile:
        return self.disk.open(self.prefix + name)

    def create(self, name: str) -> FakeFile:
        return self.disk.create(self.prefix + name)

    def rename(self, old: str, new: str) -> None:
        self.disk.rename(self.prefix + old, self.prefix + new)

    def supersede(self, old: str, new: str) -> None:
        self.disk.supersede(self.prefix + old, self.prefix + new)

    def link(self, name: str, to: Files) -> None:
        raise AssertionError("nothing is linked out of an archive")

    def remove(self, name: str) -> None:
        self.disk.remove(self.prefix + name)

    def sync(self) -> None:
        self.disk.sync_below(self.prefix)

    def load(self, name: str) -> bytes | None:
        return self.disk.load(self.prefix + name)

    def replace(self, name: str, data: bytes) -> None:
        disk = self.disk
        if disk.fail_creates:
            raise OSError(disk.fail_creates, "no new file")
        if disk.space is not None and disk.used() + len(data) > disk.space:
            raise OSError(errno.ENOSPC, "no space left on device")
        disk.replace(self.prefix + name, data)

    def lock(self) -> bool:
        return True

    def unlock(self) -> None:
        return

    def random(self) -> bytes:
        return self.disk.random()


class FakeFolders(RealFolders):
    """An archive on the disk of a FakeFiles."""

    def __init__(self, disk: FakeFiles, *, shares: bool = True) -> None:
        self.disk = disk
        self._shares = shares

    def names(self) -> list[str]:
        self.disk.alive()
        return sorted({name.partition("/")[0] for name in self.disk.inodes if "/" in name})

    def open(self, name: str) -> FakeFolder:
        return FakeFolder(self.disk, name)

    def remove(self, name: str) -> None:
        assert not FakeFolder(self.disk, name).names()

    def shares(self, files: object) -> bool:
        return self._shares

    def close(self) -> None:
        return
