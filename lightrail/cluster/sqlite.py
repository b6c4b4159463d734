"""The coordinator in one SQLite file, shared by all processes of one machine; drawn in docs/formats/.

Calls run in one separate thread, so that a sync of the disk never stops the loop. Writers lock the file
before they read, so that their reads stay valid until the write. `news` reads on the loop, with a separate
connection: in SQLite's write-ahead mode readers never wait, and `PRAGMA data_version` shows without reading
the file whether another connection has written.
"""

import asyncio
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write, holds
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.keyed import KeyedCoordinator

FILE_NAME: Final = "coordinator.sqlite"
APPLICATION_ID: Final = 0x4C52434F
"""``LRCO``, in the header of the file (sqlite.org/fileformat2.html, offset 68)."""
VERSION: Final = 3
BUSY_TIME_S: Final = 5.0
"""How long a call waits for another process's write."""
DELETED_KEPT_MS: Final = 3_600_000
"""How long a deletion is stored; a process that has not read since then reads all entries again."""
DELETED_PRUNED_EVERY: Final = 1_024
"""Transactions between two removals of old deletions."""

SCHEMA: Final = """
CREATE TABLE identity (cluster_id TEXT NOT NULL, secret BLOB NOT NULL) STRICT;
CREATE TABLE revisions (newest INTEGER NOT NULL, forgotten INTEGER NOT NULL) STRICT;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value TEXT, created INTEGER NOT NULL, revision INTEGER NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_revision ON entries (revision);
"""
ENTRY: Final = "key, value, created, revision"
Answer = TypeVar("Answer")


