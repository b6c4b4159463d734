"""Start: one start of a shard on its directory, from the check whether it may serve to its orderly end.

    start = Start(joining, data_directory, cluster)
    await start.until_alone()          # no living process is registered, and the directory is no copy
    store.judge = start.judge          # recovery: the journal reaches as far as the coordinator knows
    await start.begin(extent)          # from here on every other directory of this shard is a copy
    ... start.keep(store) beside it    # reports how far the journal reaches
    await start.close(extent)          # after an orderly end a copy is as good as the original

The rules are in cluster/generations.py, their reasons in docs/adr/0017. Of a member of a shard with replicas
it is MemberStart.
"""

import asyncio
import logging
import secrets
from dataclasses import replace
from typing import Final

from lightrail.cluster import generations
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError, Write
from lightrail.cluster.joining import LEAVE_TIME_MAX_S, Joining, patiently
from lightrail.cluster.map import SHARDS
from lightrail.cluster.membership import (
    MemberRefusedError,
    member_of,
)
from lightrail.cluster.replica_sets import follower_key
from lightrail.model import limits
from lightrail.shard.journal.identity import NOTHING, Extent
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import Store, StoreRefusedError
from lightrail.shard.startup.data_directory import DataDirectory, is_beside_etcd

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
        settings = joining.process.settings
        self._lasting = settings.store != "memory"
        self._together = not settings.etcd
        """Whether the coordinator is a file beside the directory, which is copied together with it."""
        self._has_inode = not self._together and not is_beside_etcd(settings.data, settings.etcd)
        """Whether a copy of the directory is another one; not where it is copied with its coordinator."""
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
            inode=self._inode if disk else 0,
            directory=data_directory.directory,
        )

    @property
    def _inode(self) -> int:
        return self._data_directory.inode if self._has_inode else 0

    def judge(self, found: Extent) -> None:
        """Checks that the journal has its known extent. Raises StoreRefusedError."""
        try:
            generations.check_extent(
                self._shard,
                self._last,
                disk=self._data_directory.disk,
                next_lsn=found.next_lsn,
                directory=self._data_directory.directory,
            )
        except MemberRefusedError as error:
            raise StoreRefusedError(str(error)) from None

    # --- serving -------------------------------------------------------------------------------------------

    async def begin(self, disk: str, extent: Extent) -> None:
        """Makes this the last start, in the directory and then in the coordinator; a member that has followed
        has done so then.

        Raises MemberRefusedError, StoreRefusedError, CannotServeError, StoppedError.
        """
        if not self._lasting or self._own is not None:
            return
        for _ in range(ATTEMPTS_MAX):
            if await self._begin_once(disk, extent):
                return
            self._check()
            self.judge(extent)
        raise self._contested()

    async def _begin_once(self, disk: str, extent: Extent) -> bool:
        """Begins the generation after the last one; False if another start was faster: an earlier attempt on
        this directory that seemed to fail, or a start on another directory."""
        mark = generations.next_mark(self._last, self._mark, secrets.token_hex(TOKEN_BYTES))
        own = generations.Generation(
            disk=disk,
            number=mark.number,
            token=mark.token,
            boot=self._joining.process.boot,
            lock=self._data_directory.lock_id,
            inode=self._inode,
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
        if await patiently(self._joining.process, lambda: self._written(own)):
            return True
        await self._read_generation()
        if self._last is not None and self._last.token == own.token:
            # It was written by an attempt whose answer was lost.
            self._own = own
            return True
        return False

    def _contested(self) -> MemberRefusedError:
        return MemberRefusedError(f"{self._key} is being changed repeatedly: try again")

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
            new = own
            if extent.next_lsn > own.next_lsn:
                # A new owner with members has accepted nothing yet, and knows less than it has begun with.
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
            f"shard {self._shard} was started elsewhere on a copy of this directory"
        )

    async def close(self, store: Store) -> None:
        """Reports that the store was closed in order, so that a complete copy may be started instead."""
        await self.close_at(store.extent if isinstance(store, Journal) else NOTHING)

    async def close_at(self, extent: Extent) -> None:
        """The same for a journal with this extent."""
        own = self._own
        if own is None or self._superseded:
            return
        if extent.next_lsn > own.next_lsn:
            own = replace(own, segment=extent.segment, next_lsn=extent.next_lsn)
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
