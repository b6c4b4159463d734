"""Taking over: the three steps by which a member becomes the owner of its shard.

look around   how far do the others reach? One that reaches further goes first
claim         one guarded write of the entry `replicas/N`: this member owns, in the next epoch
compare       does anybody reach further all the same? Who answers follows no older owner (law 6, ADR 73)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from lightrail.cluster.coordinator import ConflictError, CoordinatorError
from lightrail.cluster.joining import Joining, patiently
from lightrail.cluster.map import Map
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.shard.replicas.candidate import NOTHING, Reach
from lightrail.shard.replication.following import Following
from lightrail.shard.replication.links import look_around
from lightrail.telemetry.process import CannotServeError

log = logging.getLogger("lightrail.shard.replication.taking_over")


@dataclass(slots=True, eq=False, repr=False)
class TakingOver:
    """The take-over of one member.

    Args:
        pause: returns after a moment; raises if this member has to end.
    """

    _joining: Joining
    _map: Map
    _member: str
    _following: Following
    _pause: Callable[[], Awaitable[None]]

    async def look_around(self, entry: ReplicaSet, epoch: int = 0, ended: str = "") -> list[Reach]:
        """How far the other members in sync reach that answer in time; see links.look_around."""
        addresses = {
            member: found.address
            for member in entry.in_sync - {self._member}
            if (found := self._map.followers.get((entry.shard, member))) is not None
        }
        return await look_around(asyncio.get_running_loop(), addresses, self._joining.key, epoch, ended)

    async def claim(self, entry: ReplicaSet) -> ReplicaSet | None:
        """Makes this member the owner; returns the new entry, or None if somebody has changed it meanwhile.

        Raises CannotServeError, StoppedError.
        """
        coordinator = self._joining.coordinator
        claimed = entry.taken_over(self._member, self._joining.own.host)
        try:
            revision = await coordinator.write([entry.write_of(claimed)])
        except ConflictError:
            return None
        except CoordinatorError as error:
            # It may be written all the same.
            log.warning("shard %d: the outcome of a take-over is not known: %s", entry.shard, error)
            found = await patiently(self._joining.process, lambda: coordinator.current(entry.key))
            if found is None or ReplicaSet.decode(found) != claimed:
                return None
            revision = found.revision
        return replace(claimed, revision=revision)

    async def compare(self, owned: ReplicaSet, former: str, *, is_whole: bool) -> ReplicaSet:
        """Compares this disk with as many others as the minimum wants, before the first segment is begun.

        Who answers follows no older owner from then on. With fewer answers this owner could accept nothing
        anyway, and if its own disk was set back, it would cut what the others have.

        Args:
            former: the owner before, which is not waited for: it ends, if it has not ended.
            is_whole: this process has followed, and has everything that was accepted: its disk was not set
                back since, as that shows to a new process alone, so nobody else has to be compared.

        Returns the entry as it is then: an operator may have lowered the minimum meanwhile.

        Raises:
            CannotServeError: another member reaches further, and is to take over; or an operator has promoted
                this one, and it has no journal.
            StoppedError: the process has to end.
        """
        process, reach = self._joining.process, self._following.reach
        if owned.promoted_in and reach == NOTHING:
            raise CannotServeError(
                "expected a part of the journal in the directory of a promoted member, found nothing: "
                f"promote another member of shard {owned.shard}, or, if no disk of it is left, give its "
                f"messages up with `lightrail-admin shard forget-disk {owned.shard}`"
            )
        logged = ""
        while not is_whole:
            answers = await self.look_around(owned, owned.epoch, former)
            further = [each for each in answers if each > reach or each.epoch >= owned.epoch]
            if further:
                raise CannotServeError(
                    f"expected to reach as far as any other member of shard {owned.shard}, to record "
                    f"{reach.next_lsn - 1}, found one with record {further[0].next_lsn - 1} of epoch "
                    f"{further[0].epoch}: that one takes over"
                )
            if 1 + len(answers) >= min(owned.min_in_sync, len(owned.in_sync)):
                return owned
            self._map.refresh()
            entry = self._map.replica_sets.get(owned.shard)
            if entry is not None and entry.epoch > owned.epoch:
                raise CannotServeError(f"member {entry.owner} owns shard {owned.shard} by now")
            if entry is not None and entry.revision > owned.revision:
                owned = entry
            waiting = (
                f"waiting for members of shard {owned.shard}: {owned.min_in_sync} have to be compared, and "
                f"{1 + len(answers)} of those in sync answer. Start another one of them, or, if they are "
                f"lost, go on with `lightrail-admin shard replicas {owned.shard} --min-in-sync 1`"
            )
            if logged != waiting:
                logged = waiting
                log.warning("%s", waiting)
            process.wait_for(waiting)
            await self._pause()
        return owned
