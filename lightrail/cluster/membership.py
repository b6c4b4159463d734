"""Membership: the number of a process, and which processes may serve under it.

A shard's number belongs to its disk: ``shardsets/ID`` pins the disk of the first process that registered, so
that an empty disk under an old name is not mistaken for the shard; generations.py decides which of several
copies of that disk may serve. Frontends and gateways store nothing and may have any free number. The
process that is registered under a wanted number may be dead: its entry is deleted when its
lease expires, and until then the new process waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError, KeySpace, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.map import SHARD_SETS, SHARDS, Member, ShardRecord, known

LEASE_MARGIN_MS: Final[int] = 3_000
"""Time beyond ETCD_LEASE_MS after which a registration counts as that of a living process: etcd revokes
expired leases with some delay, and its leader may change."""

Clock = Callable[[], float]
"""Seconds, rising."""
Sleep = Callable[[float], Awaitable[None]]
Free = Callable[[], Awaitable[int]]
"""Waits until a number is free, and returns the revision of its entry."""
LOOK_S: Final = 0.2
"""Pause between two checks whether an entry still exists."""
LOOK_AT_LEASE_S: Final = 1.0
"""Pause between two checks of its lease's remaining time, which etcd reports in whole seconds."""
REFRESHES_MIN: Final = 3
"""Refreshes of a lease, within its time and the margin, that prove that its process is alive."""


class MemberRefusedError(Exception):
    """A process may not serve under this number; the message has what was expected, what was found, and the
    remedy."""


def free_number(taken: Iterable[int]) -> int:
    """The smallest number that is not taken."""
    known = set(taken)
    return next(number for number in range(len(known) + 1) if number not in known)


def check_disk(shard: int, known: ShardRecord | None, disk: str | None, directory: str) -> None:
    """Checks that the shard of this number belongs to a disk; `disk` None is an empty directory.

    Raises MemberRefusedError.
    """
    if known is None or known.disk in ("", disk):
        return
    found = f"has disk {disk}" if disk else "is empty"
    raise MemberRefusedError(
        f"{SHARD_SETS}{shard} was made by disk {known.disk}, this directory ({directory}) {found}: "
        f"an empty disk under an old name, without the messages of shard {shard}. Give it the old directory, "
        f"or, if that is lost, give up its messages with `lightrail-admin shard forget-disk {shard}`"
    )


def holder(found: Member | None, own: Member, replaces: int | None = None) -> Member | None:
    """Another process that may be alive under the number that `own` wants, or None.

    Args:
        replaces: the boot of a process that is known to be dead.
    """
    return None if found is None or found.boot in (own.boot, replaces) else found


def member_of(entry: Entry | None) -> Member | None:
    """The process in a registration. Raises CoordinatorError if it can't be read."""
    if entry is None or entry.value is None:
        return None
    try:
        # shards/N, and followers/N/MEMBER.
        return Member(id=int(entry.key.split("/")[1]), **known(Member, entry.value))
    except (ValueError, TypeError, IndexError) as error:
        raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None


async def until_free(
    coordinator: KeySpace,
    key: str,
    own: Member,
    *,
    lease_ms: int,
    replaces: int | None = None,
    clock: Clock,
    sleep: Sleep = asyncio.sleep,
    waiting: Callable[[str], None] = lambda _: None,
) -> int:
    """Wait until no other living process is registered under `key`.

    An entry whose lease is refreshed repeatedly belongs to a living process. Time alone is no proof: etcd
    extends every lease by its whole time when it is restarted or elects a new leader.

    Args:
        lease_ms: how long the entry of a dead process stays, unless etcd is restarted meanwhile.

    Returns:
        The revision of the entry, 0 without one: the guard of the registration.

    Raises:
        MemberRefusedError: another process keeps refreshing its lease.
        CoordinatorError: the coordinator can't be reached.
    """
    first: Member | None = None
    end = look_again = 0.0
    refreshes, before = 0, None
    while True:
        entry = await coordinator.entry(key)
        found = holder(member_of(entry), own, replaces)
        if found is None:
            return 0 if entry is None else entry.revision
        now = clock()
        if first is None or found.boot != first.boot:
            if first is not None:
                raise MemberRefusedError(_held(key, found))
            first, end = found, now + (lease_ms + LEASE_MARGIN_MS) / 1000
        if now >= look_again:
            remaining = await coordinator.remaining_ms(key)
            refreshes += before is not None and remaining is not None and remaining > before
            before, look_again = remaining, now + LOOK_AT_LEASE_S
            if now >= end and (remaining is None or refreshes >= REFRESHES_MIN):
                raise MemberRefusedError(_held(key, found))
        waiting(f"{key} is registered by a process on host {found.host!a}; waiting whether it lives")
        await sleep(LOOK_S)


