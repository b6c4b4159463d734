"""The file of an outbox: messages on the local disk until they are forwarded (docs/formats/envelope.md).

A SQLite database with a write-ahead log; every commit is synced before it returns. One thread at a time uses
an OutboxFile; several processes may open the same file, and one of them forwards.
"""

import fcntl
import os
import sqlite3
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from lightrail.transport.envelope import Envelope, decode_head, encode_head
from lightrail.transport.errors import SendRefusedError, TransportError

VERSION: Final = 1
BUSY_S: Final = 30.0
"""Seconds that a commit waits for the commit of another process."""
_TABLES: Final = """
create table about (version integer not null, outbox text not null);
create table messages (
    sequence integer primary key autoincrement,
    stored_at real not null,
    head text not null,
    body blob not null
);
create table refused (
    sequence integer primary key,
    stored_at real not null,
    head text not null,
    body blob not null,
    refused_at real not null,
    reason text not null
);
create table size (messages integer not null, bytes integer not null);
insert into size values (0, 0);
create trigger added after insert on messages begin
    update size set messages = messages + 1, bytes = bytes + length(new.head) + length(new.body);
end;
create trigger removed after delete on messages begin
    update size set messages = messages - 1, bytes = bytes - length(old.head) - length(old.body);
end;
"""


class OutboxFullError(TransportError):
    """The outbox has reached its limit: the application sends faster than messages are forwarded."""


