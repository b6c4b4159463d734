"""The shard process, started by the supervisor or by `lightrail shard`."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Final

from lightrail import native

if __name__ == "__main__":
    # Before the modules that a message passes are imported.
    native.install()

from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.history import begin
from lightrail.cluster.joining import Joining, patiently
from lightrail.cluster.map import Map, MapChanges
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.journal.record import range_of
from lightrail.model.clock import wall_ms
from lightrail.namespace.directory import Directory
from lightrail.namespace.service import Service
from lightrail.shard.effects.actions import Actions
from lightrail.shard.engine.engine import Engine
from lightrail.shard.engine.server import Server
from lightrail.shard.journal.identity import Extent
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import Recovered
from lightrail.shard.moving.mover import Mover
from lightrail.shard.queues.declarations import Deletions, ExpiredName
from lightrail.shard.replication.replica import Replica
from lightrail.shard.requests.journal_requests import JournalRequests
from lightrail.shard.startup.arrival import make_known, move_in
from lightrail.shard.startup.data_directory import DataDirectory
from lightrail.shard.startup.member_start import MemberStart
from lightrail.shard.startup.storage import Storage, recover
from lightrail.shard.transactions.decision_requests import DecisionRequests
from lightrail.shard.upkeep.collecting import Collecting
from lightrail.shard_client.peers.pool import Pool
from lightrail.telemetry import exposition
from lightrail.telemetry.metrics import registry
from lightrail.telemetry.process import CannotServeError, Process, main
from lightrail.telemetry.shard import SHARD_FAMILIES, ShardCounts

MOVE_SOURCE_IDLE_MS: Final[int] = 5_000
"""Idle time after which a connection to another shard is closed."""

log = logging.getLogger("lightrail.shard")


async def serve(process: Process) -> None:
    """Serves until a request to stop."""
    log.info(native.described())
    loop = asyncio.get_running_loop()
    counts = ShardCounts(process.settings.memory_mark)
    runner, page = await exposition.of_process(process, registry(SHARD_FAMILIES, counts), shard=counts)
    joining = await Joining.begin(process)
    coordinator = joining.coordinator
    cluster = await patiently(process, coordinator.cluster_id)
    data_directory, start, found = await move_in(joining, cluster)
    directory, map = follow(coordinator)
    replica = None
    if isinstance(start, MemberStart):
        replica = Replica(joining, data_directory, map, start, cluster)
        found = await replica.until_owner(str(page))
    counts.queues_placed = lambda: map.loads[process.id]
    process.running.show(COORDINATOR_FAMILIES, coordinator.counts)
    # Before the recovery, which makes as many objects as the backlog has.
    collecting = Collecting()
    collecting.begin(loop)
    deletions = Deletions(Service(coordinator, directory))
    movers: list[Mover] = []

    def ask(actions: Actions) -> None:
        deletions.begin(actions.expired)
        deletions.keep(actions.kept)
        for queue in actions.wanted:
            for mover in movers:
                mover.take_back(queue)

    with collecting.paused():
        judge = start.judge if replica is None else replica.judge
        storage, engine = await open_engine(
            joining, cluster, data_directory, judge, directory, map, counts, found, replica
        )
    store, marks = storage.store, storage.marks
    address = joining.wire or process.shard_address(process.id)
    try:
        server = Server(loop, engine, store, counts, joining.wiring, address, storage.archiver, ask=ask)
    except OSError as error:
        raise joining.cannot_bind(error) from None
    owning = None
    if replica is not None and found is not None:
        assert isinstance(store, Journal)
        owning = replica.own(found, store, server)

    def deletion_ended(attempt: ExpiredName, error: CoordinatorError | None) -> None:
        engine.deletion_ended(attempt, error, server.now_ms())
        server.turn()

    deletions.when_ended = deletion_ended
    engine.coordinator_answers = lambda: bool(coordinator.counts.up)
    marks.begin(loop, server.turn)
    storage.locks.begin(loop, engine.keyed_locks, server.now_ms())
    reading = None if storage.journals is None else JournalRequests(loop, storage.journals, server.turn)
    if reading is not None:
        engine.answer(reading.operations)
    await make_known(
        joining,
        data_directory,
        start,
        store,
        storage.disk,
        server.address,
        page,
        takes_over=owning is not None,
    )
    if owning is not None:
        owning.may_change = True
    if replica is None:
        follow_replicas(process, map)
    keeping = asyncio.create_task(start.keep(store))
    mover, sources = moving(joining, engine, server, directory, map, counts)
    movers.append(mover)
    decisions = DecisionRequests(
        engine.shard, engine.transactions, sources, server.turn, server.now_ms, engine.commit_failed
    )
    deciding = asyncio.create_task(decisions.run())
    process.report_ready(metrics=str(page))
    await until_stop(process, server)
    if owning is not None:
        await owning.prepare()
    keeping.cancel()
    deciding.cancel()
    await mover.close()
    sources.close()
    if reading is not None:
        reading.close()
    await server.close()
    if owning is not None:
        await owning.close()
    if replica is not None:
        await replica.close()
    collecting.close()
    marks.close(engine.last_marks())
    storage.locks.close(server.now_ms())
    await asyncio.gather(keeping, deciding, return_exceptions=True)
    await start.close(store)
    await runner.cleanup()
    await deletions.close()
    await joining.leave()
    data_directory.leave()


def follow_replicas(process: Process, map: Map) -> None:
    """Ends the process of a shard without replicas as soon as it has some: it starts again as their owner."""

    def changed(_: MapChanges) -> None:
        if process.id in map.replica_sets and process.settings.store == "journal":
            process.fail(
                f"shard {process.id} has replicas from now on; it starts again as one of their members"
            )

    map.listen(changed)
    changed(MapChanges())


def follow(coordinator: Coordinator) -> tuple[Directory, Map]:
    """The current names and placements."""
    directory = Directory(coordinator)
    directory.refresh()
    map = Map(coordinator)
    map.refresh()
    return directory, map


async def open_engine(
    joining: Joining,
    cluster: str,
    data_directory: DataDirectory,
    judge: Callable[[Extent], None],
    directory: Directory,
    map: Map,
    counts: ShardCounts,
    replicas: ReplicaSet | None,
    replica: Replica | None,
) -> tuple[Storage, Engine]:
    """The engine with all recovered queues. Raises CannotServeError, StoppedError.

    Args:
        judge: checks how far the journal reaches, and raises StoreError if it lacks records.
    """
    process = joining.process
    started = time.perf_counter()
    now_ms = wall_ms()
    standby = None if replica is None else replica.standby
    storage, recovered = recover(
        process, data_directory, cluster, judge, map, counts, now_ms, replicas, standby
    )
    if replicas is not None:
        # The former owner may have written queues until the first segment of this one was on disk: names and
        # placements that are older would be judged wrongly.
        await patiently(process, lambda: joining.coordinator.current(replicas.key))
        directory.refresh()
    await compare_histories(process, joining.coordinator, directory, recovered)
    map.refresh()
    engine = Engine(
        shard=process.id,
        boot=process.boot,
        store=storage.store,
        recovered=recovered,
        counts=counts,
        memory_mark=process.settings.memory_mark,
        max_delivery_count=process.settings.max_delivery_count,
        now_ms=now_ms,
        names=directory,
        map=map,
        marks=storage.marks,
        kept_locks=storage.locks,
    )
    log.info(
        "recovered %d messages of %d queues in %.2f s",
        sum(run.count for queue in recovered.queues for run in queue.runs),
        len(recovered.queues),
        time.perf_counter() - started,
    )
    for first, last in recovered.lost:
        why = "a repair removed them"
        if range_of(first) != range_of(last):
            why = "they were given up when another member was promoted"
        log.warning("records %d to %d are lost: %s", first, last - 1, why)
    return storage, engine


async def compare_histories(
    process: Process, coordinator: Coordinator, directory: Directory, recovered: Recovered
) -> None:
    """Begins a new history if the journal has revisions that the coordinator has not reached.

    Then the coordinator was set back, and names that it lacks were not dropped. Raises CannotServeError,
    Stopped.
    """
    declared = [queue.declared for queue in recovered.queues]
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
    joining: Joining, engine: Engine, server: Server, directory: Directory, map: Map, counts: ShardCounts
) -> tuple[Mover, Pool]:
    """The mover and its sources; close the mover first."""
    loop = asyncio.get_running_loop()
    coordinator = joining.coordinator

    def address(shard: int) -> str | None:
        member = map.shards.get(shard)
        return None if member is None else member.address

    def follow_soon() -> None:
        # Later, not within a write of this process.
        loop.call_soon(server.follow_directory)

    sources = Pool(
        loop,
        joining.wiring,
        name=f"shard-{engine.shard}",
        boot=engine.boot,
        address=address,
        now_ms=server.now_ms,
        idle_ms=MOVE_SOURCE_IDLE_MS,
    )
    mover = Mover(
        shard=engine.shard,
        engine=engine,
        coordinator=coordinator,
        map=map,
        get_name=directory.get,
        sources=sources,
        counts=counts,
        turn=server.turn,
        now_ms=server.now_ms,
    )
    coordinator.on_news(follow_soon)
    mover.begin_due()
    return mover, sources


async def until_stop(process: Process, server: Server) -> None:
    """Waits for a request to stop, and meanwhile reports whether the shard serves.

    Raises CannotServeError if the server fails.
    """
    process.check = server.not_ready
    process.notice = server.disk.notice
    stop = asyncio.create_task(process.until_stop())
    failed = asyncio.create_task(server.failed.wait())
    await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        raise CannotServeError(f"{server.not_ready()}; the shard starts again and recovers what is on disk")
    failed.cancel()


if __name__ == "__main__":
    sys.exit(main("shard", serve))
