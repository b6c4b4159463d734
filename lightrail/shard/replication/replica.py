"""Replica: one process of a shard with replicas, from its start until it owns the shard, or ends.

    replica = Replica(joining, data_directory, map, start, cluster)
    found = await replica.until_owner(page)          # follows, until it has taken over
    ...                                              # recovers the journal in the epoch of `found`
    owning = replica.own(found, journal, server)     # streams to the other members
    await owning.close()
    await replica.close()

A process follows or owns, and never goes back: an owner that was replaced ends, and its successor follows.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.joining import LEAVE_TIME_MAX_S, Joining, patiently
from lightrail.cluster.map import Map, MapChanges
from lightrail.cluster.replica_sets import ReplicaSet, follower_key
from lightrail.journal.archive import Incarnation
from lightrail.model.clock import steady_ns
from lightrail.shard.journal.commit import Worker
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.identity import Extent
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.journal.standby import Standby
from lightrail.shard.journal.store import StoreRefusedError
from lightrail.shard.replicas.candidate import YIELD_NS, Candidate, Choice
from lightrail.shard.replicas.leases import Grant
from lightrail.shard.replication import joining
from lightrail.shard.replication.following import Following, FollowingState
from lightrail.shard.replication.links import (
    LEAVE_MS,
    Inbox,
    MembersSocket,
    OwnerLink,
    address_for_members,
)
from lightrail.shard.replication.owning import Owning, owning_of
from lightrail.shard.replication.standing_by import StandingBy
from lightrail.shard.replication.taking_over import TakingOver
from lightrail.telemetry.process import CannotServeError, StoppedError
from lightrail.telemetry.replicas import REPLICA_FAMILIES, ReplicaCounts
from lightrail.wire.replication import MemberMessage, MessageKind, Reach

if TYPE_CHECKING:
    from lightrail.shard.engine.server import Server
    from lightrail.shard.startup.data_directory import DataDirectory
    from lightrail.shard.startup.member_start import MemberStart

_FURTHEST: Final = 1 << 62
TICK_S: Final = 0.1
"""How often a member that follows looks at the owner's silence."""

log = logging.getLogger("lightrail.shard.replication.replica")