class OutboxError(TransportError):
    """The file can't be used."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of the outbox."""

    sequence: int
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that its address refused."""

    sequence: int
    envelope: Envelope
    refused_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Depth:
    """The messages that wait to be forwarded.

    Attributes:
        messages, size: number of waiting messages, and their bytes.
        oldest_s: seconds since the oldest was stored; 0 if none waits.
        refused: number of messages that were set aside, because their address refused them.
    """

    messages: int
    size: int
    oldest_s: float
    refused: int


class OutboxFile:
    """An outbox on the disk.

    Args:
        path: of the database, which is created if it does not exist, readable only by its user.

        messages_max, bytes_max: limits of the waiting messages.
    Raises OutboxError if the file is no outbox, or of a later version.
    """

    def __init__(self, path: Path, messages_max: int, bytes_max: int) -> None:
        self.path = path
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._lock: IO[bytes] | None = None
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            # Created on the loop, used by the thread of the outbox: never by two threads at a time.
            self._database = sqlite3.connect(path, BUSY_S, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise OutboxError(f"{path}: the outbox could not be opened: {error}") from error
        try:
            self.id = self._opened()
        except BaseException:
            self._database.close()
            raise

    def _opened(self) -> str:
        execute = self._database.execute
        try:
            execute("pragma journal_mode = wal")
            execute("pragma synchronous = full")
            execute("begin immediate")
            try:
                tables = {name for (name,) in execute("select name from sqlite_master where type = 'table'")}
                if not tables:
                    for statement in _statements(_TABLES):
                        execute(statement)
                    execute("insert into about values (?, ?)", (VERSION, uuid.uuid4().hex))
                elif "about" not in tables or "messages" not in tables:
                    raise OutboxError(f"{self.path}: expected an outbox, found another database")
                version, id = execute("select version, outbox from about").fetchone()
                if version != VERSION:
                    raise OutboxError(
                        f"{self.path}: expected an outbox of version {VERSION}, found {version}: a later "
                        "LightRail has made it"
                    )
            finally:
                execute("commit")
        except sqlite3.Error as error:
            raise OutboxError(f"{self.path}: expected an outbox: {error}") from error
        return str(id)

    def close(self) -> None:
        """Closes the file; waiting messages stay in it."""
        self.stop_forwarding()
        self._database.close()

    # --- sending ---------------------------------------------------------------------------------------

    def append(self, envelopes: Sequence[Envelope]) -> list[Exception | None]:
        """Stores messages durably; returns for each None, or why it was not stored. Raises OutboxError."""
        execute = self._database.execute
        results: list[Exception | None] = []
        try:
            execute("begin immediate")
            try:
                messages, size = execute("select messages, bytes from size").fetchone()
                now = time.time()
                for envelope in envelopes:
                    try:
                        head = encode_head(envelope).decode()
                    except (TypeError, ValueError) as error:
                        # An error of this message only: others of the same commit are stored.
                        results.append(SendRefusedError(f"expected headers of simple values: {error}"))
                        continue
                    length = len(head) + len(envelope.body)
                    if messages >= self._messages_max or size + length > self._bytes_max:
                        results.append(
                            OutboxFullError(
                                f"{self.path}: {messages} messages of {size} bytes wait to be forwarded, and "
                                f"the outbox may have {self._messages_max} of {self._bytes_max} bytes: "
                                "send more slowly, or give it more room"
                            )
                        )
                        continue
                    execute(
                        "insert into messages (stored_at, head, body) values (?, ?, ?)",
                        (now, head, envelope.body),
                    )
                    messages += 1
                    size += length
                    results.append(None)
            except BaseException:
                execute("rollback")
                raise
            execute("commit")
        except sqlite3.Error as error:
            raise OutboxError(f"{self.path}: messages could not be stored: {error}") from error
        return results

    # --- forwarding ------------------------------------------------------------------------------------

    def forward(self) -> bool:
        """Begins to forward; returns False while another process forwards."""
        if self._lock is None:
            lock = open(f"{self.path}.lock", "ab")  # noqa: SIM115 - open for as long as this process forwards
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
        return True

    def stop_forwarding(self) -> None:
        """Lets another process forward."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def next(self, count: int, size: int) -> list[Stored]:
        """The oldest messages, in order: at most `count` messages of `size` bytes, but at least one."""
        found: list[Stored] = []
        cursor = self._database.execute(
            "select sequence, head, body from messages order by sequence limit ?", (count,)
        )
        for sequence, head, body in cursor:
            envelope = decode_head(head, body)
            if envelope.id is None:
                # The id is the same at every attempt: the broker drops a message that it has already.
                envelope = envelope.replace(id=f"{self.id}-{sequence}")
            found.append(Stored(sequence, envelope))
            size -= len(head) + len(body)
            if size <= 0:
                break
        cursor.close()
        return found

    def remove(self, sequences: Sequence[int]) -> None:
        """Deletes messages that were forwarded."""
        with self._database:
            self._database.execute("begin immediate")
            self._database.executemany(
                "delete from messages where sequence = ?", [(each,) for each in sequences]
            )

    def refuse(self, sequence: int, reason: str) -> None:
        """Sets a message aside that its address refuses."""
        with self._database:
            self._database.execute("begin immediate")
            self._database.execute(
                "insert into refused select sequence, stored_at, head, body, ?, ? from messages "
                "where sequence = ?",
                (time.time(), reason, sequence),
            )
            self._database.execute("delete from messages where sequence = ?", (sequence,))

    # --- administration --------------------------------------------------------------------------------

    def depth(self) -> Depth:
        """The number, size and age of waiting messages."""
        execute = self._database.execute
        messages, size = execute("select messages, bytes from size").fetchone()
        oldest = execute("select stored_at from messages order by sequence limit 1").fetchone()
        (refused,) = execute("select count(*) from refused").fetchone()
        return Depth(messages, size, max(0.0, time.time() - oldest[0]) if oldest else 0.0, refused)

    def refused(self) -> list[Refused]:
        """Messages that were set aside, in order."""
        cursor = self._database.execute(
            "select sequence, head, body, refused_at, reason from refused order by sequence"
        )
        return [
            Refused(sequence, decode_head(head, body), at, reason)
            for sequence, head, body, at, reason in cursor
        ]

    def retry(self, sequences: Sequence[int]) -> int:
        """Appends messages that were set aside to the waiting ones; returns their number."""
        return self._from_refused(sequences, is_kept=True)

    def discard(self, sequences: Sequence[int]) -> int:
        """Deletes messages that were set aside; returns their number."""
        return self._from_refused(sequences, is_kept=False)

    def _from_refused(self, sequences: Sequence[int], is_kept: bool) -> int:
        changed = 0
        with self._database:
            self._database.execute("begin immediate")
            for sequence in sequences:
                if is_kept:
                    self._database.execute(
                        "insert into messages (stored_at, head, body) "
                        "select stored_at, head, body from refused where sequence = ?",
                        (sequence,),
                    )
                changed += self._database.execute(
                    "delete from refused where sequence = ?", (sequence,)
                ).rowcount
        return changed


def _statements(script: str) -> list[str]:
    """The statements of a script, to execute in one transaction: `executescript` commits first."""
    found: list[str] = []
    text = ""
    for line in script.strip().splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found
