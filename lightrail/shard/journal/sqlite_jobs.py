"""The tables of the SQLite store, and the changes of each record to them."""

import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Final

from lightrail.journal.layout import encode_transaction
from lightrail.journal.record import (
    RETURNING,
    REWRITTEN,
    SPILLED,
    Delivered,
    Ids,
    Numbers,
    Queue,
    QueueEvent,
    ReceiverChange,
    Seal,
    Settle,
    Taken,
    Terminus,
    TerminusEvent,
    TransactionState,
    TransactionStep,
    encode_receiver,
)
from lightrail.model.attempts import WAITS
from lightrail.shard.journal.commit import Entry, record_bytes
from lightrail.shard.journal.record import Append, SmallRecord
from lightrail.shard.journal.tables import Tables

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, name TEXT NOT NULL, policy TEXT NOT NULL,
    next_sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS producer (id INTEGER PRIMARY KEY, number INTEGER NOT NULL, lsn INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS part (id INTEGER PRIMARY KEY, taken INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ids (id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, until_ms INTEGER NOT NULL,
    digests BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS ids_queue ON ids (queue);
CREATE TABLE IF NOT EXISTS record (id INTEGER PRIMARY KEY, spilled INTEGER NOT NULL, size INTEGER NOT NULL,
    count INTEGER NOT NULL, durable INTEGER NOT NULL, priority INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL, enqueued_at_ms INTEGER NOT NULL,
    message_format INTEGER NOT NULL, bytes BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS live (queue INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    attempts INTEGER NOT NULL, record INTEGER NOT NULL, PRIMARY KEY (queue, first)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS live_record ON live (record);
CREATE TABLE IF NOT EXISTS txn (id BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS terminus (queue INTEGER NOT NULL, link BLOB NOT NULL, durability INTEGER NOT NULL,
    suspended_ms INTEGER NOT NULL, user TEXT NOT NULL DEFAULT '', PRIMARY KEY (queue, link)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tag (id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, link BLOB NOT NULL,
    tag BLOB NOT NULL, UNIQUE (queue, link, tag));
CREATE TABLE IF NOT EXISTS receiver (queue INTEGER NOT NULL, link BLOB NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (queue, link)) WITHOUT ROWID;
"""

Job = tuple[Any, ...]
"""The change of one record: its kind, and its values."""


_WIDE_BYTES: Final = 12
"""Size of attempts with a time until which messages wait: SQLite's integers have no room for both."""


def stored(attempts: int) -> int | bytes:
    """The attempts of messages as a value of the table `live`."""
    return attempts if attempts < WAITS else attempts.to_bytes(_WIDE_BYTES, "little")


def attempts_in(value: int | bytes) -> int:
    """The attempts of messages from a value of the table `live`."""
    return value if isinstance(value, int) else int.from_bytes(value, "little")


def signed(number: int) -> int:
    """SQLite's integers are signed."""
    return number - (1 << 64) if number >> 63 else number


def perform(connection: sqlite3.Connection, job: Job) -> None:
    """Does one job within the open transaction."""
    run = connection.execute
    match job:
        case ("append", *values):
            _append(connection, *values)
        case ("part", producer, number, taken):
            run(
                "INSERT OR REPLACE INTO part SELECT id, ? FROM producer WHERE id = ? AND number = ?",
                (taken, signed(producer), number),
            )
        case ("numbers", queue, next_sequence, newer, lsn):
            run("UPDATE queue SET next_sequence = max(next_sequence, ?) WHERE id = ?", (next_sequence, queue))
            for producer, number, part in newer:
                run("INSERT OR REPLACE INTO producer VALUES (?,?,?)", (signed(producer), number, lsn))
                run("DELETE FROM part WHERE id = ?", (signed(producer),))
                if part:
                    run("INSERT INTO part VALUES (?,?)", (signed(producer), part))
        case ("transaction", id, body):
            if body is None:
                run("DELETE FROM txn WHERE id = ?", (id,))
            else:
                run("INSERT OR REPLACE INTO txn VALUES (?,?)", (id, body))
        case ("ids", queue, until_ms, digests, gone):
            run(
                "INSERT INTO ids (queue, until_ms, digests) SELECT id, ?, ? FROM queue WHERE id = ?",
                (until_ms, digests, queue),
            )
            run(
                "DELETE FROM ids WHERE id IN (SELECT id FROM ids WHERE queue = ? ORDER BY id LIMIT ?)",
                (queue, gone),
            )
        case ("terminus", *values):
            _terminus(connection, *values)
        case ("receiver", queue, link, None):
            run("DELETE FROM receiver WHERE queue = ? AND link = ?", (queue, link))
        case ("receiver", queue, link, body):
            run("INSERT OR REPLACE INTO receiver VALUES (?,?,?)", (queue, link, body))
        case ("settle", queue, ranges, attempts):
            for first, last in ranges:
                for at, stop, _, record in take_out(connection, queue, first, last, attempts is not None):
                    if attempts is not None:
                        run("INSERT INTO live VALUES (?,?,?,?,?)", (queue, at, stop, attempts, record))
        case ("queue", QueueEvent.DELETED, queue, _, _):
            _delete_queue(connection, queue)
        case ("queue", QueueEvent.DECLARED, queue, name, policy):
            run("INSERT INTO queue VALUES (?,?,?,0)", (queue, name, policy))
        case ("queue", _, queue, name, policy):
            run("UPDATE queue SET name = ?, policy = ? WHERE id = ?", (name, policy, queue))
        case ("epoch", epoch, sealed):
            run("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
            run("UPDATE meta SET value = ? WHERE key = 'sealed'", (str(int(sealed)),))
        case ("forget", first, last):
            run(
                "DELETE FROM live WHERE record IN "
                "(SELECT id FROM record WHERE id >= ? AND id < ? AND spilled)",
                (first, last),
            )
            run("DELETE FROM record WHERE id >= ? AND id < ? AND spilled", (first, last))


def _delete_queue(connection: sqlite3.Connection, queue: int) -> None:
    take_out(connection, queue, 0, (1 << 63) - 1)
    connection.execute("DELETE FROM queue WHERE id = ?", (queue,))
    for table in ("ids", "terminus", "tag", "receiver"):
        connection.execute(f"DELETE FROM {table} WHERE queue = ?", (queue,))


def _terminus(
    connection: sqlite3.Connection,
    event: int,
    queue: int,
    link: bytes,
    fields: tuple[int, int, str],
    tags: Sequence[bytes],
    dropped: Sequence[bytes],
) -> None:
    """A change of a terminus.

    Args:
        fields: its durability, how long it is suspended, and its user.
        dropped: tags of which the terminus had too many.
    """
    run, many = connection.execute, connection.executemany
    if event == TerminusEvent.ENDED:
        run("DELETE FROM terminus WHERE queue = ? AND link = ?", (queue, link))
        run("DELETE FROM tag WHERE queue = ? AND link = ?", (queue, link))
        return
    if event != TerminusEvent.SETTLED:
        run("INSERT OR REPLACE INTO terminus VALUES (?,?,?,?,?)", (queue, link, *fields))
        # A tag that is stored again is the last one, as its row is replaced.
        many(
            "INSERT OR REPLACE INTO tag (queue, link, tag) VALUES (?,?,?)",
            [(queue, link, tag) for tag in tags],
        )
    removed = tags if event == TerminusEvent.SETTLED else dropped
    many("DELETE FROM tag WHERE queue = ? AND link = ? AND tag = ?", [(queue, link, tag) for tag in removed])


def _append(
    connection: sqlite3.Connection,
    row: tuple[int, ...],
    entry: Entry,
    targets: list[tuple[int, int, int]],
    attempts: int | bytes,
    rewritten: bool,
    producer_batch: tuple[int, int, int],
) -> None:
    run = connection.execute
    if rewritten:
        for queue, first, last in targets:
            take_out(connection, queue, first, last)
    run("INSERT INTO record VALUES (?,?,?,?,?,?,?,?,?,?)", (*row, record_bytes(entry, 0)))
    run("UPDATE meta SET value = ? WHERE key = 'next'", (str(row[0] + 1),))
    for queue, first, last in targets:
        run("INSERT INTO live VALUES (?,?,?,?,?)", (queue, first, last, attempts, row[0]))
        run("UPDATE queue SET next_sequence = max(next_sequence, ?) WHERE id = ?", (last, queue))
    producer, number, lsn = producer_batch
    if producer:
        run("INSERT OR REPLACE INTO producer VALUES (?,?,?)", (signed(producer), number, lsn))
        run("DELETE FROM part WHERE id = ?", (signed(producer),))


def take_out(
    connection: sqlite3.Connection, queue: int, first: int, last: int, keep: bool = False
) -> list[tuple[int, int, int | bytes, int]]:
    """Removes sequences from the live ones; returns (first, last, attempts, record) of each piece.

    A record without live messages is deleted, unless the caller keeps it to add the pieces again.
    """
    run = connection.execute
    rows = run(
        "SELECT first, last, attempts, record FROM live WHERE queue = ?1 AND last > ?2 AND first < ?3 "
        "AND first >= coalesce((SELECT max(first) FROM live WHERE queue = ?1 AND first <= ?2), ?2)",
        (queue, first, last),
    ).fetchall()
    pieces = []
    for start, stop, attempts, record in rows:
        run("DELETE FROM live WHERE queue = ? AND first = ?", (queue, start))
        if start < first:
            run("INSERT INTO live VALUES (?,?,?,?,?)", (queue, start, first, attempts, record))
        if stop > last:
            run("INSERT INTO live VALUES (?,?,?,?,?)", (queue, last, stop, attempts, record))
        pieces.append((max(start, first), min(stop, last), attempts, record))
        if not keep:
            run(
                "DELETE FROM record WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM live WHERE record = ?1)",
                (record,),
            )
    return pieces


def append_job(record: Append, number: int, entry: Entry, producer: int, lsn: int, size: int) -> Job:
    """The job of an Append record, under its number in the table of records."""
    count = record.last - record.first
    batch = record.batch
    return (
        "append",
        (
            number,
            bool(record.flags & SPILLED),
            size,
            count,
            batch.durable,
            batch.priority,
            batch.expires_at_ms or 0,
            batch.enqueued_at_ms,
            batch.message_format,
        ),
        entry,
        [(queue, first, first + count) for queue, first in record.targets],
        stored(record.attempts),
        bool(record.flags & REWRITTEN),
        (producer, record.number, lsn),
    )


def small_job(record: SmallRecord, tables: Tables, lsn: int, now_ms: int) -> Job:
    """Applies any record but an Append to the tables; returns its job.

    Raises:
        ValueError: the record names a queue that was not declared.
    """
    if isinstance(record, Queue):
        if record.event != QueueEvent.DECLARED:
            tables.check_declared(record.queue)
        tables.queue(record)
        return ("queue", record.event, record.queue, record.name, record.policy)
    if isinstance(record, Settle):
        attempts = stored(record.attempts) if record.outcome in RETURNING else None
        return ("settle", record.queue, list(record.ranges), attempts)
    if isinstance(record, Delivered):
        return ("settle", record.queue, [], None)
    if isinstance(record, Ids):
        dropped = len(tables.remember(record, 0, now_ms))
        return ("ids", record.queue, record.until_ms, record.digests, dropped)
    if isinstance(record, TransactionStep):
        tables.transact(record, 0)
        ended = record.state == TransactionState.ENDED
        return ("transaction", record.id, None if ended else encode_transaction(record))
    if isinstance(record, Taken):
        return ("part", record.producer, record.number, record.taken)
    if isinstance(record, Terminus):
        tables.check_declared(record.queue)
        excess, _, user = tables.termini.apply(record, 0)
        fields = (record.durability, record.suspended_ms, user)
        return ("terminus", record.event, record.queue, record.link, fields, record.tags, excess)
    if isinstance(record, ReceiverChange):
        tables.check_declared(record.queue)
        tables.receivers.apply(record, 0)
        # All of it: it has few runs, as long as its client settles in order.
        whole = tables.receivers.whole(record.queue, record.link)
        return ("receiver", record.queue, record.link, None if whole is None else encode_receiver(whole))
    if isinstance(record, Numbers):
        tables.check_declared(record.queue)
        return ("numbers", record.queue, record.next_sequence, tables.learn(record), lsn)
    tables.epoch = record.epoch
    return ("epoch", record.epoch, isinstance(record, Seal))


def transact(
    connection: sqlite3.Connection, jobs: Sequence[Job], last_lsn: int, producers_max: int, *, synced: bool
) -> float:
    """Does all jobs in one transaction; returns the seconds of its commit. Raises sqlite3.Error."""
    run = connection.execute
    run("PRAGMA synchronous=" + ("FULL" if synced else "NORMAL"))
    run("BEGIN IMMEDIATE")
    for job in jobs:
        perform(connection, job)
    run("UPDATE meta SET value = ? WHERE key = 'lsn'", (str(last_lsn),))
    run(
        "DELETE FROM producer WHERE id IN (SELECT id FROM producer ORDER BY lsn DESC LIMIT -1 OFFSET ?)",
        (producers_max,),
    )
    run("DELETE FROM part WHERE NOT EXISTS (SELECT 1 FROM producer WHERE producer.id = part.id)")
    started = time.perf_counter()
    run("COMMIT")
    return time.perf_counter() - started
