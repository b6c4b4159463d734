"""A store in one SQLite file, for small installations: slower than the journal, easy to copy and inspect.

Messages are stored as the Append records of the journal, checksum included, and a table has the sequences
that are still in a queue. Locations count rows: `offset` is the number of the first record, `length` how
many. SQLite reuses the space of deleted rows, so this store needs no cleaning.
"""

import errno
import os
import sqlite3
import threading
from dataclasses import dataclass
from typing import Final

from lightrail.journal.layout import FRONT_SIZE
from lightrail.journal.record import REWRITTEN, SPILLED
from lightrail.model import limits
from lightrail.shard.journal import store
from lightrail.shard.journal.batches import columns, read_rows
from lightrail.shard.journal.commit import Entry
from lightrail.shard.journal.memory import NumberedStore
from lightrail.shard.journal.record import Append, Record, encode_append_head
from lightrail.shard.journal.sqlite_jobs import Job, append_job, small_job, transact
from lightrail.shard.journal.sqlite_opening import forget_cached, load_runs, load_tables, prepare
from lightrail.shard.journal.tables import Tables
from lightrail.shard.queue.values.runs import Location, Run

STORE_RESERVE_BYTES: Final[int] = limits.SEGMENT_BYTES
"""Free space that SQLite's store leaves for settlements when the disk runs full."""


@dataclass(slots=True, eq=False, repr=False)
class SqliteCommit:
    """See `Commit` in store.py."""

    _store: "SqliteStore"
    jobs: list[Job]
    messages: int
    synced: bool
    last_lsn: int
    sync_seconds: float = 0.0

    @property
    def records(self) -> int:
        """See `Commit.records`."""
        return len(self.jobs)

    def perform(self) -> None:
        """See `Commit.perform`: one transaction."""
        self.sync_seconds = self._store.write(self)


