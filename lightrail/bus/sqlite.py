"""A store in SQLite: tables beside those of the application, in the same file and the same transactions.

Commits of sagas that run at the same time share one sync of the disk. docs/formats/bus.md has the tables.
"""

import asyncio
import fcntl
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from lightrail.bus.context import Context
from lightrail.bus.messages import Sending
from lightrail.bus.store import (
    INBOX_S,
    PRUNE_EVERY,
    PRUNED_MAX,
    AlreadyHandledError,
    ConflictError,
    SagaState,
    Step,
    StoreError,
    Waiting,
    first_version,
)
from lightrail.transport.envelope import decode_head, encode_head
from lightrail.transport.threads import Threads

BUSY_S: Final = 30.0
"""How long a transaction waits for that of another process."""
STEPS_MAX: Final = 500
"""Most steps of one commit."""
TABLES: Final = (
    """create table if not exists lightrail_outbox (
        sequence integer primary key autoincrement,
        address text not null, type text, head text not null, body blob not null
    )""",
    """create table if not exists lightrail_refused (
        sequence integer primary key,
        address text not null, type text, head text not null, body blob not null,
        refused_at real not null, reason text not null
    )""",
    """create table if not exists lightrail_inbox (
        handler text not null, message text not null, handled_at real not null,
        primary key (handler, message)
    ) without rowid""",
    "create index if not exists lightrail_inbox_age on lightrail_inbox (handled_at)",
    """create table if not exists lightrail_sagas (
        saga text not null, key text not null, version integer not null, state text not null,
        changed_at real not null,
        primary key (saga, key)
    ) without rowid""",
)


class SqliteStore:
    """A store in a file of SQLite.

    Args:
        path: of the application's database, or of a separate one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Final = Path(path)
        self._threads = Threads(1, "lightrail-store")
        self._database: sqlite3.Connection | None = None
        self._application: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()
        self._lock: IO[bytes] | None = None
        self._steps: list[tuple[Step, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None
        self._commits = itertools.count()
        self.arrived: asyncio.Event | None = None
        """Set when this process has added messages to the outbox."""

    async def open(self) -> None:
        """Creates missing tables. Raises StoreError."""
        if self._database is None:
            self._database = await self._threads.call(self._connected)
            self.arrived = asyncio.Event()

    async def close(self) -> None:
        """Closes the file after the commits under way."""
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        database, self._database = self._database, None
        application, self._application = self._application, None
        for each in (database, application):
            if each is not None:
                await self._threads.call(each.close)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- transactions of the application -----------------------------------------------------------------

    async def transaction(self, context: Context) -> AsyncIterator[sqlite3.Connection]:
        """A dependency: the connection of a transaction that is committed when the handler has succeeded.

            @bus.handler
            def bill(order: OrderPlaced, database: Connection = Depends(store.transaction)): ...

        The same commit writes the handler's messages into the outbox, and the handled message into the inbox:
        the handler is not called for a message that was handled before. Transactions of one process wait for
        each other, since SQLite has one writer at a time.
        """
        message = context.envelope.id
        async with self._turn:
            database = self._application
            if database is None:
                database = self._application = await self._threads.call(self._connected)
            try:
                await self._threads.call(database.execute, "begin immediate")
                if message is not None and await self._threads.call(
                    _is_handled, database, context.handler, message
                ):
                    raise AlreadyHandledError(f"{message} was handled by {context.handler} before")
                yield database
                step = Step(context.handler, message, context.sent)
                await self._threads.call(_write, database, step)
                await self._threads.call(self._prune, database)
                await self._threads.call(database.execute, "commit")
            except BaseException as error:
                try:
                    with suppress(sqlite3.Error):
                        await self._threads.call(database.execute, "rollback")
                finally:
                    if not isinstance(error, Exception):
                        # What a cancelled handler still executes, such as in a thread of its own, must not be
                        # committed by itself, nor with the next transaction.
                        self._application = None
                        await self._threads.call(database.close)
                raise
        self._has_sent(context.sent)
        context.sent.clear()

    transaction.is_transaction = True  # type: ignore[attr-defined]

    # --- steps -------------------------------------------------------------------------------------------

    async def commit(self, step: Step) -> None:
        """Writes all of a step or nothing; steps that arrive during a commit share the next one."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps.append((step, done))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit_all())
        await done
        self._has_sent(step.sendings)

    async def _commit_all(self) -> None:
        while self._steps:
            batch, self._steps = self._steps[:STEPS_MAX], self._steps[STEPS_MAX:]
            results: Sequence[Exception | None]
            try:
                # Not during a transaction of the application, whose commit needs the thread.
                async with self._turn:
                    results = await self._threads.call(self._commit_steps, [step for step, _ in batch])
            except Exception as error:
                results = [StoreError(f"{self.path}: could not be written: {error}")] * len(batch)
            for (_, done), result in zip(batch, results, strict=True):
                if done.done():
                    continue
                if result is None:
                    done.set_result(None)
                else:
                    done.set_exception(result)

    def _commit_steps(self, steps: Sequence[Step]) -> list[Exception | None]:
        database = self._opened
        results: list[Exception | None] = []
        database.execute("begin immediate")
        try:
            for step in steps:
                database.execute("savepoint step")
                try:
                    _write(database, step)
                    results.append(None)
                except (AlreadyHandledError, ConflictError) as error:
                    database.execute("rollback to step")
                    results.append(error)
                database.execute("release step")
            self._prune(database)
            database.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                database.execute("rollback")
            raise
        return results

    async def is_handled(self, handler: str, message: str) -> bool:
        """Whether the inbox has a message of a handler."""
        return await self._threads.call(_is_handled, self._opened, handler, message)

    async def saga(self, saga: str, key: str) -> SagaState | None:
        """A saga, or None where there is none."""

        def read() -> SagaState | None:
            row = self._opened.execute(
                "select state, version from lightrail_sagas where saga = ? and key = ?", (saga, key)
            ).fetchone()
            return None if row is None else SagaState(*row)

        return await self._threads.call(read)

    # --- forwarding --------------------------------------------------------------------------------------

    async def forwards(self) -> bool:
        """Whether this process has the lock of the file, and so forwards the outbox."""
        if self._lock is None:
            lock = open(f"{self.path}.outbox-lock", "ab")  # noqa: SIM115, ASYNC230 - open while it forwards
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
        return True

    async def next(self, count: int) -> list[Waiting]:
        """The oldest messages of the outbox."""

        def read() -> list[Waiting]:
            rows = self._opened.execute(
                "select sequence, address, type, head, body from lightrail_outbox order by sequence limit ?",
                (count,),
            ).fetchall()
            return [
                Waiting(sequence, address, type, decode_head(head, body))
                for sequence, address, type, head, body in rows
            ]

        return await self._threads.call(read)

    async def remove(self, sequences: Sequence[int]) -> None:
        """Deletes messages that were forwarded."""

        def delete() -> None:
            rows = [(sequence,) for sequence in sequences]
            with self._opened as database:
                database.execute("begin immediate")
                database.executemany("delete from lightrail_outbox where sequence = ?", rows)

        await self._alone(delete)

    async def refuse(self, sequence: int, reason: str) -> None:
        """Sets aside a message that its address refuses."""

        def move() -> None:
            with self._opened as database:
                database.execute("begin immediate")
                database.execute(
                    "insert into lightrail_refused "
                    "select sequence, address, type, head, body, ?, ? from lightrail_outbox "
                    "where sequence = ?",
                    (time.time(), reason, sequence),
                )
                database.execute("delete from lightrail_outbox where sequence = ?", (sequence,))

        await self._alone(move)

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise StoreError(f"{self.path}: expected a store that is open: pass it to the bus as `store`")
        return self._database

    async def _alone(self, work: Callable[[], None]) -> None:
        """Calls a function that writes, not during a transaction of the application. Raises StoreError."""
        try:
            async with self._turn:
                await self._threads.call(work)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: could not be written: {error}") from error

    def _connected(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self.path, BUSY_S, isolation_level=None, check_same_thread=False)
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = full")
            for statement in TABLES:
                database.execute(statement)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: expected a database of SQLite: {error}") from error
        return database

    def _prune(self, database: sqlite3.Connection) -> None:
        """Deletes old entries of the inbox, with one of PRUNE_EVERY commits."""
        if next(self._commits) % PRUNE_EVERY == 0:
            database.execute(
                "delete from lightrail_inbox where (handler, message) in (select handler, message "
                "from lightrail_inbox where handled_at < ? order by handled_at limit ?)",
                (time.time() - INBOX_S, PRUNED_MAX),
            )

    def _has_sent(self, sendings: Sequence[Sending]) -> None:
        if sendings and self.arrived is not None:
            self.arrived.set()