class Replica:
    """One process of a member; see the module."""

    def __init__(
        self, joining: Joining, data_directory: "DataDirectory", map: Map, start: "MemberStart", cluster: str
    ) -> None:
        self._start = start
        self.member: Final = start.member
        self.epoch = 0
        """In which this process owns the shard; 0 while it follows."""
        self._owned: ReplicaSet | None = None
        """The entry by which this process took over."""
        self.former = ""
        """The member that owned before."""
        self.history = ""
        """Of etcd when this member took over; see Map."""
        self._knows_etcd = True
        """Whether the entry has continued what this process has seen at its start: a restored one may call a
        member in sync that has been removed since."""
        self._inbox = Inbox(self._answer_look, self._refuse)
        self.grant = Grant(steady_ns())
        self.joining = joining
        self._process = joining.process
        self._directory = data_directory
        self._cluster = cluster
        self.map = map
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(self._loop, "mirror")
        self._link: OwnerLink | None = None
        self._news = asyncio.Event()
        """Set when the owner has returned its leases, or the shard has another entry."""
        joining.coordinator.on_news(self._read_news)
        map.listen(self._look_at)
        self._following = Following(
            self.member,
            self._process.boot,
            self.grant,
            self._worker.submit,
            open_mirror=self._open_mirror,
            send=self._send_to_owner,
            now_ns=steady_ns,
            on_broken=self._fail,
            on_prepare=lambda: self._standing_by.prepare(),
            on_returned=self._news.set,
        )
        self._standing_by = StandingBy(self._loop, data_directory, self._following)
        self._wiring = joining.new_wiring()
        self._taking_over = TakingOver(joining, self._wiring, map, self.member, self._following, self._pause)
        self._counts = ReplicaCounts(
            follows=lambda: not self.epoch and self._following.state is FollowingState.FOLLOWING
        )
        self._process.running.show(REPLICA_FAMILIES, self._counts)
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self.socket = MembersSocket(
            self._wiring, address_for_members(self._process.settings), self._inbox.receive
        )

    @property
    def entry(self) -> ReplicaSet | None:
        """The entry of the shard, as this process knows it."""
        return self.map.replica_sets.get(self._process.id)

    def not_ready(self) -> str | None:
        """Why the shard would lack this member if another one ended now, or None; until the member owns."""
        if self.epoch:
            return f"member {self.member} takes shard {self._process.id} over"
        is_following = self._following.state is FollowingState.FOLLOWING
        return joining.not_ready(self.entry, self.member, is_following=is_following)

    # --- the mirror --------------------------------------------------------------------------------------

    def _open_mirror(self, disk: str, salt: int) -> Mirror:
        mirror = Mirror(
            RealFiles(self._directory.directory),
            Incarnation(self._cluster, self._process.id, disk),
            salt,
            segment_bytes=self._process.settings.segment_bytes,
            member=self.member,
        )
        mirror.open()
        return mirror

    @property
    def standby(self) -> Standby | None:
        """What this member has read of its journal, for the recovery."""
        return self._standing_by.standby

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(CannotServeError(f"this member can't follow: {error}"))

    # --- messages ----------------------------------------------------------------------------------------

    def _refuse(self, identity: bytes) -> None:
        reason = b"this member does not own the shard"
        refusal = MemberMessage(MessageKind.REFUSED, self._following.promised, body=reason)
        self.socket.send(identity, refusal.encode())

    def _answer_look(self, identity: bytes, look: MemberMessage) -> None:
        """Answers how far this disk reaches; with an epoch that somebody owns by now, it is a promise."""

        def answer(reach: Reach) -> None:
            seen = MemberMessage(MessageKind.SEEN, reach.epoch, lsn=reach.next_lsn)
            self.socket.send(identity, seen.encode())

        if self.epoch:
            if look.epoch > self.epoch:
                self._process.fail(f"another member owns shard {self._process.id} in epoch {look.epoch}")
                return
            stream = self._inbox.stream
            if stream is not None and stream.is_returned:
                return
            answer(Reach(self.epoch, _FURTHEST))
        else:
            self._following.promise(look.epoch)
            self._following.look(answer)

    def _send_to_owner(self, parts: list[bytes]) -> bool:
        return self._link is not None and self._link.send(parts)

    # --- following ---------------------------------------------------------------------------------------

    async def until_owner(self, page: str) -> ReplicaSet:
        """Follows until this member has taken over; returns the entry by which it owns.

        Args:
            page: HOST:PORT of this process's metrics.

        Raises CannotServeError, StoppedError.
        """
        try:
            return await self._until_owner(page)
        except StoppedError:
            self._following.leave()
            await self._end_following(LEAVE_MS)
            await self._start.end_following(self._following.mirror)
            await self.close()
            await self.joining.leave()
            raise

    async def _until_owner(self, page: str) -> ReplicaSet:
        disk, salt = self._directory.journal
        if disk is not None:
            await self._run(lambda: self._open_at_start(disk, salt))
        # Before anybody can ask it: a member whose directory was set back is out of sync.
        at_start = await self._start.begin_following(self._following.mirror)
        # What a former process of this member has promised is not known: the entry has it.
        self._following.promise(at_start.epoch)
        # From here on other members ask how far this journal reaches.
        lock = self._directory.lock_id
        await joining.register(self.joining, self._process.id, self.member, self.socket.address, lock)
        # Its metrics are not those of the shard.
        self._process.running.follows = self.joining.own.host
        self._process.check = self.not_ready
        history = self.map.history
        yields_until_ns = 0
        while not self.epoch:
            if self._failed.done():
                self._failed.result()
            await patiently(self._process, self._refresh)
            entry = self.entry or at_start
            is_following = self._following.state is FollowingState.FOLLOWING
            waiting = self._taking_over.waiting if self._taking_over.is_unknown(entry) else ""
            joining.report(
                self._process, entry, self.member, page, is_following=is_following, waiting=waiting
            )
            own = entry.members.get(self.member)
            if own is None or own.host != self.joining.own.host:
                await joining.join(self.joining, self.map, entry, self.member)
            now_ns = steady_ns()
            choice = self._choose(entry)
            if self.joining.coordinator.set_back is not None:
                # Nothing can be written before an operator has put the entries back.
                choice = Choice.FOLLOW
            if self.joining.coordinator.set_back is not None or self.map.history != history:
                self._knows_etcd = False
            if choice is Choice.LOOK and now_ns >= yields_until_ns:
                if self._is_whole(entry.epoch + 1) and not self._taking_over.is_unknown(entry):
                    choice = Choice.CLAIM
                else:
                    ended = entry.owner if self._has_ended(entry) else ""
                    choice = await self._taking_over.choose(entry, ended)
                if choice is Choice.CLAIM:
                    await self._claim(entry)
                else:
                    yields_until_ns = now_ns + YIELD_NS
            if not self.epoch:
                await self._pause()
        owned = self._owned
        assert owned is not None, "this member has claimed the shard"
        self._process.running.follows = ""
        # What was under way when the entry was written has ended then, and nothing else is begun.
        await self._run(lambda: None)
        is_whole = self._is_whole(owned.epoch)
        owned = await self._taking_over.compare(owned, self.former, is_whole=is_whole)
        await self._end_following()
        self.joining.coordinator.fence.set(owned.key, owned.revision, owned.text)
        return owned

    def _is_whole(self, epoch: int) -> bool:
        """Whether this process has everything that was accepted before an epoch, if it is in sync."""
        return self._knows_etcd and 0 < self._following.whole_in < epoch

    def _choose(self, entry: ReplicaSet) -> Choice:
        """Attaches to the owner where that is to be done; says whether to look around."""
        owner = self.map.followers.get((self._process.id, entry.owner))
        following = self._following
        if entry.owner != self.member and entry.epoch >= following.reach.epoch:
            address = owner.address if owner is not None else ""
            if address and (self._link is None or self._link.address != address):
                self._connect(address)
            is_free = following.state is FollowingState.DETACHED or following.is_stuck
            if self._link is not None and (is_free or following.epoch < entry.epoch):
                following.attach(entry.epoch)
        candidate = Candidate(self.member, self._following.reach)
        successor = following.successor if following.returned >= entry.epoch else ""
        return candidate.next(
            entry, following.silent_ns(entry.epoch), is_refused=self._has_ended(entry), successor=successor
        )

    def _has_ended(self, entry: ReplicaSet) -> bool:
        """Whether the owner has ended, or is about to: a hint, and no proof."""
        is_refused = self._link is not None and self._link.is_refused
        return is_refused or self._following.returned >= entry.epoch

    def _connect(self, address: str) -> None:
        if self._link is not None:
            self._link.close()
        self._following.detach()
        self._link = OwnerLink(self._wiring, address, self._following.receive)

    def _read_news(self) -> None:
        if not self.epoch:
            # What can't be read now is read, and reported, with the next tick.
            with suppress(CoordinatorError):
                self.map.refresh()

    def _look_at(self, changes: MapChanges) -> None:
        if self._process.id in changes.shards:
            self._news.set()

    async def _refresh(self) -> None:
        self.map.refresh()

    async def _claim(self, entry: ReplicaSet) -> None:
        self.history = self.map.history
        owned = await self._taking_over.claim(entry)
        if owned is None:
            return
        self.epoch, self._owned, self.former = owned.epoch, owned, entry.owner
        self._inbox.keeps_attaches = True
        # From here on the former owner is not answered any more.
        self._following.promise(self.epoch)
        log.info("member %s owns shard %d in epoch %d", self.member, self._process.id, self.epoch)

    async def _pause(self) -> None:
        stop = asyncio.ensure_future(self._process.until_stop())
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait(
                (stop, news, self._failed), timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.cancel()
            news.cancel()
            self._news.clear()
        if self._process.stopping.is_set():
            raise StoppedError

    async def _end_following(self, linger_ms: int = 0) -> None:
        """Writes what has arrived, and closes the mirror: the journal is opened next."""
        self._following.detach()
        await self._standing_by.close()
        if self._link is not None:
            self._link.close(linger_ms)
            self._link = None
        mirror = self._following.mirror
        if mirror is not None:
            await self._run(mirror.close)

    def _open_at_start(self, disk: str, salt: int) -> None:
        self._following.mirror = self._open_mirror(disk, salt)

    async def _run(self, work: Callable[[], object]) -> None:
        """Runs a job in the thread of the mirror. Raises CannotServeError."""
        done: asyncio.Future[None] = self._loop.create_future()

        def ended(error: BaseException | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(CannotServeError(str(error)))

        self._worker.submit(work, ended)
        await done

    def judge(self, found: Extent) -> None:
        """Checks that recovery finds all records that this member has acknowledged.

        Raises StoreRefusedError: the disk lacks some. A new process compares it with those of others.
        """
        if found.next_lsn <= self._following.whole_lsn:
            raise StoreRefusedError(
                f"expected the records up to {self._following.whole_lsn}, which this member of shard "
                f"{self._process.id} has written, found those up to {found.next_lsn - 1}: the disk lost the "
                "others, and another member is to take over"
            )

    # --- owning ------------------------------------------------------------------------------------------

    def own(self, found: ReplicaSet, journal: Journal, server: "Server") -> Owning:
        """From now on the journal is streamed to the other members; `Owning.may_change` is to be set."""
        stream, owning = owning_of(self, found, journal, server)
        if self._following.returned >= self.epoch - 1:
            # The former owner has ended in order: it is added again as soon as it has everything.
            stream.left.add(self.former)
        server.stream_to(stream, owning.may_deliver)
        self._inbox.begin(stream)
        owning.show(self._counts)
        owning.may_change = False
        owning.begin(self._loop)
        return owning

    async def close(self) -> None:
        """Ends in order."""
        self._inbox.stream = None
        with suppress(CoordinatorError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIME_MAX_S):
                await self.joining.coordinator.unregister(follower_key(self._process.id, self.member))
        if self._link is not None:
            self._link.close()
        self.socket.close()
        self._wiring.close()
        self._worker.close()