def _held(key: str, found: Member) -> str:
    return (
        f"{key} is held by a living process on host {found.host!a} (boot {found.boot:08x}, at "
        f"{found.address or '?'}, version {found.version or '?'}): stop that one, or start this one under "
        "another number"
    )


async def register(
    coordinator: KeySpace, key: str, own: Member, displaced: Callable[[str], None], free: Free
) -> None:
    """Registers a process under a key as soon as that is free.

    The registration is guarded by what `free` has found: one that a former process of this number has sent,
    and that arrives after its end, does not displace this one.

    Args:
        free: see `until_free`; called again when the entry has changed.

    Raises:
        MemberRefusedError, CoordinatorError: see `until_free`.
    """
    for _ in range(ATTEMPTS_MAX):
        guard = await free()
        try:
            return await coordinator.register(key, own.encode(), displaced, guard=guard)
        except ConflictError:
            continue
    raise CoordinatorError(f"{key} is constantly changed by other processes: try again")


async def allocate_shard(coordinator: KeySpace, disk: str) -> int:
    """A number for a new shard on a new disk; the same number for the same disk.

    Raises CoordinatorError.
    """
    for _ in range(ATTEMPTS_MAX):
        known = await shard_records(coordinator)
        for each in known.values():
            if each.disk == disk:
                return each.id
        id = free_number(known)
        try:
            await coordinator.write([Write(f"{SHARD_SETS}{id}", ShardRecord(id, disk).encode(), 0)])
        except ConflictError:
            continue
        return id
    raise CoordinatorError("other processes keep taking the numbers of shards: try again")


async def pin_disk(coordinator: KeySpace, shard: int, disk: str, *, lasting: bool, directory: str) -> None:
    """Records that this disk is the shard's.

    Args:
        lasting: False for a store in memory, whose disk id changes with each start.

    Raises:
        MemberRefusedError: the shard has another disk.
        CoordinatorError: the coordinator can't be reached.
    """
    key = f"{SHARD_SETS}{shard}"
    for _ in range(ATTEMPTS_MAX):
        known = (await shard_records(coordinator)).get(shard)
        if known is None:
            write = Write(key, ShardRecord(shard, disk).encode(), 0)
        elif known.disk == disk:
            return
        else:
            if lasting:
                check_disk(shard, known, disk, directory)
            write = Write(key, ShardRecord(shard, disk, known.state).encode(), known.revision)
        try:
            await coordinator.write([write])
        except ConflictError:
            continue
        return
    raise CoordinatorError(f"{key} is constantly changed by other processes: try again")


async def shard_records(coordinator: KeySpace) -> dict[int, ShardRecord]:
    """All shards that were created and not removed. Raises CoordinatorError."""
    found = {}
    for entry in await coordinator.entries(SHARD_SETS):
        try:
            id = int(entry.key.removeprefix(SHARD_SETS))
            found[id] = ShardRecord(id=id, revision=entry.revision, **known(ShardRecord, entry.value or ""))
        except (ValueError, TypeError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None
    return found


async def take_number(
    coordinator: KeySpace, prefix: str, value: str, displaced: Callable[[str], None]
) -> int:
    """Register a process under the smallest free number. Raises CoordinatorError.

    A second call of the same process, as after a lost answer, returns the same number.
    """
    for _ in range(ATTEMPTS_MAX):
        there = {
            int(number): each
            for each in await coordinator.entries(prefix)
            if (number := each.key.removeprefix(prefix)).isdecimal()
        }
        ours = next((id for id, each in there.items() if each.value == value), None)
        id = free_number(there) if ours is None else ours
        guard = 0 if ours is None else there[ours].revision
        try:
            await coordinator.register(f"{prefix}{id}", value, displaced, guard=guard)
        except ConflictError:
            continue
        return id
    raise CoordinatorError(f"other processes keep taking the numbers of {prefix}: try again")


def displaced_by(key: str, value: str, own: Member) -> str | None:
    """Why a process has to end after another value was written under its key; None for its value."""
    try:
        found = member_of(Entry(key, value, 0, 0))
    except CoordinatorError as error:
        return str(error)
    if found is None or found.boot == own.boot:
        return None
    again = " It has the same disk, so it owns this shard now." if key.startswith(SHARDS) else ""
    return f"{key} was taken by another process, on host {found.host!a} (boot {found.boot:08x}).{again}"
