"""The start of a member of a shard with replicas on its directory, before it follows or owns.

A member in sync answers for everything that was accepted, so its directory has to be that of its last start
(law 12 of ADR 73). A directory that may lack something is kept, and follows as a learner: before anybody can
ask it, the member has withdrawn from those in sync, by a write that is guarded by the revision of the entry.

    directory is that of the last start      a generation is begun, and the member is what the entry says
    copy, restored backup, volume set back   the member withdraws, and then a generation is begun
    the same, and nobody else is in sync     refused: only an operator may give up what is missing

The reasons are in docs/adr/0079.
"""

import logging
from typing import TYPE_CHECKING, Final

from lightrail.cluster import generations
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError
from lightrail.cluster.joining import Joining, patiently
from lightrail.cluster.membership import MemberRefusedError
from lightrail.cluster.replica_sets import ReplicaSet, SetRefusedError
from lightrail.shard.journal.identity import NOTHING, Extent
from lightrail.shard.journal.store import StoreError
from lightrail.shard.replication.joining import replica_set
from lightrail.shard.startup.start import Start
from lightrail.telemetry.process import CannotServeError

if TYPE_CHECKING:
    from lightrail.shard.journal.mirror import Mirror
    from lightrail.shard.startup.data_directory import DataDirectory

log = logging.getLogger("lightrail.shard.startup.member_start")


class MemberStart(Start):
    """The start of one member; its generation goes on when it takes over.

    Args:
        journal: id of the journal that all members share.
    """

    def __init__(self, joining: Joining, data_directory: "DataDirectory", member: str, journal: str) -> None:
        Start.__init__(self, joining, data_directory, member)
        self.member: Final = member
        self._journal = journal

    def _check(self) -> None:
        """A directory is checked when its journal is open: `begin_following`."""

    async def begin_following(self, mirror: "Mirror | None") -> ReplicaSet:
        """Makes this the last start of the member; withdraws it from those in sync if its directory may lack
        accepted records.

        Args:
            mirror: the opened journal; None for a directory without one.

        Returns the entry of the shard. Raises CannotServeError, StoppedError.
        """
        extent, next_lsn = (NOTHING, 1) if mirror is None else (mirror.extent, mirror.next_lsn)
        try:
            self._mark = self._data_directory.mark
            for _ in range(ATTEMPTS_MAX):
                entry = await patiently(self._joining.process, lambda: self._withdraw_if_outdated(next_lsn))
                if await self._begin_once(self._journal, self._known(extent)):
                    return entry
            raise self._contested()
        except (MemberRefusedError, StoreError) as error:
            raise CannotServeError(str(error)) from None

    async def end_following(self, mirror: "Mirror | None") -> None:
        """Reports an orderly end of a member that has followed, and has closed its journal."""
        await self.close_at(NOTHING if mirror is None else mirror.extent)

    async def _withdraw_if_outdated(self, next_lsn: int) -> ReplicaSet:
        """Raises OutdatedError: no other member is in sync. CoordinatorError."""
        for _ in range(ATTEMPTS_MAX):
            entry = await replica_set(self._coordinator, self._shard)
            if entry is None:
                raise MemberRefusedError(
                    f"expected the entry of shard {self._shard} with replicas, found none"
                )
            # After the entry, so that it is not older.
            self._last, self._revision = await generations.last_generation(
                self._coordinator, self._shard, self.member
            )
            outdated = await self._outdated(next_lsn, entry)
            if outdated is None:
                return entry
            try:
                withdrawn = entry.withdrawn(self.member)
                await self._coordinator.write([entry.write_of(withdrawn)])
            except SetRefusedError:
                raise generations.OutdatedError(
                    f"{outdated.found}. Its journal ends with record {next_lsn - 1}", outdated.remedy
                ) from None
            except ConflictError:
                continue
            log.warning(
                "%s. Member %s of shard %d is out of sync until it has everything from the owner",
                outdated.found,
                self.member,
                self._shard,
            )
            return withdrawn
        raise CoordinatorError(f"the entry of shard {self._shard} is constantly changed by other processes")

    async def _outdated(self, next_lsn: int, entry: ReplicaSet) -> generations.OutdatedError | None:
        """Why this directory may lack accepted records that the member has had, or None."""
        last, data_directory = self._last, self._data_directory
        if last is not None and last.accepted:
            return None
        try:
            generations.check_generation(
                self._shard,
                last,
                self._mark,
                member=self.member,
                disk=self._journal,
                inode=self._inode,
                directory=data_directory.directory,
            )
            if self.member in entry.in_sync:
                known = await generations.all_generations(self._coordinator, self._shard)
                generations.check_accepted(
                    self._shard,
                    self.member,
                    [each for _, each, _ in known],
                    disk=self._journal,
                    promoted_in=entry.promoted_in,
                    next_lsn=next_lsn,
                    directory=data_directory.directory,
                )
        except generations.OutdatedError as error:
            return error
        return None

    def _known(self, extent: Extent) -> Extent:
        """How far the shard has accepted records, as far as this member has ever known: other members are
        compared with it, also if this directory has been set back."""
        last = self._last
        if last is None or last.disk != self._journal or last.accepted or last.next_lsn <= extent.next_lsn:
            return extent
        return Extent(last.segment, extent.first_lsn, last.next_lsn)
