"""An owner and its members without sockets, disks and etcd: the test says what becomes of each write."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Fence, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.replica_sets import ReplicaSet, SetMember
from lightrail.shard.journal.commit import Reached
from lightrail.shard.replicas.leases import BEAT_NS, Grant, OwnersLeases
from lightrail.shard.replicas.marks import Marks
from lightrail.shard.replicas.member_watch import SILENT_NS
from lightrail.shard.replication.owning import Owning
from lightrail.shard.replication.stream import AttachedMember, FollowerState

TICK_NS = BEAT_NS // 2


class FakeCoordinator:
    """Has one entry; `answers` decides what becomes of each write: it is made, and answered."""

    def __init__(self, entry: ReplicaSet) -> None:
        self.entry = entry
        self.fence = Fence()
        self.set_back: str | None = None
        self.is_lost = False
        """Whether the answer of a write is lost, after it was made."""
        self.writes: list[ReplicaSet] = []

    async def write(self, writes: list[Write]) -> int:
        (write,) = writes
        if write.guard != self.entry.revision:
            raise ConflictError(write.key)
        revision = self.entry.revision + 1
        self.entry = ReplicaSet.decode(Entry(write.key, write.value, 1, revision))
        self.writes.append(self.entry)
        if self.is_lost:
            raise CoordinatorError("no answer")
        return revision


class World:
    """An owner "a" of members "b" and "c", without sockets and disks.

    Args:
        recovered_lsn: number of the last record in the owner's journal.
    """

    def __init__(self, in_sync: str, former: str = "", min_in_sync: int = 2, recovered_lsn: int = 0) -> None:
        members = {each: SetMember(each) for each in "abc"}
        found = ReplicaSet(0, 5, "a", frozenset(in_sync), members, 3, min_in_sync, revision=10)
        self.coordinator = FakeCoordinator(found)
        self.marks: Marks[Reached] = Marks()
        self.leases = OwnersLeases()
        self.stream = SimpleNamespace(followers={}, left=set(), number=0, beat=lambda now_ns: None)
        self.map = SimpleNamespace(replica_sets={0: found}, refresh=lambda: None, history="")
        self.age_s = 0.0
        self.deposed: list[str] = []
        journal = SimpleNamespace(
            marks=self.marks,
            accept=lambda: None,
            position=SimpleNamespace(synced_lsn=recovered_lsn),
            committed=SimpleNamespace(next_lsn=1),
        )
        self.journal = journal
        self.now_ns = 100 * SILENT_NS
        self.answering: set[str] = set()
        self.granting: set[str] = set()
        """Members that answer beats, and acknowledge nothing."""
        self.owning = Owning(
            "a",
            found,
            journal,  # type: ignore[arg-type]
            self.stream,  # type: ignore[arg-type]
            self.leases,
            Grant(0),
            self.coordinator,  # type: ignore[arg-type]
            self.map,  # type: ignore[arg-type]
            former=former,
            commit_age_s=lambda: self.age_s,
            on_accepted=lambda: None,
            on_deposed=self.deposed.append,
        )
        self.owning._watched_ns = self.now_ns
        self.owning._require()

    def attach(self, member: str, state: FollowerState = FollowerState.LIVE) -> AttachedMember:
        self.answering.add(member)
        follower = self.stream.followers[member] = AttachedMember(member, member.encode(), state)
        return follower

    async def tick(self, duration_ns: int = TICK_NS) -> None:
        """Time passes, members that answer acknowledge all, and the owner looks at them."""
        end = self.now_ns + duration_ns
        while self.now_ns < end:
            self.now_ns += TICK_NS
            number = self.leases.beat(self.now_ns)
            self.stream.number += 1
            self.journal.position.synced_lsn += 1
            for member in self.answering:
                self.stream.followers[member].heard = self.stream.number
                self.marks.synced(member, self.journal.position.synced_lsn)
                self.leases.granted(member, number)
            for member in self.granting:
                self.leases.granted(member, number)
            self.owning.follow(self.now_ns)
            if self.owning._changing is not None:
                await self.owning._changing

    def news(self) -> None:
        """The owner hears of the entry as it is."""
        self.map.replica_sets[0] = self.coordinator.entry

    @property
    def required(self) -> frozenset[str]:
        return self.marks.others


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())
