"""The port to the disk, and its implementation by the operating system; tests use one that loses writes."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from lightrail.journal.scan import Readable

FILE_COPY_BYTES: Final[int] = 1024 * 1024
"""Bytes of a copied file in memory at a time."""

Buffer = bytes | bytearray | memoryview

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of an allocation that mean that the disk is full; a later attempt may succeed."""
NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
"""Errors of a link between file systems, or on one without links; the file is copied instead."""
COPY_SUFFIX: Final = ".copy"
"""Suffix of the name of an incomplete copy."""
_GATHER_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if os.sysconf("SC_IOV_MAX") > 0 else 1024
_JOIN_BYTES: Final = 64 * 1024
"""Up to this size, joining the pieces costs less than a gathered write of many pieces."""


class DiskFile(Protocol):
    """An open file. Any thread may read; all other calls must come from one thread at a time."""

    def size(self) -> int:
        """Size of the file in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def written(self, offset: int) -> list[tuple[int, int]]:
        """The ranges from `offset` on, as (start, end), that may have been written; all others are zero."""

    def write(self, offset: int, pieces: Sequence[Buffer]) -> int:
        """Writes all pieces one after another and returns the number of bytes; raises OSError otherwise."""

    def sync(self) -> None:
        """Returns when all written bytes and the size of the file are on disk."""

    def allocate(self, size: int) -> None:
        """Allocates space for `size` bytes, so that later writes within it need no more space.

        Raises:
            OSError: with an errno of NO_SPACE if the disk is full.
        """

    def truncate(self, size: int) -> None:
        """Cuts the file."""

    def links(self) -> int:
        """Number of its hard links. A file with more than one is used elsewhere and must not be changed."""

    def forget(self) -> None:
        """Drops cached pages, so that the next read shows what is on disk."""

    def close(self) -> None:
        """Closes the file; no other call may follow."""


class Files(Protocol):
    """One flat directory."""

    def names(self) -> list[str]:
        """Names of the files, sorted."""

    def open(self, name: str) -> DiskFile:
        """Opens an existing file to read and write. Raises FileNotFoundError."""

    def create(self, name: str) -> DiskFile:
        """Creates an empty file and opens it. Raises FileExistsError."""

    def rename(self, old: str, new: str) -> None:
        """Renames a file to a name that is free."""

    def supersede(self, old: str, new: str) -> None:
        """Replaces a file atomically by another one."""

    def link(self, name: str, to: "Files") -> None:
        """Links the file into the directory `to`, under the same name.

        Raises:
            FileExistsError: `to` has a file of that name.
            OSError: with an errno of NO_LINK if links between these directories are not possible.
        """

    def remove(self, name: str) -> None:
        """Removes the name; open handles still read the file. Raises FileNotFoundError."""

    def sync(self) -> None:
        """Returns when the current names of the directory are on disk."""

    def load(self, name: str) -> bytes | None:
        """The bytes of a small file; None if there is none."""

    def replace(self, name: str, data: bytes) -> None:
        """Replaces a small file atomically, and syncs it."""

    def lock(self) -> bool:
        """Locks the directory for this process; False if another process has locked it."""

    def unlock(self) -> None:
        """Unlocks the directory."""

    def random(self) -> bytes:
        """16 random bytes."""


def copy(source: Readable, to: Files, name: str, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Copies a file atomically: under another name, synced, then renamed, replacing an older file.

    Raises:
        OSError: a call of the disk failed, or `goes_on` returned False (ECANCELED); the copy was deleted.
    """
    partial = name + COPY_SUFFIX
    if partial in to.names():
        to.remove(partial)
    target = to.create(partial)
    try:
        offset = 0
        while data := source.read(offset, FILE_COPY_BYTES):
            if not goes_on():
                raise OSError(errno.ECANCELED, "the copy was cancelled because this process ends")
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
    """Replaces a file that has other hard links by a copy that may be changed; returns the copy, opened."""
    copy(file, files, name)
    file.close()
    return files.open(name)


@dataclass(slots=True, eq=False, repr=False)
class RealFile:
    """A file of the operating system."""

    _descriptor: int

    @property
    def descriptor(self) -> int:
        """Of the open file."""
        return self._descriptor

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

    def written(self, offset: int) -> list[tuple[int, int]]:
        # All ranges at once: pages that are read, or read ahead, count as data from then on.
        ranges = []
        size = self.size()
        try:
            while offset < size:
                start = os.lseek(self._descriptor, offset, os.SEEK_DATA)
                offset = os.lseek(self._descriptor, start, os.SEEK_HOLE)
                ranges.append((start, offset))
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is no data any more
                ranges.append((offset, size))  # a file system that does not tell holes
        return ranges

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
                # A partial write is rare (a signal, 2 GiB at once): write the rest in one piece.
                self._write_all(position + written, memoryview(b"".join(group))[written:])
            position += size
        return total

    def _write_all(self, offset: int, data: Buffer) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):
            more = os.pwrite(self._descriptor, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "the disk accepted no bytes and reported no error")
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
    """A directory of the operating system; created if it does not exist."""

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
