"""The port to the store of durable messages: the journal, SQLite, or memory.

One thread (the event loop's) calls everything except `Commit.perform` and `read`. A group of records is
committed in this order:

    if store.pending and nothing is being committed:
        commit = store.begin_commit()           # loop: takes all gathered records
        commit.perform()                        # commit thread: writes, syncs; may raise OSError
        store.end_commit(commit)                # loop: now its records are on this disk
        (or store.fail_commit(commit, error))   # loop: the store refuses everything from now on

`append` gathers the next group meanwhile. At most one commit is under way. Answers wait until their records
are accepted: `Position.accepted`. In a store that only its owner has, that is the end of their commit.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lightrail.journal.record import (
    SPILLED,
    Delivered,
    Outcome,
    ReceiverChange,
    ReceiverEvent,
    Settle,
    Terminus,
    TerminusEvent,
    TransactionStep,
)
from lightrail.shard.journal.kept_links import RecoveredReceiver, RecoveredTerminus
from lightrail.shard.journal.record import Append, Declared, Record, declared_of
from lightrail.shard.queue.values.runs import Location, Run

if TYPE_CHECKING:
    from lightrail.shard.journal.commit import Reached


class StoreError(Exception):
    """The error of a store; its message has what was expected, what was found, and what to do."""


class StoreFullError(StoreError):
    """There is no room for this record now. Try again later: when space is back, appends work again."""


class StoreBusyError(StoreFullError):
    """There will be room when the commit under way has ended; until then the store `is_crowded`."""


class StoreBrokenError(StoreError):
    """A write or sync failed, so the state of the disk is unknown: the shard must restart and recover."""


class StoreRefusedError(StoreError):
    """The directory is another shard's or cluster's, has a newer format, or is locked by another process."""


class NewerFormatError(StoreRefusedError):
    """The store was written by a newer program, whose format this one can't read: no other start helps."""


class MirrorError(StoreError):
    """An owner's bytes or request do not fit the journal of a member, which has not changed: attach again."""


class JournalDamagedError(StoreError):
    """Stored bytes differ from the written ones, and no crash explains it."""

    def __init__(self, segment: str, offset: int, found: str) -> None:
        super().__init__(
            f"journal segment {segment} is damaged at offset {offset}: {found}. Messages may be lost, so "
            "the shard does not start. Restore the segment from a copy, or run `lightrail-admin "
            "journal repair DIRECTORY`: it sets the damaged bytes aside in a file, describes them, and "
            "lets the shard start with the rest"
        )
        self.segment = segment
        self.offset = offset
        self.found = found


@dataclass(slots=True)
class RecoveredQueue:
    """A queue as it was when the store was last written."""

    queue: int
    name: str
    policy: str
    next_sequence: int
    runs: list[Run] = field(default_factory=list)
    """Runs in order of their sequences; those beyond the allowed memory have only their location."""
    ids: list[tuple[int, bytes]] = field(default_factory=list)
    """Message-ids in the window of duplicates: its end, and the digests (see `Ids` in record.py)."""
    termini: list[RecoveredTerminus] = field(default_factory=list)
    """Termini of clients' links, with the tags of stored messages."""
    receivers: list[RecoveredReceiver] = field(default_factory=list)
    """Links on which clients receive, with their unsettled deliveries."""
    _declared: Declared | None = field(default=None, init=False)

    @property
    def declared(self) -> Declared:
        """The fields of its Queue record beside the policy."""
        return self._declared or self.decode()

    def decode(self) -> Declared:
        """Decodes `declared`, so that the next use of it costs nothing."""
        self._declared = declared_of(self.policy)
        return self._declared


@dataclass(slots=True)
class Recovered:
    """The contents of a store when it was opened."""

    queues: list[RecoveredQueue] = field(default_factory=list)
    producers: dict[int, int] = field(default_factory=dict)
    """Last batch number by producer, the least recently active first."""
    epoch: int = 0
    lsn: int = 0
    """Number of the last record."""
    sealed: bool = False
    """Whether the last record of this store is a Seal: another owner serves its queues."""
    cut_bytes: int = 0
    """Number of bytes of incomplete records that were cut from the end; none of them was committed."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of records (first, before last) that a repair gave up."""
    parts: dict[int, int] = field(default_factory=dict)
    """Number of messages stored from each partially accepted last batch, by producer id."""
    transactions: list[TransactionStep] = field(default_factory=list)
    """Open transactions over several shards."""


@dataclass(slots=True)
class Usage:
    """Figures for metrics. The first group counts from the start of the process and never falls."""

    records: int = 0
    messages: int = 0
    """Messages in committed Append records."""
    written_bytes: int = 0
    commits: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    segments_made: int = 0
    segments_dropped: int = 0

    segments: int = 0
    total_bytes: int = 0
    """Bytes on disk."""
    live_bytes: int = 0
    """Bytes on disk of messages that are still in a queue."""
    full: bool = False
    broken: str = ""
    """Reason for which the store refuses all calls; empty while it works."""


class Commit(Protocol):
    """A group of records on its way to the disk."""

    @property
    def records(self) -> int:
        """Number of records in the group."""

    @property
    def messages(self) -> int:
        """Number of messages in its Append records."""

    @property
    def synced(self) -> bool:
        """Whether the group had a record that must be on disk before answers are sent."""

    @property
    def sync_seconds(self) -> float:
        """Time that the syncs took, after `perform`."""

    def perform(self) -> None:
        """Writes and syncs the group; called once, in the commit thread.

        Raises:
            OSError: a call of the disk failed; pass the error to `fail_commit`.
        """


