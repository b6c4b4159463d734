"""A commit: a group of records that the loop gathers and the commit thread writes and syncs.

A `Worker` is a thread that performs such jobs in order: commits, or reads, which would block the loop. An
executor of the standard library makes a future, a lock and several wake-ups per call; at a few hundred
small commits per second these were a fifth of the shard's CPU. Here a call costs one queue operation and one
wake-up.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from queue import SimpleQueue
from typing import Final, NamedTuple
from zlib import crc32

from lightrail.journal.layout import FRONT, REST
from lightrail.shard.journal.files import Buffer, DiskFile
from lightrail.shard.journal.segment import Segment
from lightrail.shard.journal.space import Space
from lightrail.shard.journal.store import Usage
from lightrail.shard.replicas.lineage import RecordEnd

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]
PLAIN_BYTES: Final = 32 * 1024
"""Largest commit that the loop encodes, for a thread that needs no interpreter: more is better encoded in the
commit thread, beside the loop."""


class Worker:
    """A thread with a queue; `done` of each job is called on the loop with its error, or None."""

    __slots__ = ("_loop", "_own_thread", "_queue")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._own_thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._own_thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Runs `work` in the thread, after all jobs submitted before."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Waits until all submitted jobs are done."""
        self._queue.put(None)
        self._own_thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            self._loop.call_soon_threadsafe(done, error)


Entry = tuple[int, bytes, bytes | memoryview | None, bytes | memoryview | None]
"""(bytes of the whole record, the rest of it up to the ends, ends, blob); length 0: bytes as they are."""


@dataclass(slots=True, eq=False, repr=False)
class CommitPart:
    """Contiguous bytes for one segment, from offset `start` on."""

    segment: Segment
    start: int
    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    sealed: bool = False
    """Whether these are the segment's last bytes; it is synced before the next one is written."""
    pieces: list[Buffer] | None = None
    """The bytes of the entries, after `JournalCommit.encode`."""


class Reached(NamedTuple):
    """How far the journal reaches at the end of a commit."""

    segment: int
    end: int
    next_lsn: int
    messages: int
    """Number of messages in the segment."""
    last_ms: int
    whole: bool
    """Whether the last record ends its group (flag CONTINUED)."""

    @property
    def position(self) -> RecordEnd:
        """The end as a position."""
        return RecordEnd(self.segment, self.end, self.next_lsn)


NOWHERE: Final = Reached(0, 0, 1, 0, 0, True)
"""The end of an empty journal."""


def last_of(entries: list[Entry]) -> tuple[int, int]:
    """Flags and timestamp of the last record."""
    _, flags, _, _, _, timestamp = REST.unpack_from(entries[-1][1])
    return flags, timestamp


def pieces_of(entries: list[Entry], salt: int) -> list[Buffer]:
    """The bytes of the records, with length and checksum; messages are not copied."""
    pieces: list[Buffer] = []
    add = pieces.append
    pack = FRONT.pack
    for length, rest, ends, blob in entries:
        if not length:
            add(rest)
            continue
        checksum = crc32(rest, salt)
        if ends is None or blob is None:
            add(pack(length, checksum))
            add(rest)
        else:
            add(pack(length, crc32(blob, crc32(ends, checksum))))
            add(rest)
            add(ends)
            add(blob)
    return pieces


@dataclass(slots=True, eq=False, repr=False)
class PlainWrite:
    """One write to one file, and its sync."""

    file: DiskFile
    start: int
    data: bytes
    sync_seconds: float = 0.0

    def __call__(self) -> None:
        self.file.write(self.start, [self.data])
        started = time.perf_counter()
        self.file.sync()
        self.sync_seconds = time.perf_counter() - started


@dataclass(slots=True, eq=False, repr=False)
class JournalCommit:
    """See `Commit` in store.py."""

    parts: list[CommitPart]
    _salt: int
    _space: Space
    _: KW_ONLY
    synced: bool
    last_lsn: int
    records: int
    messages: int
    reached: Reached
    is_shared: bool
    """Whether other members have to have the records, too, before they are accepted. One that is required
    from a later moment on does not count: the extent may say already that they are."""
    drops: list[Segment]
    """Segments whose files are removed: all records that were appended before the drop are accepted."""
    extent: Callable[[], None] | None = None
    """Writes the extent of the journal (identity.py) before any answer is sent."""
    bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0

    @property
    def ends_whole(self) -> bool:
        """Whether all records are on this disk after the commit, in whole groups."""
        return bool(self.synced and self.reached.whole and self.parts)

    def count_in(self, usage: Usage) -> None:
        """Adds the figures of this commit after its end."""
        usage.records += self.records
        usage.messages += self.messages
        usage.written_bytes += self.bytes
        usage.commits += 1
        usage.syncs += self.syncs
        usage.sync_seconds += self.sync_seconds
        usage.segments_dropped += len(self.drops)

    def encode(self) -> None:
        """Computes the bytes of each part, which every member writes; without a call, `perform` does it."""
        for part in self.parts:
            part.pieces = pieces_of(part.entries, self._salt)

    def plain(self) -> PlainWrite | None:
        """The commit as one write and its sync, if nothing else has to be done."""
        part = self.parts[0] if len(self.parts) == 1 else None
        if part is None or part.sealed or not (part.entries and self.synced):
            return None
        if part.end - part.start > PLAIN_BYTES or self.drops or self.extent or self.is_untidy:
            return None
        pieces = part.pieces or pieces_of(part.entries, self._salt)
        return PlainWrite(part.segment.file, part.start, b"".join(pieces))

    def written(self, plain: PlainWrite) -> None:
        """Counts a plain write that has ended, in the place of `perform`."""
        self.bytes, self.syncs, self.sync_seconds = len(plain.data), 1, plain.sync_seconds

    @property
    def is_untidy(self) -> bool:
        """Whether the next spare segment has to be made, with `tidy`, in the commit thread."""
        return self._space.is_untidy

    def tidy(self) -> None:
        """Does the work that no answer depends on; `perform` does it by itself."""
        self._space.tidy(self.drops)

    def perform(self) -> None:
        """Writes and syncs; then, in the same thread, does the work that no answer depends on."""
        for part in self.parts:
            if part.entries:
                self.bytes += part.segment.file.write(
                    part.start, part.pieces or pieces_of(part.entries, self._salt)
                )
            if part.sealed:
                part.segment.file.truncate(part.end)
            if part.sealed or self.synced:
                started = time.perf_counter()
                part.segment.file.sync()
                self.sync_seconds += time.perf_counter() - started
                self.syncs += 1
        if self.extent is not None:
            self.extent()
        self.tidy()


def record_bytes(entry: Entry, salt: int) -> bytes:
    """The bytes of one record as they will be on disk."""
    return b"".join(pieces_of([entry], salt))
