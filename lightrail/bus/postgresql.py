"""A store in PostgreSQL, by SQLAlchemy: tables beside those of the application, in the same transactions.

It needs the extra `postgresql`: pip install 'lightrail[postgresql]'. docs/formats/bus.md has the tables.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError

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

__all__ = ["PostgresqlStore"]

CONNECTIONS: Final = 8
"""Concurrent transactions; the engine's pool has to have one more connection, for the lock of the
forwarder."""
LOCK: Final = 0x4C52_4F42
"""Number of the advisory lock of the process that forwards the outbox."""

METADATA: Final = MetaData()
OUTBOX: Final = Table(
    "lightrail_outbox",
    METADATA,
    Column("sequence", BigInteger, Identity(), primary_key=True),
    Column("address", Text, nullable=False),
    Column("type", Text),
    Column("head", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
REFUSED: Final = Table(
    "lightrail_refused",
    METADATA,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("address", Text, nullable=False),
    Column("type", Text),
    Column("head", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("refused_at", Float, nullable=False),
    Column("reason", Text, nullable=False),
)
INBOX: Final = Table(
    "lightrail_inbox",
    METADATA,
    Column("handler", Text, primary_key=True),
    Column("message", Text, primary_key=True),
    Column("handled_at", Float, nullable=False),
)
INBOX_AGE: Final = Index("lightrail_inbox_age", INBOX.c.handled_at)
SAGAS: Final = Table(
    "lightrail_sagas",
    METADATA,
    Column("saga", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("changed_at", Float, nullable=False),
)
NARROW_VERSIONS: Final = text(
    "select 1 from pg_attribute where attrelid = to_regclass('lightrail_sagas') and attname = 'version' "
    "and atttypid = 'integer'::regtype"
)
"""Whether the table of sagas was made when versions began at 1."""

Value = TypeVar("Value")


class PostgresqlStore:
    """A store in a database of PostgreSQL.

    Args:
        engine: of SQLAlchemy, as create_engine("postgresql+psycopg://shop@localhost/shop").
    """

    def __init__(self, engine: Engine) -> None:
        if engine.dialect.name != "postgresql":
            raise StoreError(f"expected an engine of PostgreSQL, found one of {engine.dialect.name}")
        self._engine = engine
        self._threads = Threads(CONNECTIONS, "lightrail-store")
        self._lock: Connection | None = None
        self._commits = itertools.count()
        self.arrived: asyncio.Event | None = None
        """Set when this process has added messages to the outbox."""

    async def open(self) -> None:
        """Creates missing tables. Raises StoreError."""

        def make() -> None:
            with self._engine.begin() as connection:
                # Processes that start together create them one after the other.
                connection.execute(select(func.pg_advisory_xact_lock(LOCK + 1)))
                METADATA.create_all(connection)
                if connection.execute(NARROW_VERSIONS).one_or_none() is not None:
                    connection.execute(text("alter table lightrail_sagas alter column version type bigint"))

        await self._in_thread(make)
        self.arrived = asyncio.Event()

    async def close(self) -> None:
        """Lets another process forward; the application disposes of the engine."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(StoreError):
                await self._in_thread(_unlock, lock)

    # --- transactions of the application -----------------------------------------------------------------

    async def transaction(self, context: Context) -> AsyncIterator[Connection]:
        """A dependency: the connection of a transaction that is committed when the handler has succeeded.

            @bus.handler
            def bill(order: OrderPlaced, database: Connection = Depends(store.transaction)): ...

        The same commit writes the handler's messages into the outbox, and the handled message into the inbox:
        the handler is not called for a message that was handled before.
        """
        message = context.envelope.id
        connected: list[Connection] = []
        try:
            # The list keeps the connection if this call is cancelled meanwhile: else it would stay checked
            # out of the pool.
            await self._in_thread(lambda: connected.append(self._engine.connect()))
            [database] = connected
            if message is not None and await self._in_thread(_is_handled, database, context.handler, message):
                raise AlreadyHandledError(f"{message} was handled by {context.handler} before")
            yield database
            await self._in_thread(_write, database, Step(context.handler, message, context.sent))
            await self._in_thread(self._prune, database)
            await self._in_thread(database.commit)
        except BaseException as error:
            if not isinstance(error, Exception):
                # What a cancelled handler still executes, such as in a thread of its own, must not get into
                # the next transaction of a connection of the pool.
                for each in connected:
                    with suppress(StoreError):
                        await self._in_thread(each.invalidate)
            raise
        finally:
            # Rolls back what is not committed.
            for each in connected:
                with suppress(StoreError):
                    await self._in_thread(each.close)
        self._has_sent(context.sent)
        context.sent.clear()

    transaction.is_transaction = True  # type: ignore[attr-defined]

    # --- steps -------------------------------------------------------------------------------------------

    async def commit(self, step: Step) -> None:
        """Writes all of a step or nothing."""

        def write() -> None:
            with self._engine.begin() as database:
                _write(database, step)
                self._prune(database)

        await self._in_thread(write)
        self._has_sent(step.sendings)

    async def is_handled(self, handler: str, message: str) -> bool:
        """Whether the inbox has a message of a handler."""

        def read() -> bool:
            with self._engine.connect() as database:
                return _is_handled(database, handler, message)

        return await self._in_thread(read)

    async def saga(self, saga: str, key: str) -> SagaState | None:
        """A saga, or None where there is none."""

        def read() -> SagaState | None:
            with self._engine.connect() as database:
                wanted = select(SAGAS.c.state, SAGAS.c.version).where(
                    SAGAS.c.saga == saga, SAGAS.c.key == key
                )
                row = database.execute(wanted).one_or_none()
                return None if row is None else SagaState(row.state, row.version)

        return await self._in_thread(read)

    # --- forwarding --------------------------------------------------------------------------------------

    async def forwards(self) -> bool:
        """Whether this process has the advisory lock, and so forwards the outbox.

        A lock that was lost with its connection is acquired again.
        """

        def is_held() -> bool:
            lock = self._lock
            if lock is not None:
                try:
                    lock.execute(text("select 1"))
                    return True
                except SQLAlchemyError:
                    self._lock = None
                    lock.invalidate()
                    lock.close()
            lock = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if lock.execute(select(func.pg_try_advisory_lock(LOCK))).scalar_one():
                self._lock = lock
                return True
            lock.close()
            return False

        return await self._in_thread(is_held)

    async def next(self, count: int) -> list[Waiting]:
        """The oldest messages of the outbox."""

        def read() -> list[Waiting]:
            with self._engine.connect() as database:
                rows = database.execute(select(OUTBOX).order_by(OUTBOX.c.sequence).limit(count)).all()
                return [
                    Waiting(row.sequence, row.address, row.type, decode_head(row.head, bytes(row.body)))
                    for row in rows
                ]

        return await self._in_thread(read)

    async def remove(self, sequences: Sequence[int]) -> None:
        """Deletes messages that were forwarded."""

        def remove() -> None:
            with self._engine.begin() as database:
                database.execute(delete(OUTBOX).where(OUTBOX.c.sequence.in_(sequences)))

        await self._in_thread(remove)

    async def refuse(self, sequence: int, reason: str) -> None:
        """Sets aside a message that its address refuses."""

        def move() -> None:
            with self._engine.begin() as database:
                row = database.execute(select(OUTBOX).where(OUTBOX.c.sequence == sequence)).one()
                values = {**row._mapping, "refused_at": time.time(), "reason": reason}
                database.execute(insert(REFUSED).values(values))
                database.execute(delete(OUTBOX).where(OUTBOX.c.sequence == sequence))

        await self._in_thread(move)

    # --- inside ------------------------------------------------------------------------------------------

    def _prune(self, database: Connection) -> None:
        """Deletes old entries of the inbox, with one of PRUNE_EVERY commits."""
        if next(self._commits) % PRUNE_EVERY == 0:
            old = (
                select(INBOX.c.handler, INBOX.c.message)
                .where(INBOX.c.handled_at < time.time() - INBOX_S)
                .order_by(INBOX.c.handled_at)
                .limit(PRUNED_MAX)
                .with_for_update(skip_locked=True)
            )
            database.execute(delete(INBOX).where(tuple_(INBOX.c.handler, INBOX.c.message).in_(old)))

    def _has_sent(self, sendings: Sequence[Sending]) -> None:
        if sendings and self.arrived is not None:
            self.arrived.set()

    async def _in_thread(self, call: Callable[..., Value], *arguments: Any) -> Value:
        """Calls a function in a thread. Raises StoreError for errors of the database."""
        try:
            return await self._threads.call(call, *arguments)
        except SQLAlchemyError as error:
            raise StoreError(f"the database failed: {error}") from error


