"""Arrival: the data directory of a shard, its number, and, when it serves, its registration."""

import asyncio
from dataclasses import replace

from lightrail.cluster.joining import Joining, patiently, reachable_metrics
from lightrail.cluster.map import SHARD_SETS, SHARDS
from lightrail.cluster.membership import (
    MemberRefusedError,
    allocate_shard,
    check_disk,
    pin_disk,
    shard_records,
)
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.shard.journal.identity import NOTHING
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import NewerFormatError, Store, StoreError
from lightrail.shard.replication import joining as membership
from lightrail.shard.startup import data_directory as residences
from lightrail.shard.startup.data_directory import DataDirectory
from lightrail.shard.startup.member_start import MemberStart
from lightrail.shard.startup.start import Start
from lightrail.telemetry.directories import DirectoryRefusedError, make_data_directory
from lightrail.telemetry.process import CannotServeError


async def move_in(joining: Joining, cluster: str) -> tuple[DataDirectory, Start, ReplicaSet | None]:
    """The directory of this shard and, unless it is configured, its number; see data_directory.py and
    start.py. With the entry of a shard with replicas, of which the directory is a member.

    Raises CannotServeError, StoppedError.
    """
    process, coordinator = joining.process, joining.coordinator
    settings, host = process.settings, joining.own.host
    try:
        # It may have been removed since the supervisor made it.
        make_data_directory(settings.data)
        if process.auto:

            async def allocate(disk: str) -> tuple[int, bool]:
                if settings.replicas > 1:
                    return await patiently(
                        process, lambda: membership.allocate(coordinator, settings, disk, host)
                    )
                return await patiently(process, lambda: allocate_shard(coordinator, disk)), True

            data_directory = None
            while data_directory is None:
                data_directory = await residences.find(settings.data, settings.store, cluster, allocate)
                if data_directory is None:
                    await asyncio.sleep(limits.COORDINATOR_PAUSE_MS / 1000)
            joining.adopt(data_directory.shard)
        else:
            data_directory = residences.hold(settings.data, process.id)
            if data_directory is None:
                raise CannotServeError(residences.held_by_other(settings.data, process.id))
        found = await patiently(
            process, lambda: membership.settle(coordinator, settings, data_directory, host, cluster)
        )
        disk = data_directory.disk
        record = (await patiently(process, lambda: shard_records(coordinator))).get(process.id)
        if settings.store != "memory" and not (found is not None and disk is None):
            check_disk(process.id, record, disk, data_directory.directory)
        joining.own = replace(joining.own, disk=disk or "", storage=data_directory.storage)
        start = Start(joining, data_directory)
        if found is not None:
            if record is None:
                raise CannotServeError(
                    f"expected the entry {SHARD_SETS}{process.id}, which has the id of the journal and is "
                    f"made together with {found.key}, found none: restore it (docs/operate/backup.md)"
                )
            start = MemberStart(joining, data_directory, data_directory.member(), record.disk)
        await start.until_alone()
    except (StoreError, MemberRefusedError, DirectoryRefusedError) as error:
        raise CannotServeError(str(error), heals=not isinstance(error, NewerFormatError)) from None
    return data_directory, start, found


async def make_known(
    joining: Joining,
    data_directory: DataDirectory,
    start: Start,
    store: Store,
    disk: str,
    address: str,
    page: Endpoint,
    *,
    takes_over: bool = False,
) -> None:
    """Registers the shard, which serves at `address`.

    Args:
        takes_over: in place of the former owner, whose process may live.

    Raises CannotServeError, StoppedError.
    """
    process = joining.process
    lasting = process.settings.store != "memory"
    try:
        await patiently(
            process,
            lambda: pin_disk(
                joining.coordinator, process.id, disk, lasting=lasting, directory=data_directory.directory
            ),
        )
        await start.begin(disk, store.extent if isinstance(store, Journal) else NOTHING)
    except (StoreError, MemberRefusedError) as error:
        raise CannotServeError(str(error)) from None
    await joining.register(
        f"{SHARDS}{process.id}",
        displaces=takes_over,
        disk=disk,
        address=joining.reachable(address),
        metrics=reachable_metrics(process.settings, page),
    )
