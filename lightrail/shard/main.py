"""The shard process, started by the supervisor or by `lightrail shard`."""

import asyncio
import logging
import os
import sys
import time

import zmq

from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.history import begin
from lightrail.cluster.joining import Joining, patiently
from lightrail.cluster.map import Map
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service
from lightrail.shard.actions import Actions
from lightrail.shard.archiving.archive import Journals
from lightrail.shard.archiving.archiver import Archiver
from lightrail.shard.archiving.folders import RealFolders
from lightrail.shard.archiving.retention import Rule
from lightrail.shard.collecting import Collecting
from lightrail.shard.declared import declared_of
from lightrail.shard.delivery_marks import DeliveryMarks, FileMarks
from lightrail.shard.engine import Engine
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.identity import FILE as IDENTITY_FILE
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Recovered, Store, StoreError, StoreRefusedError
from lightrail.shard.journal_requests import JournalRequests
from lightrail.shard.mover.mover import Mover
from lightrail.shard.mover.sources import ShardSources
from lightrail.shard.registration import make_known, move_in
from lightrail.shard.server import Server
from lightrail.telemetry import exposition
from lightrail.telemetry.archive import ARCHIVE_FAMILIES, ArchiveCounts
from lightrail.telemetry.metrics import registry
from lightrail.telemetry.process import CannotServeError, Process, main
from lightrail.telemetry.shard import SHARD_FAMILIES, ShardCounts

log = logging.getLogger("lightrail.shard")

SQLITE_FILE = "messages.sqlite"


def open_store(settings: Settings, shard: int, cluster: str) -> Store:
    """The store that the settings name, for this shard of this installation."""
    directory = os.path.join(settings.data, f"shard-{shard}")
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


def archiver_of(settings: Settings, store: Store, places: Map, counts: ArchiveCounts) -> Archiver | None:
    """The archiver of a recovered store; None if that is no journal."""
    if not isinstance(store, Journal):
        return None
    return Archiver(
        store,
        RealFolders(settings.archive_directory),
        rule=Rule(settings.archive_hours, settings.archive_bytes),
        seal_ms=settings.archive_seal,
        readers=lambda: places.readers,
        counts=counts,
    )


