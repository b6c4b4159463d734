"""Taking over: the three steps by which a member becomes the owner of its shard.

look around   how far do the others reach? One that reaches further goes first
claim         one guarded write of the entry `replicas/N`: this member owns, in the next epoch
compare       does another member reach further all the same? One that answers follows no older owner (law 6
                  of ADR 73)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lightrail.cluster.coordinator import ConflictError, CoordinatorError
from lightrail.cluster.joining import Joining, patiently
from lightrail.cluster.map import Map
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.shard.replicas.candidate import Candidate, Choice, compared_min
from lightrail.shard.replication.following import Following
from lightrail.shard.replication.links import look_around
from lightrail.telemetry.process import CannotServeError
from lightrail.wire.replication import NOTHING, Reach
from lightrail.wire.sockets.wiring import Wiring

log = logging.getLogger("lightrail.shard.replication.taking_over")


@dataclass(slots=True, eq=False, repr=False)
class TakingOver:
    """The take-over of one member.

    Args:
        pause: returns after a moment; raises if this member has to end.
    """

    _joining: Joining
    _wiring: Wiring
    _map: Map
    _member: str
    _following: Following
    _pause: Callable[[], Awaitable[None]]
    waiting: str = ""
    """For which other members it waits, as logged last."""

    async def look_around(self, entry: ReplicaSet, epoch: int = 0, ended: str = "") -> list[Reach]:
        """How far the other members in sync reach that answer in time; see links.look_around.

        Where nobody is known to be in sync, all are asked that run, and those count that have a journal.
        """
        is_unknown = self.is_unknown(entry)
        addresses = {
            member: found.address
            for (shard, member), found in self._map.followers.items()
            if shard == entry.shard and member != self._member and (is_unknown or member in entry.in_sync)
        }
        found = await look_around(asyncio.get_running_loop(), self._wiring, addresses, epoch, ended)
        return [each for each in found if each.epoch] if is_unknown else found

    def is_unknown(self, entry: ReplicaSet) -> bool:
        """See Candidate."""
        return Candidate(self._member, self._following.reach).is_unknown(entry)

    async def choose(self, entry: ReplicaSet, ended: str) -> Choice:
        """Looks around, and says whether to claim the shard."""
        answers = await self.look_around(entry, ended=ended)
        compared = compared_min(entry, is_unknown=True) if self.is_unknown(entry) else 1
        choice = Candidate(self._member, self._following.reach).judge(answers, compared)
        if choice is not Choice.OUT:
            self.waiting = ""
        if choice is Choice.YIELD:
            log.info("shard %d: another member reaches further and goes first", entry.shard)
        elif choice is Choice.OUT:
            self._wait_for_others(entry, 1 + len(answers), compared)
        return choice

    async def claim(self, entry: ReplicaSet) -> ReplicaSet | None:
        """Makes this member the owner; returns the new entry, or None if somebody has changed it meanwhile.

        Raises CannotServeError, StoppedError.
        """
        coordinator = self._joining.coordinator
        host = self._joining.own.host
        if self.is_unknown(entry):
            claimed = entry.reclaimed(self._member, host, self._following.reach.epoch)
            log.warning(
                "shard %d: the entry of epoch %d was set back, as this journal is of epoch %d: this member "
                "owns the shard in epoch %d if no other one reaches further",
                entry.shard,
                entry.epoch,
                self._following.reach.epoch,
                claimed.epoch,
            )
        else:
            claimed = entry.taken_over(self._member, host)
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
        return claimed.written(revision)

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
            CannotServeError: another member reaches further, and is to take over; another owner had this
                epoch, which this member followed while its claim was under way; or an operator has promoted
                this member, and it has no journal.
            StoppedError: the process has to end.
        """
        reach = self._following.reach
        if reach.epoch >= owned.epoch:
            raise CannotServeError(
                f"expected a journal of an earlier epoch than {owned.epoch}, in which this member owns shard "
                f"{owned.shard}, found one of epoch {reach.epoch}: etcd was set back, and its next owner has "
                "a later epoch"
            )
        if owned.promoted_in and reach == NOTHING:
            raise CannotServeError(
                "expected a part of the journal in the directory of a promoted member, found nothing: "
                f"promote another member of shard {owned.shard}, or, if no disk of it is left, give its "
                f"messages up with `lightrail-admin shard forget-disk {owned.shard}`"
            )
        while not is_whole or not owned.in_sync:
            answers = await self.look_around(owned, owned.epoch, former)
            further = [each for each in answers if each > reach or each.epoch >= owned.epoch]
            if further:
                raise CannotServeError(
                    f"expected to reach as far as any other member of shard {owned.shard}, to record "
                    f"{reach.next_lsn - 1}, found one with record {further[0].next_lsn - 1} of epoch "
                    f"{further[0].epoch}: that one takes over"
                )
            compared = compared_min(owned, is_unknown=not owned.in_sync)
            if 1 + len(answers) >= compared:
                return owned
            self._map.refresh()
            entry = self._map.replica_sets.get(owned.shard)
            if entry is not None and entry.epoch > owned.epoch:
                raise CannotServeError(f"member {entry.owner} owns shard {owned.shard} by now")
            if entry is not None and entry.revision > owned.revision:
                owned = entry
            self._wait_for_others(owned, 1 + len(answers), compared)
            await self._pause()
        return owned

    def _wait_for_others(self, entry: ReplicaSet, found: int, compared: int) -> None:
        """Says that `compared` journals have to be compared, and that `found` are there."""
        if self.is_unknown(entry):
            waiting = (
                f"waiting for members of shard {entry.shard}: etcd was set back, so {compared} journals of "
                f"its {max(entry.replicas, len(entry.members))} members have to be compared, and {found} are "
                "there. Start another member"
            )
        else:
            waiting = (
                f"waiting for members of shard {entry.shard}: {compared} have to be compared, and {found} of "
                "those in sync answer. Start another one of them, or, if they are lost, go on with "
                f"`lightrail-admin shard replicas {entry.shard} --min-in-sync 1`"
            )
        if self.waiting != waiting:
            self.waiting = waiting
            log.warning("%s", waiting)
        self._joining.process.wait_for(waiting)
