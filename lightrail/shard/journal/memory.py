"""A store in memory, which loses all messages at its end: for tests, and where speed matters more.

It keeps the messages of every Append until they are released, so that a queue may evict its copies and read
the messages back. Locations count records: `offset` is the number of the first, `length` their number.
"""

from dataclasses import dataclass
from typing import Final

from lightrail.journal.record import CONTINUED
from lightrail.model import limits
from lightrail.shard.journal.batches import lay_over
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import (
    Commit,
    Position,
    Recovered,
    StoreBrokenError,
    StoreError,
    Usage,
    needs_sync,
)
from lightrail.shard.queue.values.runs import Location, Run


@dataclass(slots=True, eq=False, repr=False)
class MemoryCommit:
    """See `Commit` in store.py; there is nothing to write."""

    records: int
    messages: int
    synced: bool
    sync_seconds: float = 0.0

    def perform(self) -> None:
        """See `Commit.perform`."""


class MemoryStore:
    """See `Store` in store.py."""

    captures: Final = False
    outlives: Final = False

    def __init__(self) -> None:
        self._appends: dict[int, Append] = {}
        self._live: dict[int, int] = {}
        self._next = 0
        self.lsn = 0
        self._records = 0
        self._messages = 0
        self._sync_wanted = False
        self._in_flight: Commit | None = None
        self.failure = ""
        self.is_group_open = False
        self._usage = Usage()

    def recover(self, memory_bytes: int, now_ms: int = 0) -> Recovered:
        """See `Store.recover`: it is empty."""
        return Recovered()

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        """See `Store.append`."""
        if self.failure:
            raise StoreBrokenError(f"the store accepts no records: {self.failure}")
        if self.is_group_open:
            record.flags |= CONTINUED
        self.lsn += 1
        self._records += 1
        self._sync_wanted |= needs_sync(record)
        if not isinstance(record, Append):
            return None
        number = self._next
        self._next = number + 1
        segment = number // limits.STORE_RECORDS_AT_ONCE
        # The caller's batch drops its data when it is spilled; this copy keeps it.
        batch = record.batch
        data, ends = batch.loaded()
        location = Location(segment, number, 1)
        kept = batch.alike(data, ends, batch.count, batch.size, batch.base, location)
        self._appends[number] = Append(
            list(record.targets), 0, 0, kept, record.first, record.last, record.attempts, record.flags
        )
        count = record.last - record.first
        size = Run(batch, record.first, record.last, 0).size * len(record.targets)
        self._live[segment] = self._live.get(segment, 0) + size
        self._messages += count
        return location

    @property
    def no_room(self) -> str:
        """See `Store.no_room`: this store has no limit; the shard's memory mark bounds it."""
        return ""

    @property
    def is_crowded(self) -> bool:
        """See `Store.is_crowded`: no append waits for a commit."""
        return False

    @property
    def position(self) -> Position:
        """See `Store.position`."""
        return self

    def reserve(self, size: int, now_ms: int = 0) -> None:
        """See `Store.reserve`: this store has no limit; the shard's memory mark bounds it."""
        if self.failure:
            raise StoreBrokenError(f"the store accepts no records: {self.failure}")

    @property
    def pending(self) -> bool:
        """See `Store.pending`."""
        return self._records > 0

    def begin_commit(self) -> MemoryCommit:
        """See `Store.begin_commit`."""
        if self.failure:
            raise StoreBrokenError(f"the store commits nothing: {self.failure}")
        assert self._in_flight is None, "one commit at a time"
        commit = MemoryCommit(self._records, self._messages, self._sync_wanted)
        self._in_flight = commit
        self._records = self._messages = 0
        self._sync_wanted = False
        return commit

    def end_commit(self, commit: Commit) -> None:
        """See `Store.end_commit`."""
        assert commit is self._in_flight, "the commit that was begun"
        self._in_flight = None
        self._usage.commits += 1
        self._usage.records += commit.records
        self._usage.messages += commit.messages

    def fail_commit(self, commit: Commit, error: BaseException) -> None:
        """See `Store.fail_commit`."""
        self._in_flight = None
        self.failure = str(error)

    def read(self, location: Location, queue: int, first: int, last: int) -> list[Run]:
        """See `Store.read`."""
        runs: list[Run] = []
        for number in range(location.offset, location.offset + location.length):
            record = self._appends.get(number)
            if record is None:
                raise StoreError(f"expected record {number} in memory, found it released")
            for target, sequence in record.targets:
                if target != queue:
                    continue
                start, stop = max(first, sequence), min(last, sequence + record.last - record.first)
                if start < stop:
                    index = record.first + start - sequence
                    lay_over(runs, Run(record.batch, index, index + stop - start, start, record.attempts))
        return runs

    def release(self, segment: int, size: int) -> None:
        """See `Store.release`."""
        left = self._live.get(segment, 0) - size
        self._live[segment] = left
        if left <= 0 and segment < self._next // limits.STORE_RECORDS_AT_ONCE:
            self._live.pop(segment)
            start = segment * limits.STORE_RECORDS_AT_ONCE
            for number in range(start, start + limits.STORE_RECORDS_AT_ONCE):
                self._appends.pop(number, None)

    def oldest_to_clean(self) -> int | None:
        """See `Store.oldest_to_clean`: released memory needs no cleaning."""
        return None

    def drop(self, segment: int, now_ms: int = 0) -> None:
        """See `Store.drop`."""
        raise ValueError(f"segment {segment} can't be dropped: this store needs no cleaning")

    def usage(self) -> Usage:
        """See `Store.usage`."""
        usage = self._usage
        usage.segments = len(self._live)
        usage.live_bytes = usage.total_bytes = sum(self._live.values())
        usage.broken = self.failure
        return usage

    def close(self, now_ms: int = 0) -> None:
        """See `Store.close`."""
        self.failure = "the store is closed"
        self._appends.clear()
