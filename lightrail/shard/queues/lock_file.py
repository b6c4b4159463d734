"""Lock file: the file with the locks that outlive the process of their shard (docs/formats/locks.md).

A separate thread appends the changes of each step; no delivery waits for it, so a crash loses the locks of
the last moment, whose messages come again. The file is written anew when it has much more than the present
locks. It belongs to one start of the shard: the delivery marks beside it have the token of the same start,
and a file of any other start is not used.
"""

import asyncio
import errno
import logging
import os
import struct
from collections.abc import Callable, Iterable, Sequence
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
"""The longest such time: to gather very many locks takes a second."""

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

Locks = Callable[[], Iterable[tuple[int, KeyedLock]]]
"""Returns the present locks that outlive the process, with the numbers of their queues."""


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
        self._entries = LockEntries()
        self._file = -1
        self._size = 0
        self._rewrite_at = 0
        """Size from which the file is written anew."""
        self._worker: Worker | None = None
        self._writing = False
        self._is_outdated = False
        """Whether changes are missing from the file and from `_entries`."""
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
        for changes in self.changed:
            for change in changes.take():
                self._entries.add(changes.queue, change)
        self.changed.clear()
        if len(self._entries.data) > LOCK_BYTES_GATHERED_MAX:
            self._entries = LockEntries()
            self._is_outdated = True
        self._submit(now_ms)

    def begin(self, loop: asyncio.AbstractEventLoop, locks: Locks, now_ms: int) -> None:
        self._found = {}
        self._locks = locks
        try:
            self._make(_OPEN, self._all(), now_ms)
        except OSError as error:
            self._failed(error, now_ms)
        self._worker = Worker(loop, "locks")

    def close(self, now_ms: int) -> None:
        if self._worker is None:
            return
        self._worker.close()
        self._worker = None
        try:
            self._make(_CLOSED, self._all(), now_ms)
        except OSError as error:
            self._failed(error, now_ms)
        else:
            self._leave()

    # --- writing ----------------------------------------------------------------------------------------

    def _all(self) -> bytes:
        """Entries of the present locks; those that wait are among them, and are forgotten."""
        for changes in self.changed:
            list(changes.take())
        self.changed.clear()
        self._entries, self._is_outdated = LockEntries(), False
        for queue, lock in self._locks():
            self._entries.add(queue, lock)
        return self._entries.take()

    def _submit(self, now_ms: int) -> None:
        if self._worker is None or self._writing:
            return
        if self._failed_ms is not None and 0 <= now_ms - self._failed_ms < self._pause_ms:
            return
        if self._file < 0 or self._is_outdated or self._size > self._rewrite_at:
            work = partial(self._make, _OPEN, self._all(), now_ms)
        elif self._entries.data:
            work = partial(self._append, self._entries.take(), now_ms)
        else:
            return
        self._writing = True
        self._worker.submit(work, partial(self._written, now_ms))

    def _written(self, now_ms: int, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._failed(error, now_ms)
            return
        if self._failed_ms is not None:
            log.warning("%s can be written again", self._path)
        self._failed_ms, self._pause_ms = None, LOCK_FILE_PAUSE_MS
        self._submit(now_ms)

    def _failed(self, error: BaseException, now_ms: int) -> None:
        if self._failed_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, LOCK_FILE_PAUSE_MS_MAX)
        else:
            log.error("%s can't be written, so locks end with the next restart: %s", self._path, error)
        self._failed_ms = now_ms

    # --- in the thread ----------------------------------------------------------------------------------

    def _make(self, state: int, entries: bytes, now_ms: int) -> None:
        """Makes a new file with these entries. Raises OSError: there is none."""
        head = HEAD.pack(_MAGIC, _VERSION, state, self._boot_id, self._token).ljust(_CHUNKS_AT, b"\0")
        partial_path = f"{self._path}.new"
        try:
            self._leave()
            self._file = os.open(partial_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._size = 0
            self._put(head + _chunk(entries, now_ms))
            if state == _CLOSED:
                os.fdatasync(self._file)
            os.rename(partial_path, self._path)
        except OSError:
            self._drop()
            raise
        self._rewrite_at = max(LOCK_FILE_BYTES_MIN, 2 * self._size)

    def _append(self, entries: bytes, now_ms: int) -> None:
        try:
            self._put(_chunk(entries, now_ms))
        except OSError:
            self._drop()
            raise

    def _put(self, data: bytes) -> None:
        written = os.pwrite(self._file, data, self._size)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")
        self._size += len(data)

    def _drop(self) -> None:
        """Removes the file: without the later changes it would have locks that have ended."""
        with suppress(OSError):
            self._leave()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _leave(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            # Its number may be another file's from now on, even if this fails.
            os.close(file)


def _chunk(entries: bytes, now_ms: int) -> bytes:
    """A chunk; one without entries is empty."""
    if not entries:
        return b""
    rest = now_ms.to_bytes(8, "little") + entries
    return _CHUNK.pack(len(entries), crc32(rest), now_ms) + entries
