"""The commit thread: it writes and syncs one commit after the other.

Most commits of a shard whose senders wait are one write and its sync. Machine code does these without the
interpreter's lock (_syncer.pyx), for which Python's thread would wait four times per commit, and which the
loop needs just then. Where it is not compiled, and for all other commits, there is a `Worker` of Python.
"""

import asyncio
import os
import threading
from functools import partial
from typing import Any

from lightrail.shard.journal.commit import Done, JournalCommit, PlainWrite, Work, Worker
from lightrail.shard.journal.files import RealFile, RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import Commit, Store

try:
    from lightrail.shard.journal import _syncer  # type: ignore[attr-defined]
except ImportError:
    _syncer = None


class PlainWriter:
    """Performs plain writes of real files, one at a time, in a thread of machine code."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._syncer: Any = _syncer.Syncer(self._event)
        self._plain: PlainWrite | None = None
        self._done: Done | None = None
        self._syncing = threading.Thread(target=self._syncer.run, name="sync", daemon=True)
        self._syncing.start()
        loop.add_reader(self._event, self._synced)

    def submit(self, plain: PlainWrite, file: RealFile, done: Done) -> None:
        """Begins; `done` is called on the loop."""
        self._plain, self._done = plain, done
        self._syncer.submit(file.descriptor, plain.data, plain.start)

    def _synced(self) -> None:
        os.eventfd_read(self._event)
        number, sync_ns = self._syncer.result()
        plain, done = self._plain, self._done
        assert plain is not None
        assert done is not None
        plain.sync_seconds = sync_ns / 1e9
        done(OSError(number, os.strerror(number)) if number else None)

    def close(self) -> None:
        """Waits for the write under way, whose `done` is not called."""
        self._loop.remove_reader(self._event)
        self._syncer.close()
        self._syncing.join()
        os.close(self._event)


class CommitThread:
    """Commits of one store; at most one is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: Worker, store: Store) -> None:
        self._worker = worker
        is_real = isinstance(store, Journal) and isinstance(store.files, RealFiles)
        self._plain_writer = PlainWriter(loop) if is_real and _syncer is not None else None

    def submit(self, commit: Commit, done: Done, work: Work | None = None) -> None:
        """Performs a commit, or does `work` in its place; `done` is called on the loop with the error, or
        None."""
        if work is None and isinstance(commit, JournalCommit) and (plain := commit.plain()) is not None:
            self._write(plain, partial(self._written, commit, plain, done))
        else:
            self._worker.submit(work or commit.perform, done)

    def _write(self, plain: PlainWrite, written: Done) -> None:
        writer, file = self._plain_writer, plain.file
        if writer is not None and isinstance(file, RealFile):
            writer.submit(plain, file, written)
        else:
            self._worker.submit(plain, written)

    def _written(
        self, commit: JournalCommit, plain: PlainWrite, done: Done, error: BaseException | None
    ) -> None:
        if error is None:
            commit.written(plain)
            if commit.is_untidy:
                # The loop has begun the spare segment meanwhile.
                self._worker.submit(commit.tidy, done)
                return
        done(error)

    def close(self) -> None:
        """Waits until all is done."""
        if self._plain_writer is not None:
            self._plain_writer.close()
        self._worker.close()