async def serve(process: Process) -> None:
    """Serves until the process shall stop."""
    settings = process.settings
    loop = asyncio.get_running_loop()
    counts = ShardCounts(settings.memory_mark)
    runner, page = await exposition.of_process(process, registry(SHARD_FAMILIES, counts), shard=counts)
    joining = await Joining.begin(process)
    coordinator = joining.coordinator
    cluster = await patiently(process, coordinator.cluster_id)
    data_directory, start = await move_in(joining, cluster)
    directory = Directory(coordinator)
    directory.refresh()
    places = Map(coordinator)
    places.refresh()
    counts.queues_placed = lambda: places.loads[process.id]
    service = Service(coordinator, directory)
    deleting: set[asyncio.Task[None]] = set()

    movers: list[Mover] = []

    def ask(actions: Actions) -> None:
        for name in actions.expired:
            task = loop.create_task(_delete(service, name))
            deleting.add(task)
            task.add_done_callback(deleting.discard)
        for queue in actions.wanted:
            for mover in movers:
                mover.take_back(queue)

    if settings.store != "memory":
        counts.store_directory = os.path.join(settings.data, f"shard-{process.id}")
    process.running.show(COORDINATOR_FAMILIES, coordinator.counts)
    # Before the recovery, which makes as many objects as the backlog has.
    collecting = Collecting()
    collecting.begin(loop)
    started = time.perf_counter()
    now_ms = Server.now_ms()
    try:
        store = open_store(settings, process.id, cluster)
        disk = data_directory.settle(settings.store, cluster)
        if isinstance(store, Journal):
            store.judge = start.judge
        recovered = store.recover(settings.memory_mark, now_ms)
        archive_counts = ArchiveCounts()
        archiver = archiver_of(settings, store, places, archive_counts)
        if archiver is not None:
            process.running.show(ARCHIVE_FAMILIES, archive_counts)
        marks = DeliveryMarks() if settings.store == "memory" else FileMarks(data_directory.directory)
        # A journal that had lost its identity file has made a new one.
        disk = data_directory.disk or disk
    except StoreError as error:
        raise CannotServeError(str(error)) from error
    await compare_histories(process, coordinator, directory, recovered)
    places.refresh()
    engine = Engine(
        shard=process.id,
        boot=process.boot,
        store=store,
        recovered=recovered,
        counts=counts,
        memory_mark=settings.memory_mark,
        max_delivery_count=settings.max_delivery_count,
        now_ms=now_ms,
        names=directory,
        places=places,
        marks=marks,
    )
    if isinstance(marks, FileMarks):
        marks.begin(loop)
    log.info(
        "recovered %d messages of %d queues in %.2f s",
        sum(run.count for queue in recovered.queues for run in queue.runs),
        len(recovered.queues),
        time.perf_counter() - started,
    )
    for first, last in recovered.lost:
        log.warning("records %d to %d are lost for good: a repair gave them up", first, last - 1)
    del recovered
    address = joining.wire or process.shard_address(process.id)
    try:
        server = Server(loop, engine, store, counts, address, joining.key, archiver, ask=ask)
    except zmq.ZMQError as error:
        raise joining.cannot_bind(error) from None
    if isinstance(marks, FileMarks):
        marks.on_release(server.turn)
    reading = None
    if isinstance(store, Journal) and archiver is not None:
        reading = JournalRequests(loop, Journals(store, archiver.contents), server.turn)
        engine.answer(reading.operations)
    await make_known(joining, data_directory, start, store, disk, server.address, page)
    keeping = asyncio.create_task(start.keep(store))
    mover, sources = moving(joining, engine, server, directory, places, counts)
    movers.append(mover)
    process.check = server.not_ready
    process.notice = server.disk.notice
    process.report_ready(metrics=str(page))
    stop = asyncio.create_task(process.until_stop())
    failed = asyncio.create_task(server.failed.wait())
    await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        raise CannotServeError(f"{server.not_ready()}; the shard starts again and recovers what is on disk")
    failed.cancel()
    keeping.cancel()
    await mover.close()
    sources.close()
    if reading is not None:
        reading.close()
    await server.close()
    collecting.close()
    if isinstance(marks, FileMarks):
        marks.close(engine.last_marks())
    await asyncio.gather(keeping, return_exceptions=True)
    await start.close(store)
    await runner.cleanup()
    await asyncio.gather(*deleting)
    await joining.leave()
    data_directory.leave()


async def compare_histories(
    process: Process, coordinator: Coordinator, directory: Directory, recovered: Recovered
) -> None:
    """Begins a new history where the journal knows revisions that the coordinator has not reached.

    Then the coordinator was set back, and what it lacks was not dropped. Raises CannotServeError, Stopped.
    """
    declared = [declared_of(queue.policy) for queue in recovered.queues]
    newest = max(
        (each.created or 0 for each in declared if each.history == directory.history and not each.copy),
        default=0,
    )
    if newest <= directory.revision:
        return
    log.error(
        "the coordinator was set back: it is at revision %d, and the journal has a queue of revision "
        "%d. No queue is "
        "deleted because the coordinator lacks it or has another one of its name",
        directory.revision,
        newest,
    )
    await patiently(process, lambda: begin(coordinator))
    directory.refresh()


def moving(
    joining: Joining,
    engine: Engine,
    server: Server,
    directory: Directory,
    places: Map,
    counts: ShardCounts,
) -> tuple[Mover, ShardSources]:
    """The mover and its sources; close the mover first."""
    loop = asyncio.get_running_loop()
    coordinator = joining.coordinator

    def address(shard: int) -> str | None:
        member = places.shards.get(shard)
        return None if member is None else member.address

    def look() -> None:
        # Not from within a write of ours.
        loop.call_soon(server.look)

    sources = ShardSources(
        loop, shard=engine.shard, boot=engine.boot, address=address, now_ms=server.now_ms, key=joining.key
    )
    mover = Mover(
        shard=engine.shard,
        engine=engine,
        coordinator=coordinator,
        places=places,
        get_name=directory.get,
        sources=sources,
        counts=counts,
        turn=server.turn,
        now_ms=server.now_ms,
    )
    coordinator.on_news(look)
    mover.look()
    return mover, sources


async def _delete(service: Service, record: Name) -> None:
    """Deletes a queue whose last consumer has detached; the shard tries again if that fails."""
    try:
        await service.expire(record)
    except CoordinatorError as error:
        log.warning("%s has lost its last consumer and can't be deleted yet: %s", record.name, error)


if __name__ == "__main__":
    sys.exit(main("shard", serve))
