"""Opens a SQLite store: checks that the file belongs to this shard, and reads queues and messages."""

import os
import sqlite3
from collections.abc import Callable

from lightrail.journal.layout import decode_transaction
from lightrail.journal.record import Ids, Queue, QueueEvent, Terminus, TerminusEvent, decode_receiver
from lightrail.journal.segment_header import FORMAT_VERSION
from lightrail.model import limits
from lightrail.shard.journal.sqlite_jobs import SCHEMA, attempts_in
from lightrail.shard.journal.store import NewerFormatError, StoreRefusedError
from lightrail.shard.journal.tables import Tables
from lightrail.shard.queue.values.runs import Batch, Location, Run


def prepare(connection: sqlite3.Connection, path: str, cluster: str, shard: int) -> dict[str, str]:
    """Makes missing tables and removes spilled messages; returns the table `meta`.

    Raises:
        StoreRefusedError: the file belongs to another shard, or has a newer format.
        sqlite3.Error: the file is locked by another process, or damaged.
    """
    run = connection.execute
    run("PRAGMA locking_mode=EXCLUSIVE")
    run("PRAGMA journal_mode=WAL")
    run("PRAGMA synchronous=FULL")
    run("BEGIN IMMEDIATE")
    for statement in SCHEMA.strip().split(";"):
        run(statement)
    if not any(name == "user" for _, name, *_ in run("PRAGMA table_info(terminus)")):
        # The table is of format version 6 or 7.
        run("ALTER TABLE terminus ADD COLUMN user TEXT NOT NULL DEFAULT ''")
    meta: dict[str, str] = dict(run("SELECT key, value FROM meta"))
    mine = {"cluster": cluster, "shard": str(shard)}
    if not meta:
        meta = {"format": str(FORMAT_VERSION), **mine, "epoch": "0", "lsn": "0", "sealed": "0"}
        meta["next"] = "1"
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    if int(meta["format"]) > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} has format version {meta['format']}, this program knows {FORMAT_VERSION} and "
            "older: start it with the newer program that wrote it"
        )
    if any(meta[key] != value for key, value in mine.items()):
        raise StoreRefusedError(
            f"expected the store of shard {shard} of cluster {cluster!r}, found that of "
            f"shard {meta['shard']} of cluster {meta['cluster']!r}: give this shard its own file"
        )
    # Tables that an older format lacks were created above.
    run("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT_VERSION),))
    run("DELETE FROM live WHERE record IN (SELECT id FROM record WHERE spilled)")
    run("DELETE FROM record WHERE spilled")
    run("COMMIT")
    return meta


def load_tables(connection: sqlite3.Connection, tables: Tables) -> None:
    """Loads queues, producers, message-ids, transactions, termini and receivers."""
    run = connection.execute
    for number, name, policy, next_sequence in run("SELECT * FROM queue ORDER BY id"):
        tables.queue(Queue(QueueEvent.DECLARED, number, name, policy))
        tables.queues[number].next_sequence = next_sequence
    for producer, number in run("SELECT id, number FROM producer ORDER BY lsn"):
        tables.produced(producer & (1 << 64) - 1, number)
    tables.parts.update(
        (producer & (1 << 64) - 1, taken) for producer, taken in run("SELECT id, taken FROM part")
    )
    for queue, until_ms, digests in run("SELECT queue, until_ms, digests FROM ids ORDER BY id"):
        tables.remember(Ids(queue, until_ms, digests), 0, 0)
    for (body,) in run("SELECT body FROM txn ORDER BY id"):
        tables.transact(decode_transaction(body, 0, len(body), 0), 0)
    tags: dict[tuple[int, bytes], list[bytes]] = {}
    for queue, link, tag in run("SELECT queue, link, tag FROM tag ORDER BY id"):
        tags.setdefault((queue, link), []).append(tag)
    for queue, link, durability, suspended_ms, user in run(
        "SELECT queue, link, durability, suspended_ms, user FROM terminus"
    ):
        kept = tags.get((queue, link), ())
        begun = Terminus(queue, link, TerminusEvent.BEGUN, durability, suspended_ms, kept, user=user)
        tables.termini.apply(begun, 0)
    for (body,) in run("SELECT body FROM receiver"):
        tables.receivers.apply(decode_receiver(body, 0, len(body), 0), 0)


def load_runs(
    connection: sqlite3.Connection,
    queue: int,
    memory_bytes: int,
    read: Callable[[Location, int, int, int], list[Run]],
    live: dict[int, int],
) -> list[Run]:
    """The runs of a queue, the first ones in memory, the others merged; adds their bytes to `live`."""
    runs: list[Run] = []
    left = memory_bytes
    rows = connection.execute(
        "SELECT live.first, live.last, live.attempts, id, size, count, durable, priority, expires_at_ms, "
        "enqueued_at_ms, message_format FROM live JOIN record ON id = record WHERE queue = ? "
        "ORDER BY first",
        (queue,),
    ).fetchall()
    for first, last, value, number, size, count, *attributes in rows:
        attempts = attempts_in(value)
        size = size * (last - first) // count
        segment = number // limits.STORE_RECORDS_AT_ONCE
        live[segment] = live.get(segment, 0) + size
        location = Location(segment, number, 1)
        if left >= size:
            left -= size
            for run in read(location, queue, first, last):
                run.attempts = attempts
                runs.append(run)
            continue
        left = -1
        durable, priority, expires_at_ms, enqueued_at_ms, message_format = attributes
        batch = Batch(
            None,
            None,
            last - first,
            size,
            0,
            bool(durable),
            priority,
            expires_at_ms or None,
            enqueued_at_ms,
            location,
            message_format,
        )
        _add_evicted(runs, Run(batch, 0, last - first, first, attempts))
    return runs


def _add_evicted(runs: list[Run], run: Run) -> None:
    """Appends an evicted run, or extends the last run by it."""
    if runs:
        before, batch = runs[-1], run.batch
        last = before.batch
        one, other = last.location, batch.location
        assert one is not None
        assert other is not None
        if (
            last.data is None
            and before.end == run.sequence
            and one.segment == other.segment
            and one.offset <= other.offset
            and before.attempts == run.attempts
            and (last.durable, last.priority, last.expires_at_ms, last.message_format)
            == (batch.durable, batch.priority, batch.expires_at_ms, batch.message_format)
        ):
            last.count += batch.count
            last.size += batch.size
            last.location = Location(one.segment, one.offset, max(one.length, other.offset + 1 - one.offset))
            runs[-1] = Run(last, 0, last.count, before.sequence, before.attempts)
            return
    runs.append(run)


def forget_cached(path: str) -> None:
    """Drops the pages of a file from the kernel's cache. Raises OSError.

    After a failed sync the cache may have pages that the disk does not have, and SQLite would append to them.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
