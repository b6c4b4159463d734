"""The port to the disk, and the real disk behind it; tests put one there that tears and loses writes."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from lightrail.model import limits

Buffer = bytes | bytearray | memoryview

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of allocating that mean: try again later."""
NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
"""Errors of linking that mean: another file system, or one without links. Copy instead."""
COPY_SUFFIX: Final = ".copy"
"""Of a file that is not whole yet."""
_GATHER_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if os.sysconf("SC_IOV_MAX") > 0 else 1024
_JOIN_BYTES: Final = 64 * 1024
"""Up to here one copy costs less than a gathered write of many pieces."""


class DiskFile(Protocol):
    """An open file. Any thread may read; only one at a time may do anything else."""

    def size(self) -> int:
        """Bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def write(self, offset: int, pieces: Sequence[Buffer]) -> int:
        """Writes the pieces one after another and returns the number of bytes; all of them or OSError."""

    def sync(self) -> None:
        """Returns when everything that was written is on disk, with the size."""

    def allocate(self, size: int) -> None:
        """Allocates space for `size` bytes, so that writing there needs no more.

        Raises:
            OSError: with an errno of NO_SPACE when there is none.
        """

    def truncate(self, size: int) -> None:
        """Cuts the file."""

    def links(self) -> int:
        """Number of its links. A file with another name is used elsewhere as well: never change it."""

    def forget(self) -> None:
        """Drops cached pages, so that the next read shows what is on disk."""

    def close(self) -> None:
        """No call may follow."""


class Files(Protocol):
    """One flat directory."""

    def names(self) -> list[str]:
        """Names of the files, sorted."""

    def open(self, name: str) -> DiskFile:
        """A file that is there, to read and write."""

    def create(self, name: str) -> DiskFile:
        """A new, empty file."""

    def rename(self, old: str, new: str) -> None:
        """Moves a file to a name that is free."""

    def supersede(self, old: str, new: str) -> None:
        """Replaces a file atomically by another one."""

    def link(self, name: str, to: "Files") -> None:
        """The file is in that directory as well, under the same name.

        Raises:
            FileExistsError: there is one of that name.
            OSError: with an errno of NO_LINK when this can't be done there.
        """

    def remove(self, name: str) -> None:
        """Removes the name; the file can still be read where it is open."""

    def sync(self) -> None:
        """Returns when all names are on disk as they are now."""

    def load(self, name: str) -> bytes | None:
        """A small file whole; None when there is none."""

    def replace(self, name: str, data: bytes) -> None:
        """Writes a small file whole or not at all, and syncs it."""

    def lock(self) -> bool:
        """Locks the directory for this process; False if another one has it."""

    def unlock(self) -> None:
        """Unlocks it."""

    def random(self) -> bytes:
        """16 random bytes."""


def copy(source: DiskFile, to: Files, name: str, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Copies a file whole or not at all: under another name, synced, then renamed, replacing an older one.

    Raises:
        OSError: the disk refused, or `goes_on` returned False (ECANCELED); the copy was deleted.
    """
    partial = name + COPY_SUFFIX
    if partial in to.names():
        to.remove(partial)
    target = to.create(partial)
    try:
        offset = 0
        while data := source.read(offset, limits.FILE_COPY_BYTES):
            if not goes_on():
                raise OSError(errno.ECANCELED, "the copy was given up, for this process ends")
            target.write(offset, [data])
            offset += len(data)
        target.sync()
    except OSError:
        target.close()
        to.remove(partial)
        raise
    target.close()
    to.supersede(partial, name)
    to.sync()


def own_copy(files: Files, name: str, file: DiskFile) -> DiskFile:
    """Copies a file that has another name elsewhere, so that it may be changed; returns the copy, opened."""
    copy(file, files, name)
    file.close()
    return files.open(name)


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < length and (data := os.pread(self._descriptor, length - got, offset + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def write(self, offset: int, pieces: Sequence[Buffer]) -> int:
        total = sum([piece.nbytes if type(piece) is memoryview else len(piece) for piece in pieces])
        if total <= _JOIN_BYTES:
            self._write_all(offset, b"".join(pieces))
            return total
        position = offset
        for start in range(0, len(pieces), _GATHER_MAX):
            group = pieces[start : start + _GATHER_MAX]
            size = sum([piece.nbytes if type(piece) is memoryview else len(piece) for piece in group])
            written = os.pwritev(self._descriptor, group, position)
            if written < size:
                # Rare (a signal, 2 GiB at once): the rest in one piece.
                self._write_all(position + written, memoryview(b"".join(group))[written:])
            position += size
        return total

    def _write_all(self, offset: int, data: Buffer) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):
            more = os.pwrite(self._descriptor, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the disk takes no more bytes and names no reason")
            written += more

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._descriptor, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def links(self) -> int:
        return os.fstat(self._descriptor).st_nlink

    def forget(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)


class RealFiles:
    """A directory of the operating system; made when it is not there."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Final = Path(directory)
        made = not self.directory.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: int | None = None
        if made:
            parent = os.open(self.directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)

    def names(self) -> list[str]:
        with os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def open(self, name: str) -> RealFile:
        return RealFile(os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC))

    def create(self, name: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return RealFile(os.open(self.directory / name, flags, 0o600))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.directory / old, self.directory / new)

    def supersede(self, old: str, new: str) -> None:
        os.replace(self.directory / old, self.directory / new)

    def link(self, name: str, to: Files) -> None:
        assert isinstance(to, RealFiles)
        os.link(self.directory / name, to.directory / name)

    def remove(self, name: str) -> None:
        os.unlink(self.directory / name)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def load(self, name: str) -> bytes | None:
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        new = self.directory / f"{name}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.closing(RealFile(descriptor)) as file:
                file.write(0, [data])
                os.fsync(descriptor)
        except OSError:
            os.unlink(new)
            raise
        os.replace(new, self.directory / name)
        self.sync()

    def lock(self) -> bool:
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def random(self) -> bytes:
        return secrets.token_bytes(16)
