"""Start: one start of a shard on its directory, from the check whether it may serve to its orderly end.

    start = Start(joining, data_directory, cluster)
    await start.until_alone()          # no living process is registered, and the directory is no copy
    store.judge = start.judge          # recovery: the journal reaches as far as the coordinator knows
    await start.begin(extent)          # from here on every other directory of this shard is a copy
    ... start.keep(store) beside it    # reports how far the journal reaches
    await start.close(extent)          # after an orderly end a copy is as good as the original

The rules are in cluster/generations.py, their reasons in docs/adr/0017.

`move_in` and `make_known` are how a shard joins the cluster: its directory, its number, its entry.
"""

import asyncio
import logging
import secrets
from dataclasses import replace
from typing import Final

from lightrail.cluster import generations
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError, Write
from lightrail.cluster.joining import LEAVE_TIME_MAX_S, Joining, patiently, reachable_metrics
from lightrail.cluster.map import SHARDS
from lightrail.cluster.membership import (
    MemberRefusedError,
    allocate_shard,
    check_disk,
    member_of,
    pin_disk,
    shard_records,
)
from lightrail.cluster.replica_sets import ReplicaSet, follower_key
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.shard.journal.identity import NOTHING, Extent
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import NewerFormatError, Store, StoreError, StoreRefusedError
from lightrail.shard.replication import joining as membership
from lightrail.shard.startup import data_directory as residences
from lightrail.shard.startup.data_directory import DataDirectory
from lightrail.telemetry.directories import DirectoryRefusedError, make_data_directory
from lightrail.telemetry.process import CannotServeError

EXTENT_REPORT_MS: Final[int] = 5_000
"""How often a shard reports the end of its journal. A copy of its directory that lacks less than that is not
recognised as outdated."""

log = logging.getLogger("lightrail.shard")
TOKEN_BYTES: Final = 12


