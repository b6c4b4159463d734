"""Lock file: the file with the locks that outlive the process of their shard (docs/formats/locks.md).

A separate thread appends the changes of each step; no delivery waits for it, so a crash loses the locks of
the last moment, whose messages come again. The file is written anew when it has much more than the present
locks, a few of them at a time: both files get the changes until the new one has all locks. It belongs to one
start of the shard: the delivery marks beside it have the token of the same start, and a file of any other
start is not used.
"""

import asyncio
import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from zlib import crc32

from lightrail.shard.journal.commit import Worker
from lightrail.shard.queue.timed.lock_changes import KeyedLock, LockChanges
from lightrail.shard.queues.delivery_marks import HEAD, FileMarks
from lightrail.shard.queues.kept_locks import FoundLocks, KeptLock, LockEntries

LOCK_FILE_BYTES_MIN: Final[int] = 1024 * 1024
"""Bytes of entries beyond which the file is written anew, if these are also twice those of the present
locks."""
LOCK_BYTES_GATHERED_MAX: Final[int] = 16 * 1024 * 1024
"""Bytes of entries that wait for a slow disk; instead of more, the file is written anew afterwards."""
LOCK_FILE_PAUSE_MS: Final[int] = 1_000
"""Time after a failure until the file is written anew; twice as long after each further one."""
LOCK_FILE_PAUSE_MS_MAX: Final[int] = 60_000
"""The longest such time: to gather very many locks takes a second in all."""
LOCKS_GATHERED_AT_ONCE: Final[int] = 500
"""Locks, and keys and queues without one, that are gathered for a new file at a time: some 2 ms."""

log = logging.getLogger("lightrail.shard.queues.lock_file")

FILE: Final = "locks"
_MAGIC: Final = b"LRLOCKS\0"
_VERSION: Final = 1
_OPEN: Final = 0
_CLOSED: Final = 1
"""The shard was stopped in order; the file was synced."""
_CHUNKS_AT: Final = 64
_CHUNK: Final = struct.Struct("<IIQ")
"""Bytes of the entries, checksum of the rest of the chunk, time of writing in ms."""

Locks = Callable[[], Iterator[tuple[int, Sequence[KeyedLock]]]]
"""Returns the locks that outlive the process, a few at a time, with the number of their queue: each as it is
when the iterator reaches it. Locks that begin or change meanwhile may be missing."""


@dataclass(slots=True, eq=False, repr=False)
class OpenFile:
    """A file that is being written."""

    locks: Iterator[tuple[int, Sequence[KeyedLock]]]
    """Those that it has not got yet."""
    entries: LockEntries = field(default_factory=LockEntries)
    """Entries to write: locks and changes in their order, so that the last one of a lock counts."""
    size: int = 0
    _file: int = -1

    def gather(self) -> bool:
        """Adds entries of some of the locks; returns whether it has all."""
        left = LOCKS_GATHERED_AT_ONCE
        for queue, locks in self.locks:
            for lock in locks:
                self.entries.add(queue, lock)
            left -= 1 + len(locks)
            if left <= 0:
                return False
        return True

    # --- in the thread ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._file >= 0

    def open(self, path: str, head: bytes) -> None:
        """Makes the file. Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.append(head)

    def append(self, data: bytes) -> None:
        """Writes at the end. Raises OSError: some of it may be missing."""
        written = os.pwrite(self._file, data, self.size)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")
        self.size += len(data)

    def sync(self) -> None:
        """Raises OSError."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Raises OSError; the file is left all the same."""
        file, self._file = self._file, -1
        if file >= 0:
            # Its number may be another file's from now on, even if this fails.
            os.close(file)


@dataclass(eq=False, repr=False)
class KeptLocks:
    """Keeps no locks, for a store in memory."""

    changed: dict[LockChanges, None] = field(default_factory=dict)
    """Queues with changes that are not written yet."""

    def changes_of(self, queue: int) -> LockChanges | None:
        """What notes the changes of a queue, by its number in the journal; None if they are not kept."""
        return None

    def before(self, queue: int) -> Sequence[KeptLock]:
        """The locks of a queue before the start, in the order of their sequences."""
        return ()

    def write(self, now_ms: int) -> None:
        """Writes the changes; called at the end of a step."""

    def begin(self, loop: asyncio.AbstractEventLoop, locks: Locks, now_ms: int) -> None:
        """Begins a new file with the present locks; those before the start are forgotten."""

    def close(self, now_ms: int) -> None:
        """Writes the locks of an orderly end."""


