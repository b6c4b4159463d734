"""Storage: the files of one shard: the store, the archive of its journal, and the delivery marks."""

import os
from collections.abc import Callable
from typing import NamedTuple

from lightrail.cluster.map import Map
from lightrail.model.settings import Settings
from lightrail.shard.archiving.archive import Journals
from lightrail.shard.archiving.archiver import Archiver
from lightrail.shard.archiving.folders import RealFolders
from lightrail.shard.archiving.retention import Rule
from lightrail.shard.journal.extent import Extent
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.identity import IDENTITY_FILE as IDENTITY_FILE
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import NewerFormatError, Recovered, Store, StoreError, StoreRefusedError
from lightrail.shard.queues.delivery_marks import DeliveryMarks, FileMarks
from lightrail.shard.startup.data_directory import DataDirectory
from lightrail.telemetry.archive import ARCHIVE_FAMILIES, ArchiveCounts
from lightrail.telemetry.process import CannotServeError, Process
from lightrail.telemetry.shard import ShardCounts

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


def recover(
    process: Process,
    data_directory: DataDirectory,
    cluster: str,
    judge: Callable[[Extent], None],
    map: Map,
    counts: ShardCounts,
    now_ms: int,
) -> tuple[Storage, Recovered]:
    """Opens what the settings name. `judge` refuses a journal that lacks records. Raises CannotServeError."""
    settings = process.settings
    if settings.store != "memory":
        counts.store_directory = data_directory.directory
    try:
        store = _open(settings, data_directory.directory, process.id, cluster)
        disk = data_directory.settle(settings.store, cluster)
        if isinstance(store, Journal):
            store.judge = judge
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
        marks = DeliveryMarks() if settings.store == "memory" else FileMarks(data_directory.directory)
        # A journal that had lost its identity file has written a new one.
        return Storage(store, data_directory.disk or disk, archiver, journals, marks), recovered
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