def _unlock(lock: Connection) -> None:
    lock.execute(select(func.pg_advisory_unlock(LOCK)))
    lock.close()


def _is_handled(database: Connection, handler: str, message: str) -> bool:
    wanted = exists().where(INBOX.c.handler == handler, INBOX.c.message == message)
    return bool(database.execute(select(wanted)).scalar_one())


def _write(database: Connection, step: Step) -> None:
    """Writes a step within a transaction. Raises AlreadyHandledError or ConflictError."""
    now = time.time()
    if step.handler is not None and step.message is not None:
        row = {"handler": step.handler, "message": step.message, "handled_at": now}
        written = postgresql.insert(INBOX).values(row).on_conflict_do_nothing().returning(INBOX.c.message)
        if database.execute(written).one_or_none() is None:
            raise AlreadyHandledError(f"{step.message} was handled by {step.handler} before")
    if step.change is not None:
        _change(database, step, now)
    if step.sendings:
        rows = [
            {
                "address": sending.address,
                "type": None if sending.type is None else sending.type.wire_name,
                "head": encode_head(sending.envelope).decode(),
                "body": sending.envelope.body,
            }
            for sending in step.sendings
        ]
        database.execute(insert(OUTBOX), rows)


def _change(database: Connection, step: Step, now: float) -> None:
    change = step.change
    assert change is not None
    if change.version == 0:
        if change.state is None:
            return
        row = {
            "saga": change.saga,
            "key": change.key,
            "version": first_version(),
            "state": change.state,
            "changed_at": now,
        }
        begun = postgresql.insert(SAGAS).values(row).on_conflict_do_nothing().returning(SAGAS.c.key)
        is_done = database.execute(begun).one_or_none() is not None
    else:
        where = (SAGAS.c.saga == change.saga, SAGAS.c.key == change.key, SAGAS.c.version == change.version)
        if change.state is None:
            is_done = database.execute(delete(SAGAS).where(*where)).rowcount == 1
        else:
            values = {"version": SAGAS.c.version + 1, "state": change.state, "changed_at": now}
            is_done = database.execute(update(SAGAS).where(*where).values(values)).rowcount == 1
    if not is_done:
        raise ConflictError(f"{change.saga} {change.key} was changed meanwhile")
