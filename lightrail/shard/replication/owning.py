"""Owning: what an owner does for the other members of its shard, while it owns.

It sends beats, removes members that do not acknowledge, and adds those that have everything. A change of the
set is a guarded write of ``replicas/N`` (cluster/replica_sets.py): while its outcome is not known, members of
the former and of the new set are required.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lightrail.cluster.coordinator import ConflictError, Coordinator, CoordinatorError
from lightrail.cluster.replica_sets import ReplicaSet, SetRefusedError
from lightrail.model.clock import steady_ns
from lightrail.shard.replicas.leases import BEAT_NS, Grant, OwnersLeases
from lightrail.shard.replicas.marks import required
from lightrail.shard.replicas.member_watch import ALONE_NS, SILENT_NS, MemberWatch
from lightrail.shard.replication.stream import FollowerState, Stream
from lightrail.telemetry.replicas import ReplicaCounts
from lightrail.wire.replication import JournalEnds

if TYPE_CHECKING:
    from lightrail.cluster.map import Map
    from lightrail.shard.engine.server import Server
    from lightrail.shard.journal.journal import Journal
    from lightrail.shard.replication.replica import Replica

LATE_S: Final = 0.5
"""Age of a commit here from which on this machine is too busy to judge others."""
HANGING_S: Final = 2.0
"""Age of a commit here, that another member has on its disk, after which the disk of the owner hangs."""
PREPARE_S: Final = 5.0
"""How long an owner that is to end goes on until its successor has read its journal."""
NEW_NS: Final = 2_000_000_000
"""How long an owner is new: until members attach and its predecessor is removed, nothing is accepted."""
NEW_S: Final = 0.05
"""Time between two of its beats meanwhile."""
log = logging.getLogger("lightrail.shard.replication.owning")


class Owning:
    """An owner in one epoch.

    Args:
        former: the owner before, whose process ends, if it has not ended; "" for none.
        history: of etcd when this member took over; see Map.
        commit_age_s: seconds since the commit under way on this disk has begun; 0 for none.
        on_accepted: called when more records are accepted.
        on_deposed: called with the reason when another member owns the shard.
    """

    def __init__(
        self,
        member: str,
        found: ReplicaSet,
        journal: "Journal",
        stream: Stream,
        leases: OwnersLeases,
        grant: Grant,
        coordinator: Coordinator,
        map: "Map",
        *,
        former: str = "",
        history: str = "",
        commit_age_s: Callable[[], float],
        on_accepted: Callable[[], None],
        on_deposed: Callable[[str], None],
    ) -> None:
        self.stream: Final = stream
        self.found = found
        """The entry, as of the last change that is known."""
        self._member = member
        self._journal = journal
        self._recovered_lsn = journal.position.synced_lsn
        """Number of the last record on this disk: what former owners have accepted is not behind it."""
        self._leases = leases
        self._grant = grant
        self._coordinator = coordinator
        self._map = map
        self._commit_age_s = commit_age_s
        self._on_accepted = on_accepted
        self._on_deposed = on_deposed
        self._watched: dict[str, MemberWatch] = {}
        if former not in ("", member):
            self._watched[former] = MemberWatch(SILENT_NS, SILENT_NS)
        self._watched_ns = steady_ns()
        """When they were looked at last."""
        self._demanded: frozenset[str] = frozenset()
        """Members that are required beside those in sync: they are about to be added, or may be removed."""
        self._history = history
        self._older: ReplicaSet | None = None
        """An entry of an earlier epoch than this owner's, of an etcd that was set back: it is replaced."""
        self._is_unknown = False
        """Whether one of the demanded members may be in sync by a write whose answer was lost."""
        self.may_change = True
        """Whether the set may be changed: not before the owner is registered, as its registration depends on
        the entry too, and would be refused."""
        self.successor = ""
        """The member that is to take over when this owner ends in order."""
        self._changing: asyncio.Task[None] | None = None
        self._beats: asyncio.Task[None] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to send beats and to keep the set."""
        self._require()
        self._beats = loop.create_task(self._beat())

    async def prepare(self) -> None:
        """Chooses a member that is to take over, and waits until it has read its journal, for PREPARE_S at
        most. Without a member that follows, nobody is chosen."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PREPARE_S
        while (successor := self._best()) and loop.time() < until:
            self.successor = successor
            is_ready = await self.stream.prepare(successor, until)
            if is_ready and successor in self.found.in_sync:
                return
        self.successor = successor

    def _best(self) -> str:
        """The member that is to take over: the one that an operator wants, or that which has kept up longest,
        as a process that has just begun waits for a lease before it delivers."""
        states = {id: each.state for id, each in self.stream.followers.items()}
        now_ns, nothing = steady_ns(), MemberWatch()
        live = {
            id: self._watched.get(id, nothing).live_ns or now_ns
            for id in sorted(self.found.in_sync)
            if states.get(id) is FollowerState.LIVE
        }
        wanted = self.found.successor
        return wanted if wanted in live else min(live, key=lambda id: live[id], default="")

    async def close(self) -> None:
        """Ends; the leases are returned, so that a successor delivers at once."""
        for task in (self._beats, self._changing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.stream.return_leases(self.successor)

    def may_deliver(self) -> bool:
        """Whether all required members grant a lease, and the former owner has none of this member."""
        now_ns = steady_ns()
        others = self._journal.marks.others
        return not self._grant.remaining_ns(now_ns) and self._leases.may_deliver(others, now_ns)

    def show(self, counts: ReplicaCounts) -> None:
        """Has the metrics of this process show what the owner knows."""
        counts.epoch = self.found.epoch
        counts.required = lambda: 1 + len(self._journal.marks.others)
        counts.ages_s = lambda: self._by_host(
            lambda member: self._watched[member].silent_ns / 1e9 if member in self._watched else 0
        )
        counts.ahead_bytes = lambda: self._by_host(
            lambda member: found.ahead if (found := self.stream.followers.get(member)) is not None else 0
        )
        position, marks = self._journal.position, self._journal.marks
        counts.behind_records = lambda: self._by_host(
            lambda member: max(0, position.ended.next_lsn - 1 - marks.mark(member))
        )

    def _by_host(self, read: Callable[[str], float]) -> dict[str, float]:
        """A figure of each other member."""
        others = {id: each for id, each in self.found.members.items() if id != self._member}
        return {each.host or id: read(id) for id, each in others.items()}

    async def _beat(self) -> None:
        new_until_ns = steady_ns() + NEW_NS
        while True:
            now_ns = steady_ns()
            try:
                if self.hangs():
                    self.stream.return_leases()
                    self._on_deposed(
                        f"the disk has not answered for {HANGING_S:g} s, and another member has what it lacks"
                    )
                    return
                self.stream.beat(now_ns)
                self.follow(now_ns)
                self._on_accepted()  # Deliveries may be allowed by now.
            except Exception:
                log.exception("the members of shard %d could not be kept", self.found.shard)
                self._on_deposed("an internal error, see above")
                return
            live = self.stream.became_live
            live.clear()
            with suppress(TimeoutError):
                # A new owner accepts nothing before a member is live and its predecessor is removed.
                async with asyncio.timeout(NEW_S if now_ns < new_until_ns else BEAT_NS / 1e9 / 2):
                    await live.wait()

    def hangs(self) -> bool:
        """Whether another member had better own the shard: its disk has a commit that is stuck here.

        If all disks hang, as one storage behind them does, nobody would be better.
        """
        if self._commit_age_s() < HANGING_S:
            return False
        synced, marks = self._journal.position.synced_lsn, self._journal.marks
        return any(marks.mark(each) > synced for each in self.found.in_sync - {self._member})

    # --- the entry ---------------------------------------------------------------------------------------

    def follow(self, now_ns: int) -> None:
        """Looks at the entry and at the members; begins at most one change of the set."""
        self._map.refresh()
        found = self._map.replica_sets.get(self.found.shard)
        began = self._map.history != self._history
        if found is not None and (began or found.revision > (self._older or self.found).revision):
            # Revisions of another history can't be compared with those before.
            self._history = self._map.history
            self._learn(found)
        self._watch(now_ns)
        is_idle = self._changing is None or self._changing.done()
        # An etcd that was set back takes nothing, before an operator has put the entries back.
        may_change = is_idle and self.may_change and self._coordinator.set_back is None
        if may_change and (change := self._wanted(now_ns)) is not None:
            self._changing = asyncio.get_running_loop().create_task(self._change(*change))

    def _learn(self, found: ReplicaSet) -> None:
        if found.epoch < self.found.epoch:
            # Etcd was set back, and what was put back is older than this journal: it is written again.
            self._older = found
            self._coordinator.fence.set(found.key, found.revision, found.text)
            return
        self._older = None
        if (found.owner, found.epoch) != (self._member, self.found.epoch):
            self._on_deposed(f"member {found.owner} owns shard {found.shard} in epoch {found.epoch}")
            return
        self.found = found
        # Whatever was guarded by an older revision is decided now.
        self._demanded, self._is_unknown = frozenset(), False
        self._coordinator.fence.set(found.key, found.revision, found.text)
        self._require()
        if found.successor in found.in_sync - {self._member}:
            self._on_deposed(f"member {found.successor} is to own shard {found.shard}: it is handed over")

    def _require(self) -> None:
        """Sets the required members from the entry and the change under way."""
        self._journal.marks.require(required(self.found, *self._demanded))
        self._journal.accept()
        self._on_accepted()

    # --- members -----------------------------------------------------------------------------------------

    def _watch(self, now_ns: int) -> None:
        # What this process has slept through, or its disk takes, does not count as silence of others.
        passed_ns, self._watched_ns = min(BEAT_NS, now_ns - self._watched_ns), now_ns
        if self._commit_age_s() >= LATE_S:
            passed_ns = 0
        synced, number = self._journal.position.synced_lsn, self.stream.number
        for member in self.found.members.keys() - {self._member}:
            watched = self._watched.setdefault(member, MemberWatch())
            lease_ns = self._leases.until_ns(member)
            watched.quiet_ns = watched.quiet_ns + passed_ns if lease_ns == watched.lease_ns else 0
            watched.lease_ns = lease_ns
            follower = self.stream.followers.get(member)
            state = FollowerState.ATTACHING if follower is None else follower.state
            if (
                follower is not None
                and state is not FollowerState.ATTACHING
                and (state is FollowerState.BEHIND or follower.heard >= watched.number)
                and self._journal.marks.mark(member) >= watched.lsn
                and self._leases.may_deliver((member,), now_ns)
            ):
                watched.silent_ns, watched.number, watched.lsn = 0, number, synced
            elif member in self.stream.left:
                # Also of all at once, which would else look as if this owner were cut off.
                watched.silent_ns = ALONE_NS
            else:
                watched.silent_ns += passed_ns
            if state is not FollowerState.LIVE or watched.is_lost:
                watched.live_ns = None
            elif watched.live_ns is None:
                watched.live_ns = now_ns

    def _wanted(self, now_ns: int) -> tuple[ReplicaSet, frozenset[str]] | None:
        """The next change of the set, with the members that are required meanwhile."""
        found, journal = self.found, self._journal
        if self._older is not None:
            return found, self._demanded
        if not found.in_sync and found.min_in_sync == 1:
            return found.added(self._member), frozenset()  # It has compared its journal.
        others = found.in_sync - {self._member}
        silent = {each for each in others if self._watched[each].is_lost}
        if silent == others and all(each.live_ns is None for each in self._watched.values()):
            silent = {each for each in silent if self._watched[each].silent_ns >= ALONE_NS}
        # While one that would stay is not live, nothing is accepted anyway: it may be the one that is lost.
        if silent and all(self._watched[each].live_ns is not None for each in others - silent):
            try:
                return found.removed(silent), frozenset(silent)
            except SetRefusedError as error:
                log.debug("no member is removed: %s", error)
        for member in self._demanded - found.in_sync:
            if self._watched[member].live_ns is None:
                self._watched[member].hold_back()
                if self._is_unknown:
                    # Written as it is, the entry can't be changed any more by what was sent before.
                    return found, self._demanded
                self._demanded = frozenset()
                self._require()
                return None
        for member in sorted(found.members.keys() - found.in_sync - {self._member}):
            watched = self._watched[member]
            # Where a silent member can't be removed nothing is accepted: one that keeps up takes its place.
            wait_ns = 0 if silent else watched.wait_ns
            if watched.live_ns is None or now_ns - watched.live_ns < wait_ns:
                continue
            if member not in self._demanded:
                # Demanded first, and added when it has everything that was accepted without it.
                self._demanded |= {member}
                self._require()
            elif journal.marks.mark(member) >= max(journal.committed.next_lsn - 1, self._recovered_lsn):
                return found.added(member), frozenset({member})
            return None  # One at a time.
        return None

    async def _change(self, changed: ReplicaSet, meanwhile: frozenset[str]) -> None:
        self._demanded = meanwhile | self._demanded if self._is_unknown else meanwhile
        self._require()
        before, older = self.found, self._older
        try:
            revision = await self._coordinator.write([(older or before).write_of(changed)])
        except ConflictError:
            return  # The entry as it is now follows with the news.
        except CoordinatorError as error:
            self._is_unknown = True
            log.warning("the members in sync of shard %d could not be changed: %s", before.shard, error)
            return
        removed, added = before.in_sync - changed.in_sync, changed.in_sync - before.in_sync
        for member in removed:
            if member in self.stream.left:
                log.info("member %s of shard %d is out of sync: its process has ended", member, before.shard)
                continue
            self._watched[member].hold_back()
            log.warning("member %s of shard %d is out of sync: it does not acknowledge", member, before.shard)
        for member in added:
            log.info("member %s of shard %d is in sync", member, before.shard)
        if older is not None or revision > self.found.revision:
            self._learn(changed.written(revision))


def owning_of(
    replica: "Replica", found: ReplicaSet, journal: "Journal", server: "Server"
) -> tuple[Stream, Owning]:
    """What a member does that owns by this entry, with the stream to the others."""
    leases, process, loop = OwnersLeases(), replica.joining.process, asyncio.get_running_loop()

    def is_member(member: str) -> bool:
        entry = replica.entry
        return entry is not None and member in entry.members

    stream = Stream(
        journal,
        found.epoch,
        JournalEnds(replica.member, process.boot, journal.incarnation.disk, journal.salt),
        leases,
        is_member=is_member,
        send=replica.socket.send,
        run_on_loop=loop.call_soon_threadsafe,
        on_accepted=server.accepted,
        on_ended=process.fail,
    )
    owning = Owning(
        replica.member,
        found,
        journal,
        stream,
        leases,
        replica.grant,
        replica.joining.coordinator,
        replica.map,
        former=replica.former,
        history=replica.history,
        commit_age_s=lambda: server.disk.age_s(time.monotonic()),
        on_accepted=server.accepted,
        on_deposed=process.fail,
    )
    return stream, owning