def _is_handled(database: sqlite3.Connection, handler: str, message: str) -> bool:
    query = "select 1 from lightrail_inbox where handler = ? and message = ?"
    return database.execute(query, (handler, message)).fetchone() is not None


def _write(database: sqlite3.Connection, step: Step) -> None:
    """Writes a step within a transaction. Raises AlreadyHandledError or ConflictError."""
    now = time.time()
    if step.handler is not None and step.message is not None:
        try:
            row = (step.handler, step.message, now)
            database.execute(
                "insert into lightrail_inbox (handler, message, handled_at) values (?, ?, ?)", row
            )
        except sqlite3.IntegrityError:
            raise AlreadyHandledError(f"{step.message} was handled by {step.handler} before") from None
    if step.change is not None:
        _change(database, step, now)
    for sending in step.sendings:
        envelope = sending.envelope
        type = None if sending.type is None else sending.type.wire_name
        row_of = (sending.address, type, encode_head(envelope).decode(), envelope.body)
        database.execute(
            "insert into lightrail_outbox (address, type, head, body) values (?, ?, ?, ?)", row_of
        )


def _change(database: sqlite3.Connection, step: Step, now: float) -> None:
    change = step.change
    assert change is not None
    where = (change.saga, change.key, change.version)
    if change.version == 0 and change.state is not None:
        try:
            database.execute(
                "insert into lightrail_sagas (saga, key, version, state, changed_at) values (?, ?, ?, ?, ?)",
                (change.saga, change.key, first_version(), change.state, now),
            )
        except sqlite3.IntegrityError:
            raise ConflictError(f"{change.saga} {change.key} was begun meanwhile") from None
        return
    if change.version == 0:
        return
    if change.state is None:
        done = database.execute(
            "delete from lightrail_sagas where saga = ? and key = ? and version = ?", where
        )
    else:
        done = database.execute(
            "update lightrail_sagas set version = version + 1, state = ?, changed_at = ? "
            "where saga = ? and key = ? and version = ?",
            (change.state, now, *where),
        )
    if done.rowcount != 1:
        raise ConflictError(f"{change.saga} {change.key} was changed meanwhile")
