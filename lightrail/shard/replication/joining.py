"""Joining: which member of which shard with replicas a data directory is, and how it becomes one.

A shard has replicas if its entry ``replicas/N`` exists. It is made by the first process with the setting
`replicas` whose directory is the shard's, or new; further directories join as learners. Only with etcd, and
only with the store `journal`.
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError, KeySpace, Write
from lightrail.cluster.joining import Joining, patiently
from lightrail.cluster.map import SHARD_SETS, Map, ShardRecord
from lightrail.cluster.membership import MemberRefusedError, check_disk, free_number, shard_records
from lightrail.cluster.replica_sets import REPLICAS, ReplicaSet, SetRefusedError, first, follower_key, key_of

if TYPE_CHECKING:
    from lightrail.model.settings import Settings
    from lightrail.shard.startup.data_directory import DataDirectory
    from lightrail.telemetry.process import Process


async def replica_set(coordinator: KeySpace, shard: int) -> ReplicaSet | None:
    """The entry of a shard; None if it has no replicas. Raises CoordinatorError."""
    entry = await coordinator.current(key_of(shard))
    return None if entry is None or entry.value is None else ReplicaSet.decode(entry)


async def allocate(coordinator: KeySpace, settings: "Settings", member: str, host: str) -> tuple[int, bool]:
    """A shard for a new directory: one that lacks a member, or a new one.

    Returns:
        The number of the shard, and whether the directory is its first one.

    Raises CoordinatorError.
    """
    for _ in range(ATTEMPTS_MAX):
        known = await shard_records(coordinator)
        sets = [ReplicaSet.decode(entry) for entry in await coordinator.entries(REPLICAS)]
        for own in sets:
            if member in own.members:
                return own.shard, known[own.shard].disk == member
        lacking = (
            each
            for each in sorted(sets, key=lambda each: each.shard)
            if len(each.members) < each.replicas
            and all(other.host != host for other in each.members.values())
        )
        found = next(lacking, None)
        try:
            if found is not None:
                # It is a member from now on: directories that start at once get different places.
                await coordinator.write([found.write_of(found.joined(member, host))])
                return found.shard, False
            shard = free_number(known)
            await _make(coordinator, settings, ShardRecord(shard, member), 0, host)
        except ConflictError:
            continue
        return shard, True
    raise CoordinatorError("other processes keep taking the numbers of shards: try again")


async def settle(
    coordinator: KeySpace, settings: "Settings", data_directory: "DataDirectory", host: str, cluster: str
) -> ReplicaSet | None:
    """The set of the shard of this directory, which is made if the settings want it; None without replicas.

    Raises:
        MemberRefusedError: the directory is not this shard's, or the settings allow no replicas.
        StoreRefusedError: the directory can't be used.
        CoordinatorError: the coordinator can't be reached.
    """
    if not settings.etcd or settings.store != "journal":
        if settings.replicas > 1:
            raise MemberRefusedError(
                f"replicas is {settings.replicas}; expected etcd, which has the name of a shard's owner, and "
                f"the store journal, found etcd {'set' if settings.etcd else 'not set'} and the store "
                f"{settings.store}"
            )
        return None
    shard = data_directory.shard
    for _ in range(ATTEMPTS_MAX):
        found = await replica_set(coordinator, shard)
        if found is None and settings.replicas == 1:
            return None
        member = data_directory.member()
        known = (await shard_records(coordinator)).get(shard)
        if found is not None:
            if known is not None and known.disk == member and data_directory.disk is None:
                # The first directory of the shard, whose process ended before it had made its journal.
                data_directory.settle(settings.store, cluster, member)
            return found
        if known is not None:
            check_disk(shard, known, data_directory.disk or member, data_directory.directory)
        record = ShardRecord(shard, data_directory.disk or member, known.state if known else "active")
        try:
            await _make(coordinator, settings, record, known.revision if known else 0, host)
        except ConflictError:
            continue
    raise CoordinatorError(f"{key_of(shard)} is constantly changed by other processes: try again")


async def _make(
    coordinator: KeySpace, settings: "Settings", record: ShardRecord, revision: int, host: str
) -> None:
    """Makes the entry of a shard whose only member is this directory."""
    made = first(
        record.id,
        record.disk,
        host,
        replicas=settings.replicas,
        min_in_sync=settings.min_in_sync or settings.replicas // 2 + 1,
    )
    await coordinator.write(
        [
            Write(f"{SHARD_SETS}{record.id}", record.encode(), revision),
            made.write_of(made),
        ]
    )


async def join(joining: Joining, map: Map, entry: ReplicaSet, member: str) -> None:
    """Makes a directory a learner of its shard; while there is no room for it, the process waits.

    Raises CannotServeError, StoppedError.
    """
    running = {each for shard, each in map.followers if shard == entry.shard}
    try:
        changed = entry.joined(member, joining.own.host, running)
    except SetRefusedError as error:
        joining.process.wait_for(str(error))
        return

    async def write() -> None:
        # After a conflict the entry as it is now follows with the news.
        with suppress(ConflictError):
            await joining.coordinator.write([entry.write_of(changed)])

    await patiently(joining.process, write)


async def register(joining: Joining, shard: int, member: str, bound: str, lock: str) -> None:
    """Registers the process of a member, which listens to others at a bound address.

    Args:
        lock: identity of the lock of its directory.

    Raises CannotServeError, StoppedError.
    """
    own = replace(joining.own, address=joining.reachable(bound), lock=lock)

    def displaced(value: str) -> None:
        joining.process.fail(f"another process is member {member} of shard {shard} now: {value}")

    key = follower_key(shard, member)
    await patiently(joining.process, lambda: joining.coordinator.register(key, own.encode(), displaced))


def report(
    process: "Process", entry: ReplicaSet, member: str, page: str, *, is_following: bool, waiting: str = ""
) -> None:
    """Reports ready once a member follows, and until then what it waits for."""
    if process.ready is not None:
        return
    if is_following:
        process.report_ready(metrics=page, follows=True)
        return
    waiting = waiting or (
        f"member {member} of shard {entry.shard} waits for the owner, {entry.owner}, or one of the others in "
        f"sync: {', '.join(sorted(entry.in_sync))}"
    )
    if process.waiting != waiting:
        process.wait_for(waiting)


def not_ready(entry: ReplicaSet | None, member: str, *, is_following: bool) -> str | None:
    """Why a shard would lack this member if its owner ended now, or None."""
    if entry is None or member not in entry.in_sync:
        return f"member {member} is out of sync: it may lack accepted messages"
    if not is_following:
        return f"member {member} of shard {entry.shard} does not follow the owner, {entry.owner}"
    return None