class SqliteStore(NumberedStore):
    """See `Store` in store.py. `is_group_open` has no effect: a commit is one transaction of the database."""

    outlives: Final = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        cluster: str = "",
        shard: int = 0,
        *,
        producers_max: int = limits.PRODUCERS_MAX,
        reserve_bytes: int = STORE_RESERVE_BYTES,
    ) -> None:
        super().__init__(1, "the store has not been recovered yet: call recover() first")
        self._path = os.fspath(path)
        self._cluster = cluster
        self._shard = shard
        self._reserve_bytes = reserve_bytes
        self._tables = Tables(producers_max)
        self._connection: sqlite3.Connection
        self._lock = threading.Lock()  # Guards the connection, which two threads use for commits and reads.
        self._jobs: list[Job] = []
        self._waiting: dict[int, Entry] = {}
        self._space_asked_ms = -limits.FULL_RETRY_MS
        self._full = False

    # --- opening and closing ---------------------------------------------------------------------------

    def recover(self, memory_bytes: int, now_ms: int = 0) -> store.Recovered:
        """See `Store.recover`."""
        directory = os.path.dirname(os.path.abspath(self._path))
        os.makedirs(directory, exist_ok=True)
        for path in (self._path, f"{self._path}-wal"):
            forget_cached(path)
        self._connection = sqlite3.connect(
            self._path, timeout=0.5, isolation_level=None, check_same_thread=False
        )
        try:
            return self._recover(memory_bytes)
        except sqlite3.OperationalError as error:
            self._connection.close()
            if "locked" in str(error):
                raise store.StoreRefusedError(
                    f"expected to be the only process with {self._path}, found it locked by another process: "
                    "stop that process, or give this shard its own file"
                ) from error
            raise
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise store.JournalDamagedError(self._path, 0, str(error)) from error
        except BaseException:
            self._connection.close()
            raise

    def _recover(self, memory_bytes: int) -> store.Recovered:
        tables = self._tables
        meta = prepare(self._connection, self._path, self._cluster, self._shard)
        load_tables(self._connection, tables)
        tables.epoch = int(meta["epoch"])
        self.lsn, self._next = int(meta["lsn"]), int(meta["next"])
        self.failure = ""
        share = memory_bytes // max(1, len(tables.queues))
        queues = [
            store.RecoveredQueue(
                number,
                entry.name,
                entry.policy,
                entry.next_sequence,
                load_runs(self._connection, number, share, self._read_location, self._live),
                tables.ids_of(number),
                tables.termini.of(number),
                tables.receivers.of(number),
            )
            for number, entry in tables.queues.items()
        ]
        sealed = meta["sealed"] == "1"
        parts = dict(tables.parts)
        found = store.Recovered(queues, dict(tables.producers), tables.epoch, self.lsn, sealed, parts=parts)
        found.transactions = tables.open_transactions
        return found

    def close(self, now_ms: int = 0) -> None:
        """See `Store.close`."""
        if self.failure.startswith("it "):
            return
        try:
            if not self.failure and self.pending:
                commit = self.begin_commit()
                commit.perform()
                self.end_commit(commit)
        finally:
            self.failure = "the store is closed"
            with self._lock:
                self._connection.close()

    # --- appending -------------------------------------------------------------------------------------

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        """See `Store.append`."""
        if self.failure:
            raise self._broken()
        lsn = self.lsn + 1
        location = None
        if isinstance(record, Append):
            location = self._append(record, lsn, now_ms)
        else:
            self._jobs.append(small_job(record, self._tables, lsn, now_ms))
        self.lsn = lsn
        self._sync_wanted |= store.needs_sync(record)
        return location

    def reserve(self, size: int, now_ms: int = 0) -> None:
        """See `Store.reserve`: a commit writes all gathered records, or fails and ends the store."""
        if self.failure:
            raise self._broken()
        self._find_room(now_ms)

    def _append(self, record: Append, lsn: int, now_ms: int) -> Location:
        for queue, _ in record.targets:
            self._tables.check_declared(queue)
        size, ends, blob = columns(record.batch, record.first, record.last)
        if not record.flags & REWRITTEN or record.spills:
            self._find_room(now_ms)
        rest = encode_append_head(record, lsn, 0, now_ms, size)
        entry: Entry = (FRONT_SIZE + len(rest) + memoryview(ends).nbytes + size, rest, ends, blob)
        location = self._located(record, size)
        number, count = location.offset, record.last - record.first
        # Only numbers of batches whose messages a restart recovers are kept.
        producer = 0 if record.flags & SPILLED else record.producer
        self._waiting[number] = entry
        self._jobs.append(append_job(record, number, entry, producer, lsn, size))
        for queue, first in record.targets:
            table = self._tables.queues[queue]
            table.next_sequence = max(table.next_sequence, first + count)
        if producer:
            self._tables.produced(producer, record.number)
        return location

    def _find_room(self, now_ms: int) -> None:
        """Raises StoreFullError while less than the reserve is free; checks every FULL_RETRY_MS at most."""
        if not self._space_asked_ms <= now_ms < self._space_asked_ms + limits.FULL_RETRY_MS:
            self._space_asked_ms = now_ms
            try:
                figures = os.statvfs(os.path.dirname(os.path.abspath(self._path)))
            except OSError as error:
                self._refuse(error)
                raise store.StoreBrokenError(f"the store accepts no records: {self.failure}") from error
            self._full = figures.f_bavail * figures.f_frsize < self._reserve_bytes
        if self._full:
            raise store.StoreFullError(self._lacks_room())

    def _lacks_room(self) -> str:
        return (
            f"expected {self._reserve_bytes} free bytes beside {self._path}, found fewer: free space on "
            "the disk, or let receivers settle messages; then senders continue without a restart"
        )

    # --- committing ------------------------------------------------------------------------------------

    @property
    def no_room(self) -> str:
        """See `Store.no_room`."""
        return self._lacks_room() if self._full else ""

    @property
    def pending(self) -> bool:
        """See `Store.pending`."""
        return bool(self._jobs)

    def begin_commit(self) -> SqliteCommit:
        """See `Store.begin_commit`."""
        commit = self._begin(SqliteCommit(self, self._jobs, self._messages, self._sync_wanted, self.lsn))
        self._jobs = []
        return commit

    def write(self, commit: SqliteCommit) -> float:
        """Called by the commit thread: makes one transaction; returns the seconds of its commit.

        Raises:
            OSError: SQLite could not write it.
        """
        with self._lock:
            try:
                return transact(
                    self._connection,
                    commit.jobs,
                    commit.last_lsn,
                    self._tables.producers_max,
                    synced=commit.synced,
                )
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                number = errno.ENOSPC if "full" in str(error) else errno.EIO
                raise OSError(number, f"SQLite could not write {self._path}: {error}") from error

    def end_commit(self, commit: store.Commit) -> None:
        """See `Store.end_commit`."""
        assert isinstance(commit, SqliteCommit)
        super().end_commit(commit)
        usage = self._usage
        for job in commit.jobs:
            if job[0] == "append":
                del self._waiting[job[1][0]]
                usage.written_bytes += job[2][0]
        usage.syncs += commit.synced
        usage.sync_seconds += commit.sync_seconds

    def fail_commit(self, commit: store.Commit, error: BaseException) -> None:
        """See `Store.fail_commit`."""
        assert commit is self._in_flight, "the commit that was begun"
        self._in_flight = None
        self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        self.failure = f"writing to the disk failed ({error}); restart the shard when the disk works again"

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, location: Location, queue: int, first: int, last: int) -> list[Run]:
        """See `Store.read`."""
        try:
            return self._read_location(location, queue, first, last)
        except sqlite3.DatabaseError as error:
            raise store.JournalDamagedError(self._path, location.offset, str(error)) from error

    def _read_location(self, location: Location, queue: int, first: int, last: int) -> list[Run]:
        return read_rows(
            self._connection, self._lock, self._waiting, self._path, location, queue, first, last
        )

    # --- space -----------------------------------------------------------------------------------------

    def _forget(self, first: int, last: int) -> None:
        # This only deletes rows of spilled messages: a Settle deletes the other rows.
        self._jobs.append(("forget", first, last))

    def usage(self) -> store.Usage:
        """See `Store.usage`."""
        usage = self._usage
        usage.segments = 1
        usage.total_bytes = sum(
            os.path.getsize(path) for path in (self._path, f"{self._path}-wal") if os.path.exists(path)
        )
        usage.live_bytes = sum(self._live.values())
        usage.full = self._full
        usage.broken = self.failure
        return usage
