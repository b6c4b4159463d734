"""Storage: the files of one shard: the store, the archive of its journal, delivery marks and locks.

`DiskWatch` watches whether the disk answers and has room, and logs each change.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from lightrail.cluster.map import Map
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.model.settings import Settings
from lightrail.shard.archiving.archive import Journals
from lightrail.shard.archiving.archiver import Archiver
from lightrail.shard.archiving.contents import RealFolders
from lightrail.shard.archiving.retention import Rule
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.identity import IDENTITY_FILE as IDENTITY_FILE
from lightrail.shard.journal.identity import Extent
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.standby import Standby
from lightrail.shard.journal.store import NewerFormatError, Recovered, Store, StoreError, StoreRefusedError
from lightrail.shard.queues.delivery_marks import DeliveryMarks, FileMarks
from lightrail.shard.queues.lock_file import FileLocks, KeptLocks
from lightrail.shard.replicas.marks import required
from lightrail.shard.startup.data_directory import DataDirectory
from lightrail.telemetry.archive import ARCHIVE_FAMILIES, ArchiveCounts
from lightrail.telemetry.process import CannotServeError, Process
from lightrail.telemetry.shard import ShardCounts

DISK_SILENCE_MS: Final[int] = 5_000
"""Time of a commit after which the disk counts as hanging, and the shard is silent until it answers."""
DISK_ROOM_MS: Final[int] = 10_000
"""Time for which messages must find room until a full disk counts as having room again."""

log = logging.getLogger("lightrail.shard.startup.storage")


@dataclass(slots=True, eq=False, repr=False)
class DiskWatch:
    """Watches the commits of one shard. Times are seconds of a monotonic clock."""

    _begun_s: float | None = None
    """When the commit that is under way began."""
    _is_reported: bool = False
    """Whether it was logged that the disk does not answer."""
    _full: str = ""
    _room_s: float | None = None
    """Time at which a full disk had room again."""

    def commit_begun(self, now_s: float) -> None:
        """Notes the begin of a commit."""
        self._begun_s = now_s

    def commit_ended(self, now_s: float) -> None:
        """Notes the end of the commit, successful or not."""
        if self._is_reported:
            self._is_reported = False
            log.warning("the disk answers again; a commit took %.1f s", self.age_s(now_s))
        self._begun_s = None

    def age_s(self, now_s: float) -> float:
        """Seconds that the commit under way has taken so far; 0 if there is none."""
        return 0.0 if self._begun_s is None else max(0.0, now_s - self._begun_s)

    def is_silent(self, now_s: float) -> bool:
        """Whether the disk has not answered for too long to serve senders."""
        return self._begun_s is not None and self.age_s(now_s) * 1000 > DISK_SILENCE_MS

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room for messages."""
        return bool(self._full)

    def watch(self, full: str, now_s: float) -> None:
        """Called once per heartbeat; `full` is why there is no room for messages, empty if there is."""
        if self.is_silent(now_s) and not self._is_reported:
            self._is_reported = True
            log.error(
                "%s: the shard sends nothing to frontends until it does, so that senders get their messages "
                "back after shard_wait; check the disk, its controller or the network behind it",
                self.silence(now_s),
            )
        if full:
            if not self._full:
                log.error("no room for messages: %s", full)
            self._full, self._room_s = full, None
        elif self._full:
            # A nearly full disk alternates between room and no room: report this once.
            if self._room_s is None:
                self._room_s = now_s
            if (now_s - self._room_s) * 1000 >= DISK_ROOM_MS:
                log.warning("there is room for messages again")
                self._full, self._room_s = "", None

    def silence(self, now_s: float) -> str | None:
        """Why the shard does not serve, or None."""
        if not self.is_silent(now_s):
            return None
        return f"the disk has not answered for {self.age_s(now_s):.0f} s"

    def notice(self) -> str | None:
        """A warning for operators of a shard that serves, or None."""
        return f"refuses messages: {self._full}" if self._full else None


SQLITE_FILE = "messages.sqlite"


class Storage(NamedTuple):
    """The opened and recovered storage."""

    store: Store
    disk: str
    """Id of the disk."""
    archiver: Archiver | None
    """The archiver of a journal; None for other stores."""
    journals: Journals | None
    """The journal and its archive, for readers."""
    marks: DeliveryMarks
    locks: KeptLocks


def recover(
    process: Process,
    data_directory: DataDirectory,
    cluster: str,
    judge: Callable[[Extent], None],
    map: Map,
    counts: ShardCounts,
    now_ms: int,
    replicas: ReplicaSet | None = None,
    standby: Standby | None = None,
) -> tuple[Storage, Recovered]:
    """Opens what the settings name. `judge` refuses a journal that lacks records. Raises CannotServeError.

    Args:
        replicas: of a shard that this process owns, with its epoch and the members that are required.
            Then messages are read when they are delivered: a take-over is to be short.
        standby: what such a process has read of its journal while it followed.
    """
    settings = process.settings
    if settings.store != "memory":
        counts.store_directory = data_directory.directory
    try:
        store = _open(settings, data_directory.directory, process.id, cluster)
        disk = data_directory.settle(settings.store, cluster)
        if isinstance(store, Journal):
            store.judge = judge
        if isinstance(store, Journal) and replicas is not None:
            store.marks.require(required(replicas))
            store.promoted_in = replicas.promoted_in
            recovered = store.recover(0, now_ms, replicas.epoch, standby)
        else:
            recovered = store.recover(settings.memory_mark, now_ms)
        archiver: Archiver | None = None
        journals: Journals | None = None
        if isinstance(store, Journal):
            archive_counts = ArchiveCounts()
            process.running.show(ARCHIVE_FAMILIES, archive_counts)
            archiver = Archiver(
                store,
                RealFolders(settings.archive_directory),
                rule=Rule(settings.archive_hours, settings.archive_bytes),
                seal_ms=settings.archive_seal,
                readers=lambda: map.readers,
                counts=archive_counts,
            )
            journals = Journals(store, archiver.contents)
        marks, locks = DeliveryMarks(), KeptLocks()
        if settings.store != "memory":
            marks = file_marks = FileMarks(data_directory.directory, is_followed=replicas is not None)
            if replicas is None:
                # A former ownership says nothing of what others have locked since: a take-over ends locks.
                locks = FileLocks(data_directory.directory, file_marks)
        # A journal that had lost its identity file has written a new one.
        return Storage(store, data_directory.disk or disk, archiver, journals, marks, locks), recovered
    except StoreError as error:
        raise CannotServeError(str(error), heals=not isinstance(error, NewerFormatError)) from error


def _open(settings: Settings, directory: str, shard: int, cluster: str) -> Store:
    """The store that the settings name, for this shard of this installation."""
    database = os.path.join(directory, SQLITE_FILE)
    has_journal = os.path.exists(os.path.join(directory, IDENTITY_FILE))
    if settings.store != "sqlite" and os.path.exists(database):
        raise StoreRefusedError(_other_store(directory, "sqlite", settings.store))
    if settings.store != "journal" and has_journal:
        raise StoreRefusedError(_other_store(directory, "journal", settings.store))
    if settings.store == "memory":
        return MemoryStore()
    os.makedirs(directory, exist_ok=True)
    if settings.store == "sqlite":
        return SqliteStore(database, cluster, shard)
    return Journal(RealFiles(directory), cluster, shard, segment_bytes=settings.segment_bytes)


def _other_store(directory: str, found: str, asked: str) -> str:
    return (
        f"{directory} holds messages in the store {found!r}, and the setting store is {asked!r}: "
        f"set it to {found!r}, or use another data directory"
    )