class SqliteCoordinator(KeyedCoordinator):
    """See the port for its methods. Create it with ``await SqliteCoordinator.open(path)``."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coordinator")
        self._file: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._data_version = -1
        self._newest = -1

    @classmethod
    async def open(cls, path: str) -> "SqliteCoordinator":
        """Open the file, or create it, readable only by its owner. Raises CoordinatorError."""
        coordinator = cls(path)
        try:
            await coordinator._call(coordinator._open)
        except BaseException:
            coordinator._thread.shutdown(wait=False)
            raise
        return coordinator

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        await self._call(self._close)
        self._thread.shutdown()

    async def cluster_id(self) -> str:
        return await self._call(lambda: str(self._one("SELECT cluster_id FROM identity")))

    async def secret(self) -> bytes:
        return await self._call(lambda: bytes(self._one("SELECT secret FROM identity")))

    async def _commit(self, writes: Sequence[Write]) -> int:
        def write() -> int:
            with self._transaction() as file:
                revision = int(self._one("SELECT newest FROM revisions")) + 1
                file.execute("UPDATE revisions SET newest = ?", (revision,))
                now_ms = time.time_ns() // 1_000_000
                for each in writes:
                    self._write(file, each, revision, now_ms)
                if revision % DELETED_PRUNED_EVERY == 0:
                    self._forget_deletions(file, now_ms - DELETED_KEPT_MS)
            return revision

        started = time.perf_counter()
        revision = await self._call(write)
        self.counts.wrote(time.perf_counter() - started)
        self._tell_news()
        return revision

    async def entry(self, key: str) -> Entry | None:
        def read() -> Entry | None:
            query = f"SELECT {ENTRY} FROM entries WHERE key = ? AND value IS NOT NULL"
            row = self._connection.execute(query, (key,)).fetchone()
            return Entry(*row) if row else None

        return await self._call(read)

    async def current(self, key: str) -> Entry | None:
        return await self.entry(key)

    async def entries(self, prefix: str) -> list[Entry]:
        def read() -> list[Entry]:
            query = (
                f"SELECT {ENTRY} FROM entries WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key"
            )
            rows = self._connection.execute(query, (prefix, prefix + chr(0x10FFFF)))
            return [Entry(*row) for row in rows]

        return await self._call(read)

    def _changes(self, since: int) -> News | None:
        if self._reader is None:
            # Autocommit: each query sees the newest state, which an open transaction would not.
            self._reader = sqlite3.connect(self._path, timeout=BUSY_TIME_S, isolation_level=None)
        reader = self._reader
        try:
            (version,) = reader.execute("PRAGMA data_version").fetchone()
            self.counts.heard()
            if version == self._data_version and since == self._newest:
                return None
            reader.execute("BEGIN")
            try:
                newest, forgotten = reader.execute("SELECT newest, forgotten FROM revisions").fetchone()
                whole = since == 0 or since < forgotten
                if whole:
                    query = f"SELECT {ENTRY} FROM entries WHERE value IS NOT NULL ORDER BY revision"
                    rows = reader.execute(query)
                else:
                    query = f"SELECT {ENTRY} FROM entries WHERE revision > ? ORDER BY revision"
                    rows = reader.execute(query, (since,))
                entries = [Entry(*row) for row in rows]
            finally:
                reader.execute("COMMIT")
        except sqlite3.Error as error:
            self.counts.failed()
            raise CoordinatorError(f"the coordinator's file {self._path}: {error}") from error
        self._data_version, self._newest = version, newest
        return News(newest, entries, whole) if newest != since else None

    # --- in the coordinator's thread ------------------------------------------------------------------------

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            self.counts.failed()
            raise CoordinatorError(f"the coordinator's file {self._path}: {error}") from error
        self.counts.heard()
        return answer

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._file is None:
            raise CoordinatorError(f"the coordinator's file {self._path} is closed")
        return self._file

    def _one(self, query: str) -> Any:
        return self._connection.execute(query).fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        file = self._connection
        file.execute("BEGIN IMMEDIATE")
        try:
            yield file
        except BaseException:
            file.execute("ROLLBACK")
            raise
        file.execute("COMMIT")

    def _open(self) -> None:
        # Created here, because SQLite would make it readable for all users under the usual umask.
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise CoordinatorError(f"the coordinator's file {self._path}: {error.strerror}") from None
        file = sqlite3.connect(self._path, timeout=BUSY_TIME_S, isolation_level=None)
        self._file = file
        try:
            file.execute("PRAGMA journal_mode = WAL")
            # A lost placement would hide the messages of its queue: every commit is synced.
            file.execute("PRAGMA synchronous = FULL")
            self._prepare()
        except BaseException:
            self._close()
            raise

    def _prepare(self) -> None:
        if self._one("PRAGMA application_id") == 0:
            with self._transaction() as file:
                # Checked again, now under the lock: another process may have been faster.
                if self._one("SELECT count(*) FROM sqlite_schema") == 0:
                    self._make(file)
        application, version = self._one("PRAGMA application_id"), self._one("PRAGMA user_version")
        if application != APPLICATION_ID:
            raise CoordinatorError(f"{self._path} is a SQLite file of another program: move it away")
        if version != VERSION:
            raise CoordinatorError(
                f"{self._path} has format version {version}, this program reads {VERSION}: "
                "use the version of LightRail that wrote it"
            )

    def _make(self, file: sqlite3.Connection) -> None:
        for statement in SCHEMA.split(";"):
            file.execute(statement)
        file.execute("INSERT INTO identity VALUES (?, ?)", (secrets.token_hex(16), secrets.token_bytes(32)))
        file.execute("INSERT INTO revisions VALUES (0, 0)")
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute(f"PRAGMA user_version = {VERSION}")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, file: sqlite3.Connection, write: Write, revision: int, now_ms: int) -> None:
        found = file.execute("SELECT value, created, revision FROM entries WHERE key = ?", (write.key,))
        value, created, current = found.fetchone() or (None, 0, 0)
        if not holds(write, 0 if value is None else current, value):
            raise ConflictError(write.key)
        if write.is_check:
            return
        if value is None:
            if write.value is None:
                return
            created = revision
        file.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)",
            (write.key, write.value, created, revision, now_ms),
        )

    def _forget_deletions(self, file: sqlite3.Connection, before_ms: int) -> None:
        old = "value IS NULL AND at_ms < ?"
        newest = file.execute(f"SELECT max(revision) FROM entries WHERE {old}", (before_ms,)).fetchone()[0]
        if newest is not None:
            file.execute("UPDATE revisions SET forgotten = max(forgotten, ?)", (newest,))
            file.execute(f"DELETE FROM entries WHERE {old}", (before_ms,))
