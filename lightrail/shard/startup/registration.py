"""Registration: how a shard joins the cluster: its directory, its number, its entry."""

import asyncio
from dataclasses import replace

from lightrail.cluster.joining import Joining, patiently, reachable_metrics
from lightrail.cluster.map import SHARDS
from lightrail.cluster.membership import (
    MemberRefusedError,
    allocate_shard,
    check_disk,
    pin_disk,
    shard_records,
)
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.shard.journal.extent import NOTHING
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import NewerFormatError, Store, StoreError
from lightrail.shard.startup import data_directory as residences
from lightrail.shard.startup.data_directory import DataDirectory
from lightrail.shard.startup.start import Start
from lightrail.telemetry.process import CannotServeError


async def move_in(joining: Joining, cluster: str) -> tuple[DataDirectory, Start]:
    """The directory of this shard and, unless it is configured, its number; see data_directory.py and
    start.py.

    Raises CannotServeError, StoppedError.
    """
    process = joining.process
    settings = process.settings
    try:
        if process.auto:

            async def allocate(disk: str) -> int:
                return await patiently(process, lambda: allocate_shard(joining.coordinator, disk))

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
        disk = data_directory.disk
        if settings.store != "memory":
            known = await patiently(process, lambda: shard_records(joining.coordinator))
            check_disk(process.id, known.get(process.id), disk, data_directory.directory)
        joining.own = replace(joining.own, disk=disk or "")
        start = Start(joining, data_directory)
        await start.until_alone()
    except (StoreError, MemberRefusedError) as error:
        raise CannotServeError(str(error), heals=not isinstance(error, NewerFormatError)) from None
    return data_directory, start


async def make_known(
    joining: Joining,
    data_directory: DataDirectory,
    start: Start,
    store: Store,
    disk: str,
    address: str,
    page: Endpoint,
) -> None:
    """Registers the shard, which serves at `address`. Raises CannotServeError, StoppedError."""
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
        disk=disk,
        address=joining.reachable(address),
        metrics=reachable_metrics(process.settings, page),
    )
