"""Local replicas: all members of shards with replicas on one machine, for trying them out.

    DATA/replica-1/shard-0      the first member of shard 0
    DATA/replica-2/shard-0      the second one, with the same messages

Each directory ``replica-N`` stands for a machine: its members name the host ``HOST/N``, because the members
of a shard lie on distinct hosts.
"""

import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lightrail.cli.supervisor import ProcessPlan
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, Coordinator, CoordinatorError, Write
from lightrail.cluster.map import SHARD_SETS, ShardRecord
from lightrail.cluster.membership import free_number, shard_records
from lightrail.cluster.replica_sets import REPLICAS, ReplicaSet
from lightrail.cluster.sqlite import FILE_NAME
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings
from lightrail.shard.startup import data_directory

_NAME: Final = re.compile(r"replica-([1-9][0-9]?)")


class LocalReplicasError(Exception):
    """The directory has something else; the message has what was expected, what was found and what to do."""


def directory(data: str, member: int) -> str:
    """The data directory of the members with this number, from 1."""
    return os.path.join(data, f"replica-{member}")


def made(data: str) -> list[int]:
    """Numbers of the directories that exist."""
    try:
        names = os.listdir(data)
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def known(data: str) -> list[int]:
    """Shards of which some member has a directory, by number."""
    return sorted({shard for member in made(data) for shard in data_directory.known(directory(data, member))})


def check(settings: Settings) -> None:
    """Checks that the data directory was made with as many replicas as the settings have, or is new.

    Raises LocalReplicasError, SettingsError.
    """
    data, replicas = settings.data, settings.replicas
    found = made(data)
    if replicas == 1:
        if found:
            raise LocalReplicasError(
                f"expected a data directory without replicas, found {directory(data, found[-1])}: its "
                f"messages would not be served. Start with --replicas {found[-1]}, or choose another one "
                "with --data"
            )
        return
    if settings.store != "journal":
        raise SettingsError(
            f"replicas is {replicas} and store is {settings.store!r}; expected store journal, the only one "
            "that has replicas"
        )
    alone = data_directory.known(data)
    if alone or os.path.exists(os.path.join(data, FILE_NAME)):
        raise LocalReplicasError(
            f"expected a data directory with replicas, or an empty one, found {data} of a broker without "
            f"replicas (shards {', '.join(map(str, alone)) or 'none'}): its messages would not be served. "
            "Start without --replicas, or choose another one with --data"
        )
    if found and found[-1] > replicas:
        raise LocalReplicasError(
            f"expected at most {replicas} replicas in {data}, found {directory(data, found[-1])}: start with "
            f"--replicas {found[-1]}"
        )


async def reserve_shards(settings: Settings, coordinator: Coordinator) -> None:
    """Gives the shards that have no directory yet one, with a number that no other machine has.

    Raises LocalReplicasError: a shard was made with another number of replicas. CoordinatorError.
    """
    data = settings.data
    for entry in await coordinator.entries(REPLICAS):
        found = ReplicaSet.decode(entry)
        if found.shard in known(data) and found.replicas != settings.replicas:
            raise LocalReplicasError(
                f"expected {found.replicas} replicas of shard {found.shard}, as its entry {found.key} says, "
                f"found --replicas {settings.replicas}: start with --replicas {found.replicas}, and change "
                f"it with `lightrail-admin shard replicas {found.shard} --replicas {settings.replicas}` first"
            )
    for _ in range(settings.shards - len(known(data))):
        await _reserve_shard(data, coordinator)


async def _reserve_shard(data: str, coordinator: Coordinator) -> None:
    for _ in range(ATTEMPTS_MAX):
        number = free_number({*await shard_records(coordinator), *known(data)})
        # Before its entry: a process that ends in between leaves no number that nobody uses.
        path = os.path.join(directory(data, 1), f"shard-{number}")
        os.makedirs(path, mode=0o700)
        try:
            await coordinator.write([Write(f"{SHARD_SETS}{number}", ShardRecord(number).encode(), 0)])
        except ConflictError:
            os.rmdir(path)
            continue
        return
    raise CoordinatorError("other processes keep taking the numbers of shards: try again")


def plans(settings: Settings, module: str) -> Iterator[ProcessPlan]:
    """The processes of all members."""
    host = settings.replica_host or socket.gethostname()
    for shard in known(settings.data):
        for member in range(1, settings.replicas + 1):
            own = replace(
                settings,
                data=directory(settings.data, member),
                archive=settings.archive and directory(settings.archive, member),
                replica_host=f"{host}/{member}",
            )
            command = (sys.executable, "-m", module)
            yield ProcessPlan("shard", shard, command, member=member, settings=own)