class FileLocks(KeptLocks):
    """Locks in a file of the shard's directory.

    A file that can't be used is logged, and its locks have ended: messages that were locked come again.

    Args:
        directory: the shard's directory.
        marks: the delivery marks in the same directory.
    """

    def __init__(self, directory: str, marks: FileMarks) -> None:
        super().__init__()
        self._path = os.path.join(directory, FILE)
        self._boot_id, self._token = marks.boot_id, marks.token
        self._present: OpenFile | None = None
        """The file of the present process; None if there is none, or changes are missing from it."""
        self._new: OpenFile | None = None
        """Takes its place when it has all locks."""
        self._left: list[OpenFile] = []
        """Files that are still to be closed."""
        self._rewrite_at = 0
        """Size from which the file is written anew."""
        self._worker: Worker | None = None
        self._writing = False
        self._failed_ms: int | None = None
        """When the file could not be written; None if it could."""
        self._pause_ms = LOCK_FILE_PAUSE_MS
        self._found: dict[int, list[KeptLock]] = {}
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("%s can't be read, so the locks of messages have ended: %s", self._path, error)
            return
        self._read(data, marks.former_token)

    def _read(self, data: bytes, token: bytes) -> None:
        why = self._unusable(data, token)
        if why:
            log.warning("%s is not used, and the locks of messages have ended: %s", self._path, why)
            return
        found = FoundLocks()
        at, written_ms = _CHUNKS_AT, 0
        try:
            while at + _CHUNK.size <= len(data):
                size, checksum, time_ms = _CHUNK.unpack_from(data, at)
                end = at + _CHUNK.size + size
                if end > len(data):
                    # The process was killed while it wrote.
                    break
                if crc32(data[at + 8 : end]) != checksum:
                    raise ValueError("the checksum does not match")
                found.apply(data[at + _CHUNK.size : end])
                at, written_ms = end, time_ms
        except (ValueError, struct.error, KeyError) as error:
            log.error("%s is damaged at %d, so the locks of messages have ended: %r", self._path, at, error)
            return
        self._found = found.after(written_ms)

    def _unusable(self, data: bytes, token: bytes) -> str:
        """Why a file can't be used; empty if it can."""
        if len(data) < _CHUNKS_AT or not data.startswith(_MAGIC):
            return f"expected a file of locks, found {len(data)} other bytes"
        _, version, state, boot_id, found = HEAD.unpack_from(data)
        if version != _VERSION:
            return f"expected version {_VERSION}, found {version}: start the LightRail that has written it"
        if found != token or not any(token):
            return "it is not of the last start of this shard"
        if state != _CLOSED and boot_id != self._boot_id:
            return "the machine has crashed since, and the last changes may be missing"
        return ""

    # --- see KeptLocks ----------------------------------------------------------------------------------

    def changes_of(self, queue: int) -> LockChanges | None:
        return LockChanges(queue, self.changed)

    def before(self, queue: int) -> Sequence[KeptLock]:
        return self._found.get(queue, ())

    def write(self, now_ms: int) -> None:
        files = self._files
        for changes in self.changed:
            for change in changes.take():
                for each in files:
                    each.entries.add(changes.queue, change)
        self.changed.clear()
        for each in files:
            if len(each.entries.data) > LOCK_BYTES_GATHERED_MAX:
                self._leave()
        self._submit(now_ms)

    def begin(self, loop: asyncio.AbstractEventLoop, locks: Locks, now_ms: int) -> None:
        self._found = {}
        self._locks = locks
        self._make(_OPEN, now_ms)
        self._worker = Worker(loop, "locks")

    def close(self, now_ms: int) -> None:
        if self._worker is None:
            return
        self._worker.close()
        self._worker = None
        self._make(_CLOSED, now_ms)
        self._leave()
        with suppress(OSError):
            self._close_left()

    # --- writing ----------------------------------------------------------------------------------------

    @property
    def _files(self) -> list[OpenFile]:
        present, new = self._present, self._new
        if new is None:
            return [] if present is None else [present]
        return [new] if present is None else [present, new]

    def _make(self, state: int, now_ms: int) -> None:
        """Makes a file with all locks at once, when the process begins or ends."""
        for changes in self.changed:
            # The locks are as these leave them.
            list(changes.take())
        self.changed.clear()
        if self._new is not None:
            self._left.append(self._new)
        new = self._new = OpenFile(self._locks())
        while not new.gather():
            pass
        try:
            self._perform([(new, new.entries.take())], new, state, now_ms)
        except OSError as error:
            self._leave()
            self._failed(error, now_ms)
        else:
            self._replace(new)

    def _leave(self) -> None:
        """Uses the files no longer, as changes are missing from them."""
        self._left += self._files
        self._present = self._new = None

    def _replace(self, new: OpenFile) -> None:
        if self._present is not None:
            self._left.append(self._present)
        self._present, self._new = new, None
        self._rewrite_at = max(LOCK_FILE_BYTES_MIN, 2 * new.size)

    def _submit(self, now_ms: int) -> None:
        if self._worker is None or self._writing:
            return
        if self._failed_ms is not None and 0 <= now_ms - self._failed_ms < self._pause_ms:
            return
        present, new = self._present, self._new
        if new is None and (present is None or present.size > self._rewrite_at):
            new = self._new = OpenFile(self._locks())
        elif new is None and present is not None and not (present.entries.data or self._left):
            return
        whole = new if new is not None and new.gather() else None
        data = [(each, each.entries.take()) for each in self._files if each.entries.data]
        self._writing = True
        work = partial(self._perform, data, whole, _OPEN, now_ms)
        self._worker.submit(work, partial(self._written, whole, now_ms))

    def _written(self, whole: OpenFile | None, now_ms: int, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._leave()
            self._failed(error, now_ms)
            return
        if self._failed_ms is not None:
            log.warning("%s can be written again", self._path)
        self._failed_ms, self._pause_ms = None, LOCK_FILE_PAUSE_MS
        if whole is not None and whole is self._new:
            self._replace(whole)
        # Changes since the last step come before the locks that are gathered next.
        self.write(now_ms)

    def _failed(self, error: BaseException, now_ms: int) -> None:
        if self._failed_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, LOCK_FILE_PAUSE_MS_MAX)
        else:
            log.error("%s can't be written, so locks end with the next restart: %s", self._path, error)
        self._failed_ms = now_ms

    # --- in the thread ----------------------------------------------------------------------------------

    def _perform(
        self, data: list[tuple[OpenFile, bytes]], whole: OpenFile | None, state: int, now_ms: int
    ) -> None:
        """Appends entries to files, and lets a new one that has all take the place of the present one.

        Raises OSError: there is no file.
        """
        try:
            self._close_left()
            if self._present is None:
                # Without the later changes it would have locks that have ended. A new one may be begun.
                self._remove(self._path)
            for file, entries in data:
                if not file.is_open:
                    self._open(file, state)
                file.append(_chunk(entries, now_ms))
            if whole is not None:
                if not whole.is_open:
                    self._open(whole, state)
                if state == _CLOSED:
                    whole.sync()
                os.rename(f"{self._path}.new", self._path)
        except OSError:
            self._remove(self._path, f"{self._path}.new")
            raise

    def _remove(self, *paths: str) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _open(self, file: OpenFile, state: int) -> None:
        head = HEAD.pack(_MAGIC, _VERSION, state, self._boot_id, self._token).ljust(_CHUNKS_AT, b"\0")
        file.open(f"{self._path}.new", head)

    def _close_left(self) -> None:
        while self._left:
            self._left.pop().close()


def _chunk(entries: bytes, now_ms: int) -> bytes:
    """A chunk; one without entries is empty."""
    if not entries:
        return b""
    rest = now_ms.to_bytes(8, "little") + entries
    return _CHUNK.pack(len(entries), crc32(rest), now_ms) + entries