class Position(Protocol):
    """Numbers of records of a store."""

    lsn: int
    """Number of the last appended record; a process may count from any number. Read with every frame, so it
    is a plain attribute."""

    @property
    def is_shared(self) -> bool:
        """Whether records are accepted when other members of the shard have them, too; otherwise the end of a
        commit is its acceptance."""

    @property
    def synced_lsn(self) -> int:
        """Number of the last record that is known to be on this disk: at the end of a commit, no record after
        it needs a sync."""

    @property
    def accepted(self) -> "Reached":
        """The end of the accepted records."""


class Store(Protocol):
    """Stores records and recovers them after a crash. The module's docstring has the order of calls."""

    failure: str
    """Reason for which the store refuses all further calls: a write, a sync or another call of the disk
    failed, on any thread. Empty while it works. A plain attribute: each step of the engine reads it."""
    is_group_open: bool
    """While it is set, each record that is appended is in one group with the next one (flag CONTINUED). The
    caller that sets it resets it and appends the last record of the group, in the same turn."""

    @property
    def captures(self) -> bool:
        """Whether readers can read its records; queues can be captured only then."""

    @property
    def outlives(self) -> bool:
        """Whether its records outlive the process."""

    def recover(self, memory_bytes: int, now_ms: int = 0) -> Recovered:
        """Opens the store and returns its contents; called once, before anything else.

        Args:
            memory_bytes: bytes of messages to load into memory, shared by all queues, the heads first.

        Raises:
            JournalDamagedError: committed records cannot be read.
            StoreRefusedError: the store belongs to another shard, or is in use.
        """

    @property
    def no_room(self) -> str:
        """Why the last attempt found no room for messages; empty if it found room."""

    @property
    def is_crowded(self) -> bool:
        """Whether new messages should wait until the commit under way has ended: room is nearly used up,
        although the disk is not full."""

    @property
    def position(self) -> Position:
        """Position of the last appended record; the same object from `recover` on."""

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        """Gathers a record for the next commit.

        Returns:
            The location of an Append's messages; None for other records.

        Raises:
            StoreFullError: there is no room (settlements are accepted for longer than messages).
            StoreBrokenError: the disk failed, now or before: see `failure`.
        """

    def reserve(self, size: int, now_ms: int = 0) -> None:
        """Makes room for a group of records of `size` bytes, to be appended next without StoreFullError.

        Raises:
            StoreFullError: there is no room; nothing has changed.
            StoreBusyError: as StoreFullError, and there will be room when the commit under way has ended.
            StoreBrokenError: the disk failed, now or before: see `failure`.
        """

    @property
    def pending(self) -> bool:
        """Whether records wait for a commit."""

    def begin_commit(self) -> Commit:
        """Takes all gathered records."""

    def end_commit(self, commit: Commit) -> None:
        """Ends a commit that was performed."""

    def fail_commit(self, commit: Commit, error: BaseException) -> None:
        """Ends a commit that raised; from then on `append` and `begin_commit` raise StoreBrokenError."""

    def read(self, location: Location, queue: int, first: int, last: int) -> list[Run]:
        """The messages of a queue with sequences `first` to before `last` that are in this location.

        Any thread may call it; records that are not committed yet are found too. The runs have their data,
        are in order, and no sequence is in two of them; of a sequence that was written twice, the last record
        counts. Attempts are those of the record, which may be out of date.

        Raises:
            JournalDamagedError: the bytes differ from the written ones.
            StoreError: there is no such location, or it was removed.
        """

    def release(self, segment: int, size: int) -> None:
        """Counts `size` bytes of messages in `segment` as removed from their queue, or stored elsewhere."""

    def oldest_to_clean(self) -> int | None:
        """The segment to drop next, after its live messages were appended again, flagged REWRITTEN."""

    def drop(self, segment: int, now_ms: int = 0) -> None:
        """Drops a segment without live messages; its file is removed by a later commit.

        All records before this call are accepted before the file is removed.

        Raises:
            StoreBrokenError: the disk failed: see `failure`.
        """

    def usage(self) -> Usage:
        """The current figures."""

    def close(self, now_ms: int = 0) -> None:
        """Commits the gathered records and closes the files. No commit may be under way.

        Raises:
            OSError: the last commit failed.
        """


def only_tells(record: Record) -> bool:
    """Whether recovery does not need the record: such a record must not use the last of the space."""
    return type(record) is Delivered or (type(record) is Settle and record.outcome == Outcome.RELEASED)


def needs_sync(record: Record) -> bool:
    """Whether the record must be on disk before any answer is sent.

    Spilled messages, and deliveries, which only readers of the journal use, are written without a sync. The
    same is true of the ends of a receiver's deliveries, and of both kinds of links: if such a record is lost,
    the state is kept for longer. The end of a delivery-tag is synced with the next answer, as the client may
    use the tag again from then on.
    """
    if type(record) is Append:
        return not record.flags & SPILLED
    if type(record) is Terminus:
        return record.event != TerminusEvent.ENDED
    if type(record) is ReceiverChange:
        return record.event not in (ReceiverEvent.SETTLED, ReceiverEvent.ENDED)
    return type(record) is not Delivered
