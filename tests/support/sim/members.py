"""A simulated shard with members, and a cluster of such shards."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.replica_sets import ReplicaSet, SetRefusedError, first, key_of
from tests.support.sim.cluster import BrokenLawError, Cluster
from tests.support.sim.coordinator import SimCoordinator
from tests.support.sim.history import History
from tests.support.sim.loop import OUTSIDE, Turns
from tests.support.sim.member import DISK, LIFE, MemberLife, SimMember, simulated
from tests.support.sim.network import Host
from tests.support.sim.restored import DoubtingCoordinator, RestorableEtcd, Snapshot

if TYPE_CHECKING:
    from tests.support.sim.scripts import Script
    from tests.support.sim.shard import SimShard

FULL_S = 300.0
"""Simulated time after the last fault in which every set has to be full: a member that was removed keeps up
for 10 s before it is in sync again, doubled each time."""
PUT_BACKS_MAX = 200
"""Attempts of an operator."""


class SimMembers:
    """One shard with members; `life` is the process that owns it, or None."""

    def __init__(self, cluster: "MembersCluster", id: int, count: int, min_in_sync: int) -> None:
        self.cluster = cluster
        self.id = id
        self.history = History(self)
        self.minimum = min_in_sync
        """The lowest minimum that an operator has set."""
        self.disk_fault_s = -math.inf
        """When a disk of it has lost something last."""
        self._drawn = 0
        self.members: list[SimMember] = []
        for index in range(count):
            place = f"s{id}{'abcdefg'[index]}"
            self.members.append(SimMember(self, place, DISK if index == 0 else self.draw()))
        made = first(id, DISK, self.members[0].place, replicas=count, min_in_sync=min_in_sync)
        cluster.etcd.commit([Write(key_of(id), made.encode(), 0)])

    def draw(self) -> str:
        """The id of a new directory."""
        self._drawn += 1
        return f"{self.id:x}{self._drawn:x}"

    @property
    def entry(self) -> ReplicaSet:
        """As etcd has it."""
        return ReplicaSet.decode(self.cluster.etcd.entries[key_of(self.id)])

    def member(self, id: str) -> SimMember | None:
        return next((member for member in self.members if member.id == id), None)

    @property
    def owner(self) -> SimMember | None:
        return self.member(self.entry.owner)

    @property
    def life(self) -> MemberLife | None:
        """The process that owns and serves."""
        owner = self.owner
        life = None if owner is None else owner.life
        return life if life is not None and life.engine is not None else None

    def missing(self) -> frozenset[str]:
        """Members in sync whose directories are lost, if too few of the others are in sync for an owner."""
        entry = self.entry
        lost = entry.in_sync - {member.id for member in self.members}
        return lost if len(entry.in_sync - lost) < entry.min_in_sync else frozenset()

    def start(self) -> None:
        for member in self.members:
            member.start()

    def note(self, what: str) -> None:
        self.cluster.note(f"shard {self.id}: {what}")

    def lacks(self) -> str:
        """Why the set is not full; empty if it is."""
        entry = self.entry
        running = {member.id for member in self.members if member.life is not None}
        if len(entry.in_sync) < len(self.members) or entry.in_sync != running:
            return f"shard {self.id} has {entry.in_sync} in sync, and {running} run: {entry.encode()}"
        life = self.life
        if life is None:
            return f"shard {self.id} has no owner that serves"
        return ""


class MembersCluster(Cluster):
    """Everything of one run, with shards that have members."""

    shards: list[SimMembers]  # type: ignore[assignment]
    etcd: RestorableEtcd
    etcd_type = RestorableEtcd
    outside = OUTSIDE
    calm_s = FULL_S
    asks = True
    busy_rate = 300

    def __init__(
        self, seed: int, *, shards: int = 1, members: int = 3, min_in_sync: int = 2, queues: int = 2
    ) -> None:
        self._members = members
        self._min_in_sync = min_in_sync
        self._boots = 0
        self.turns: list[Turns] = []
        """Of all processes that there were."""
        self.notes: list[str] = []
        self.is_over = False
        super().__init__(seed, shards=shards, frontends=2, queues=queues)
        # Connections break, and owners change: what was delivered may come again.
        self.ledger.forgiving = self.ledger.crashed = True

    def _make_shards(self, count: int) -> "list[SimShard]":
        made = [SimMembers(self, id, self._members, self._min_in_sync) for id in range(count)]
        return made  # type: ignore[return-value]

    def coordinator(self, host: Host) -> DoubtingCoordinator:
        return DoubtingCoordinator(self.etcd, host)

    def next_boot(self) -> int:
        self._boots += 1
        return 1_000 + self._boots

    def note(self, what: str) -> None:
        self.notes.append(f"{self.loop.time():9.4f} {what}")

    def show_log(self) -> None:
        """Notes what the program logs, with the process that logs it."""
        log = logging.getLogger("lightrail")
        log.setLevel(logging.INFO)
        log.propagate = False
        log.addHandler(_Notes(self))

    def run(self, script: "Callable[[Cluster], Script]") -> None:
        with simulated(self):
            super().run(script)

    async def _started(self) -> None:
        until_s = self.loop.time() + 60
        while lacks := self.lacks():
            if self.errors or self.loop.time() > until_s:
                raise BrokenLawError(self.errors[0] if self.errors else lacks)
            await asyncio.sleep(0.1)
        self.note("all sets are full")
        self.loop.create_task(self._watch(), context=OUTSIDE)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            for shard in self.shards:
                shard.history.check_set()
                shard.history.check_marks()

    def calm(self) -> None:
        self.note("no fault from here on")
        self.etcd.is_down = False
        self.etcd.answers_lost = self.etcd.late = 0.0
        self.network.slow = 1.0
        self.network.unblock(set(self.network.blocked), broken=False)
        for host in list(self.network.hosts):
            host.etcd = ""
            if host.is_cut_off:
                self.network.heal(host, broken=False)
            if host.turns.is_paused:
                self.loop.resume(host.turns)
        for shard in self.shards:
            # Without the disk of a member a higher minimum can't be reached: an operator lowers it again.
            self.change(shard, lambda found: found.sized(found.replicas, self._min_in_sync))
            for member in shard.members:
                member.files.slow = 1.0
                member.start()
            if shard.life is None and (missing := shard.missing()):
                # As the log of the member that waits for others says: if those are lost, go on with fewer.
                self.note(f"shard {shard.id}: {missing} are lost, and an operator goes on without them")
                self.change(shard, lambda found: found.sized(found.replicas, found.min_in_sync - 1))

    def lacks(self) -> str:
        if self.errors:
            return ""
        return next((lacks for shard in self.shards if (lacks := shard.lacks())), "")

    async def _end(self) -> None:
        await super()._end()
        for shard in self.shards:
            shard.history.check_set()

    def _end_processes(self) -> None:
        self.is_over = True
        for shard in self.shards:
            for member in shard.members:
                if member.life is not None:
                    member.life.end(is_noticed=True)
        for turns in self.turns:
            for task in list(turns.tasks):
                # What would end it may have been due after the end of its process: it is not waited for.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(Exception):
                    task.get_coro().close()

    def _ended_tasks(self) -> set[asyncio.Task[object]]:
        return {task for turns in self.turns for task in turns.tasks}

    # --- what scripts do -----------------------------------------------------------------------------------

    def change(self, shard: SimMembers, change: Callable[[ReplicaSet], ReplicaSet]) -> bool:
        """An operator changes the entry of a shard."""
        if self._doubting():
            return False
        found = shard.entry
        try:
            changed = change(found)
            self.etcd.commit([found.write_of(changed)])
        except (ConflictError, SetRefusedError):
            return False
        shard.minimum = min(shard.minimum, changed.min_in_sync)
        return True

    def set_etcd_back(self, saved: Snapshot) -> None:
        self.note(f"etcd is set back from revision {self.etcd.revision} to {saved.revision}")
        self.etcd.set_back(saved)
        for shard in self.shards:
            shard.history.etcd_is_set_back()

    async def put_back(self) -> None:
        """An operator writes again what etcd has lost, as far as a gateway knows it.

        Processes that know more than all gateways doubt this etcd for ever: they are started again.
        """
        for _ in range(PUT_BACKS_MAX):
            doubting = self._doubting()
            if not doubting:
                return
            gateways = [each.coordinator for each in self.frontends if each.coordinator in doubting]
            if gateways:
                with contextlib.suppress(CoordinatorError):
                    done = await gateways[0].put_back()
                    self.note(f"put back: {[each.key for each in done.writes]}, kept {done.kept}")
            else:
                for life in self._lives():
                    if life.coordinator in doubting:
                        life.process.fail("an operator starts it again")
            await asyncio.sleep(0.5)
        raise BrokenLawError("etcd is still set back for some")

    def _lives(self) -> list[MemberLife]:
        members = [member for shard in self.shards for member in shard.members]
        return [member.life for member in members if member.life is not None]

    def _doubting(self) -> list[SimCoordinator]:
        """What processes see of etcd that do not trust it."""
        views: list[SimCoordinator] = [each.coordinator for each in self.frontends]
        views += [life.coordinator for life in self._lives()]
        return [each for each in views if each.set_back is not None]


class _Notes(logging.Handler):
    def __init__(self, cluster: MembersCluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        life = LIFE.get(None)
        where = "frontends" if life is None else life.name
        self._cluster.note(f"    {where}: {record.levelname.lower()}: {record.getMessage()}")
