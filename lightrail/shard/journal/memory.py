"""A store in memory, which loses all messages at its end: for tests, and where speed matters more.

It keeps the messages of every Append until they are released, so that a queue may evict its copies and read
the messages back. Locations count records: `offset` is the number of the first, `length` their number. The
store in SQLite (sqlite.py) counts them in the same way (`NumberedStore`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, TypeVar

from lightrail.journal.record import CONTINUED
from lightrail.model import limits
from lightrail.shard.journal.batches import lay_over
from lightrail.shard.journal.commit import NOWHERE
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

_Commit = TypeVar("_Commit", bound=Commit)


@dataclass(slots=True, eq=False, repr=False)
class MemoryCommit:
    """See `Commit` in store.py; there is nothing to write."""

    records: int
    messages: int
    synced: bool
    sync_seconds: float = 0.0

    def perform(self) -> None:
        """See `Commit.perform`."""


class NumberedStore(ABC):
    """What stores share whose locations count records: they need no cleaning, and `segment` is a part of the
    records by number. See `Store` in store.py."""

    captures: Final = False
    is_shared: Final = False
    synced_lsn: Final = 0
    accepted: Final = NOWHERE

    def __init__(self, next: int, failure: str) -> None:
        self._live: dict[int, int] = {}
        """By segment: bytes of messages that are still in their queue."""
        self._next = next
        """The number of the next Append record."""
        self.lsn = 0
        self._messages = 0
        self._sync_wanted = False
        self._in_flight: Commit | None = None
        self.failure = failure
        self.is_group_open = False
        self._usage = Usage()

    @abstractmethod
    def _forget(self, first: int, last: int) -> None:
        """Removes the records `first` to before `last`, whose messages have all left their queues."""

    def _broken(self) -> StoreBrokenError:
        return StoreBrokenError(f"the store accepts no records: {self.failure}")

    def _located(self, record: Append, size: int) -> Location:
        """The location of the next Append record, whose messages have so many bytes."""
        number = self._next
        self._next = number + 1
        segment = number // limits.STORE_RECORDS_AT_ONCE
        self._live[segment] = self._live.get(segment, 0) + size * len(record.targets)
        self._messages += record.last - record.first
        return Location(segment, number, 1)

    @property
    def is_crowded(self) -> bool:
        """See `Store.is_crowded`: no append waits for a commit; the credit of links bounds what waits."""
        return False

    @property
    def position(self) -> Position:
        """See `Store.position`."""
        return self

    def _begin(self, commit: _Commit) -> _Commit:
        """Begins a commit of all records so far."""
        if self.failure:
            raise StoreBrokenError(f"the store commits nothing: {self.failure}")
        assert self._in_flight is None, "one commit at a time"
        self._in_flight = commit
        self._messages = 0
        self._sync_wanted = False
        return commit

    def end_commit(self, commit: Commit) -> None:
        """See `Store.end_commit`."""
        assert commit is self._in_flight, "the commit that was begun"
        self._in_flight = None
        self._usage.commits += 1
        self._usage.records += commit.records
        self._usage.messages += commit.messages

    def release(self, segment: int, size: int) -> None:
        """See `Store.release`."""
        left = self._live.get(segment, 0) - size
        self._live[segment] = left
        if left <= 0 and segment < self._next // limits.STORE_RECORDS_AT_ONCE:
            self._live.pop(segment)
            first = segment * limits.STORE_RECORDS_AT_ONCE
            self._forget(first, first + limits.STORE_RECORDS_AT_ONCE)

    def oldest_to_clean(self) -> int | None:
        """See `Store.oldest_to_clean`: released memory, and the space of deleted rows, is used again."""
        return None

    def drop(self, segment: int, now_ms: int = 0) -> None:
        """See `Store.drop`."""
        raise ValueError(f"segment {segment} can't be dropped: this store needs no cleaning")


class MemoryStore(NumberedStore):
    """See `Store` in store.py."""

    outlives: Final = False

    def __init__(self) -> None:
        super().__init__(0, "")
        self._appends: dict[int, Append] = {}
        self._records = 0

    def recover(self, memory_bytes: int, now_ms: int = 0) -> Recovered:
        """See `Store.recover`: it is empty."""
        return Recovered()

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        """See `Store.append`."""
        if self.failure:
            raise self._broken()
        if self.is_group_open:
            record.flags |= CONTINUED
        self.lsn += 1
        self._records += 1
        self._sync_wanted |= needs_sync(record)
        if not isinstance(record, Append):
            return None
        # The caller's batch drops its data when it is spilled; this copy keeps it.
        batch = record.batch
        data, ends = batch.loaded()
        location = self._located(record, Run(batch, record.first, record.last, 0).size)
        kept = batch.alike(data, ends, batch.count, batch.size, batch.base, location)
        self._appends[location.offset] = Append(
            list(record.targets), 0, 0, kept, record.first, record.last, record.attempts, record.flags
        )
        return location

    @property
    def no_room(self) -> str:
        """See `Store.no_room`: this store has no limit; the shard's memory mark bounds it."""
        return ""

    def reserve(self, size: int, now_ms: int = 0) -> None:
        """See `Store.reserve`: this store has no limit; the shard's memory mark bounds it."""
        if self.failure:
            raise self._broken()

    @property
    def pending(self) -> bool:
        """See `Store.pending`."""
        return self._records > 0

    def begin_commit(self) -> MemoryCommit:
        """See `Store.begin_commit`."""
        commit = self._begin(MemoryCommit(self._records, self._messages, self._sync_wanted))
        self._records = 0
        return commit

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

    def _forget(self, first: int, last: int) -> None:
        for number in range(first, last):
            self._appends.pop(number, None)

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