class Start:
    """The start of a shard with a durable store; a store in memory can't have outdated copies."""

    def __init__(self, joining: Joining, data_directory: DataDirectory, member: str = "") -> None:
        self._member = member
        """Id of the member of a shard with replicas; empty for another shard."""
        self._key = generations.key_of(data_directory.shard, member)
        self._joining = joining
        self._coordinator = joining.coordinator
        self._data_directory = data_directory
        self._shard = data_directory.shard
        self._lasting = joining.process.settings.store != "memory"
        self._together = not joining.process.settings.etcd
        """Whether the coordinator is a file beside the directory, which is copied together with it."""
        self._last: generations.Generation | None = None
        self._revision = 0
        self._mark: generations.Mark | None = None
        """The generation of the directory before this start."""
        self._own: generations.Generation | None = None
        self._superseded = False

    # --- before the store is opened ----------------------------------------------------------------------

    async def until_alone(self) -> None:
        """Waits until no other process can be alive under this number.

        Raises MemberRefusedError, StoreRefusedError, CannotServeError, StoppedError.
        """
        await self._read_generation()
        dead = None
        lock = self._data_directory.lock_id
        if self._last is not None and lock and self._last.lock == lock:
            # The process that had this lock has ended, because this process has the lock now.
            dead = self._last.boot
        registration = f"{SHARDS}{self._shard}"
        if self._member:
            registration = follower_key(self._shard, self._member)
            entry = await patiently(self._joining.process, lambda: self._coordinator.entry(registration))
            found = member_of(entry)
            if found is not None and lock and found.lock == lock:
                dead = found.boot
        await self._joining.until_free(registration, dead)
        if self._lasting:
            await self._read_generation()
            self._mark = self._data_directory.mark
            self._check()

    async def _read_generation(self) -> None:
        self._last, self._revision = await patiently(
            self._joining.process,
            lambda: generations.last_generation(self._coordinator, self._shard, self._member),
        )

    def _check(self) -> None:
        data_directory = self._data_directory
        disk = data_directory.disk
        generations.check_generation(
            self._shard,
            self._last,
            self._mark,
            member=self._member,
            disk=disk,
            inode=data_directory.inode if disk and not self._together else 0,
            directory=data_directory.directory,
        )

    def judge(self, found: Extent) -> None:
        """Checks that the journal has its known extent. Raises StoreRefusedError."""
        try:
            generations.check_extent(
                self._shard,
                self._last,
                member=self._member,
                disk=self._data_directory.disk,
                next_lsn=found.next_lsn,
                directory=self._data_directory.directory,
            )
        except MemberRefusedError as error:
            raise StoreRefusedError(str(error)) from None

    # --- serving -------------------------------------------------------------------------------------------

    async def begin(self, disk: str, extent: Extent) -> None:
        """Makes this the last start, in the directory and then in the coordinator.

        Raises MemberRefusedError, StoreRefusedError, CannotServeError, StoppedError.
        """
        if not self._lasting:
            return
        for _ in range(ATTEMPTS_MAX):
            mark = generations.next_mark(self._last, self._mark, secrets.token_hex(TOKEN_BYTES))
            own = generations.Generation(
                disk=disk,
                number=mark.number,
                token=mark.token,
                boot=self._joining.process.boot,
                lock=self._data_directory.lock_id,
                inode=0 if self._together else self._data_directory.inode,
                segment=extent.segment,
                next_lsn=extent.next_lsn,
            )
            try:
                self._data_directory.write_mark(mark)
            except OSError as error:
                raise StoreRefusedError(
                    f"expected to write the generation of shard {self._shard} into "
                    f"{self._data_directory.directory}, found {error.strerror}: "
                    "make room on this disk, or repair it"
                ) from error
            if await patiently(self._joining.process, lambda own=own: self._written(own)):  # type: ignore[misc]
                return
            await self._read_generation()
            if self._last is not None and self._last.token == own.token:
                # It was written by an attempt whose answer was lost.
                self._own = own
                return
            # Another start was faster: an earlier attempt on this directory that seemed to fail, or a start
            # on another directory.
            self._check()
            self.judge(extent)
        raise MemberRefusedError(f"{self._key} is being changed repeatedly: try again")

    async def _written(self, own: generations.Generation) -> bool:
        """Writes the entry; False if it has changed since it was read. Raises CoordinatorError."""
        try:
            write = Write(self._key, own.encode(), self._revision)
            self._revision = await self._coordinator.write([write])
        except ConflictError:
            return False
        self._own = own
        return True

    async def keep(self, store: Store) -> None:
        """Reports the extent of the journal while the shard serves."""
        if not self._lasting or not isinstance(store, Journal):
            return
        while not self._superseded:
            await asyncio.sleep(EXTENT_REPORT_MS / 1000)
            store.write_extent()
            if not self._together:
                # A coordinator beside the directory needs no report: the file `extent` has the same.
                await self._report(store.extent)

    async def _report(self, extent: Extent) -> None:
        try:
            found, revision = await generations.last_generation(self._coordinator, self._shard, self._member)
            own = self._own
            assert own is not None, "it has begun"
            if found is not None and found.disk == own.disk and found.token != own.token:
                if found.number >= own.number:
                    self._supersede(found)
                    return
                log.warning(
                    "%s was set back to generation %d; it is written again",
                    self._key,
                    found.number,
                )
            self._revision = revision
            new = replace(own, segment=extent.segment, next_lsn=extent.next_lsn)
            if found != new:
                await self._written(new)
        except CoordinatorError as error:
            # The next report includes this one.
            log.debug("the extent of the journal was not reported: %s", error)

    def _supersede(self, found: generations.Generation) -> None:
        self._superseded = True
        self._joining.process.fail(
            f"{self._key} is generation {found.number} of another process: "
            f"shard {self._shard} was started elsewhere on a copy of this directory that an operator "
            "has accepted"
        )

    async def close(self, store: Store) -> None:
        """Reports that the store was closed in order, so that a complete copy may be started instead."""
        own = self._own
        if own is None or self._superseded:
            return
        if isinstance(store, Journal):
            own = replace(own, segment=store.extent.segment, next_lsn=store.extent.next_lsn)
        try:
            async with asyncio.timeout(LEAVE_TIME_MAX_S):
                await self._close(replace(own, closed=True))
        except (CoordinatorError, TimeoutError) as error:
            why = str(error) or f"the coordinator did not answer within {LEAVE_TIME_MAX_S:g} s"
            log.warning("the orderly end of shard %d could not be reported: %s", self._shard, why)

    async def _close(self, closed: generations.Generation) -> None:
        for _ in range(ATTEMPTS_MAX):
            found, self._revision = await generations.last_generation(
                self._coordinator, self._shard, self._member
            )
            if found is not None and found.token != closed.token and found.number >= closed.number:
                return  # Another start has followed.
            if await self._written(closed):
                return
            # A cancelled report was written; its change will arrive.
            await asyncio.sleep(limits.DIRECTORY_POLL_MS / 1000)


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
        if settings.store != "memory" and not (found is not None and disk is None):
            known = await patiently(process, lambda: shard_records(coordinator))
            check_disk(process.id, known.get(process.id), disk, data_directory.directory)
        joining.own = replace(joining.own, disk=disk or "", storage=data_directory.storage)
        start = Start(joining, data_directory, data_directory.member() if found is not None else "")
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
