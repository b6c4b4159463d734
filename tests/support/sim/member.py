"""A member of a simulated shard over all of its lives: the program's own replica, server, engine and mover.

What the program makes itself (threads, sockets, files, clocks) is made for the process that makes it: each of
these names is replaced while a simulation runs (`simulated`), and finds its process by a context variable.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from lightrail.cluster.joining import patiently
from lightrail.cluster.map import SHARDS, Map, Member
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.shard.effects.actions import Actions
from lightrail.shard.engine.engine import Engine
from lightrail.shard.engine.server import Server
from lightrail.shard.journal.commit import NOWHERE, Reached
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import Commit, StoreError
from lightrail.shard.main import moving, until_stop
from lightrail.shard.moving.mover import Mover
from lightrail.shard.replicas.marks import required
from lightrail.shard.replication.owning import Owning
from lightrail.shard.replication.replica import Replica
from lightrail.shard.startup.member_start import MemberStart
from lightrail.telemetry.process import CannotServeError, StoppedError
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.frames import HEADER, Kind
from lightrail.wire.sockets.wiring import Wiring
from tests.support.sim.disk import SimFiles, SimWorker
from tests.support.sim.process import SEGMENT_BYTES, SimDirectory, SimProcess
from tests.support.sim.restored import DoubtingCoordinator
from tests.support.sim.shard import Names

if TYPE_CHECKING:
    from tests.support.sim.members import SimMembers

DISK = bytes(range(16)).hex()
"""The id of the first directory of a shard, as journals on simulated disks draw it."""
LAG_RECORDS = 60
"""Records that are left to a take-over."""
RESTART_S = (0.02, 0.2, 1.0, 5.0)
"""Times until a process that has ended is started again."""

LIFE: ContextVar["MemberLife"] = ContextVar("LIFE")
"""The process to which the running code belongs."""


class WatchedJournal(Journal):
    """The journal of an owner, whose acceptances the history of the simulation has."""

    _seen: Reached = NOWHERE

    def accept(self) -> None:
        super().accept()
        self._look()

    def end_commit(self, commit: Commit) -> None:
        super().end_commit(commit)
        self._look()

    def _look(self) -> None:
        if self.committed != self._seen:
            self._seen = self.committed
            life = LIFE.get()
            life.member.shard.history.accepted(life, self._seen)


class SimServer(Server):
    """The server of an owner."""

    def now_ms(self) -> int:
        return _life().member.shard.cluster.now_ms()

    def _send(self, output: list[tuple[bytes, list[bytes]]]) -> None:
        life = LIFE.get()
        for _, parts in output:
            life.member.shard.cluster.said(life.member.shard.id, parts)
            if any(HEADER.unpack_from(part)[0] == Kind.DELIVER for part in parts if len(part) >= HEADER.size):
                life.member.shard.history.delivers(life)
        super()._send(output)


class MemberCoordinator(DoubtingCoordinator):
    """What a member sees of etcd."""

    life: "MemberLife"

    @property
    def is_deposed(self) -> bool:
        return 0 < self.life.epoch < self.life.member.shard.entry.epoch


class MemberLife:
    """One process of a member."""

    def __init__(self, member: "SimMember", number: int) -> None:
        cluster = member.shard.cluster
        self.member = member
        self.name = f"{member.place}.{number}"
        self.host, self.context = cluster.network.host(self.name, member.place)
        self.workers: list[SimWorker] = []
        self.coordinator = MemberCoordinator(cluster.etcd, self.host)
        self.coordinator.life = self
        self.coordinator.keep_lease()
        self.map = Map(self.coordinator)
        self.process = SimProcess(member.shard.id, cluster.next_boot())
        self.replica: Replica | None = None
        self.owning: Owning | None = None
        self.journal: WatchedJournal | None = None
        self.engine: Engine | None = None
        self.epoch = 0
        """In which it has begun to own."""
        self.is_over = False
        cluster.turns.append(self.host.turns)
        self.host.context.run(self._begin)

    def _begin(self) -> None:
        LIFE.set(self)
        self.member.shard.cluster.loop.create_task(self._run())

    def now_ns(self) -> int:
        return int((1_000 + self.member.shard.cluster.loop.time()) * 1e9 * self.member.clock_rate)

    async def _run(self) -> None:
        shard = self.member.shard
        try:
            await self._serve()
        except StoppedError:
            pass
        except CannotServeError as error:
            self.process.failure = self.process.failure or str(error)
        except Exception as error:
            if shard.cluster.is_over:
                return
            shard.cluster.errors.append(f"{self.name} ended: {error!r}")
            raise
        shard.note(f"{self.name} ends: {self.process.failure}")
        shard.cluster.loop.call_soon(self.member.ended, self, context=shard.cluster.outside)

    async def _serve(self) -> None:
        shard, process, coordinator, map = self.member.shard, self.process, self.coordinator, self.map
        cluster, files = shard.cluster, self.member.files
        map.refresh()
        directory: Any = SimDirectory(shard.id, files, self.member.drawn)
        self.member.id = directory.member()
        own = Member(shard.id, process.boot, host=self.member.place)
        joining: Any = SimpleNamespace(
            process=process,
            coordinator=coordinator,
            wiring=self._wiring(),
            new_wiring=self._wiring,
            own=own,
            reachable=lambda address: address,
            leave=_leave,
        )
        start = MemberStart(joining, directory, self.member.id, DISK)
        replica = self.replica = Replica(joining, directory, map, start, "sim")
        found = await replica.until_owner("")
        server = await self._own(found, files)
        assert self.journal is not None
        owning = self.owning = replica.own(found, self.journal, server)
        engine = server._engine
        engine.coordinator_answers = lambda: True
        member = Member(shard.id, process.boot, server.address, host=self.member.place)
        await patiently(
            process,  # type: ignore[arg-type]
            lambda: coordinator.register(f"{SHARDS}{shard.id}", member.encode(), process.fail),
        )
        owning.may_change = True
        keeping = asyncio.ensure_future(start.keep(self.journal))
        names: Any = Names()
        mover, sources = moving(joining, engine, server, names, map, server._counts)
        self.movers.append(mover)
        shard.note(f"{self.name} serves in epoch {self.epoch}")
        await until_stop(process, server)  # type: ignore[arg-type]
        await owning.prepare()
        keeping.cancel()
        await mover.close()
        sources.close()
        await server.close()
        await owning.close()
        await replica.close()
        await start.close(self.journal)
        cluster.network.gone(self.host)

    def _wiring(self) -> Wiring:
        wiring = Wiring(self.member.shard.cluster.loop)
        wiring._context = self.context  # type: ignore[assignment]
        return wiring

    async def _own(self, found: ReplicaSet, files: SimFiles) -> SimServer:
        shard, process = self.member.shard, self.process
        cluster = shard.cluster
        journal = self.journal = WatchedJournal(files, "sim", shard.id, segment_bytes=SEGMENT_BYTES)
        journal.marks.require(required(found))
        shard.history.takes_over(self, found)
        assert self.replica is not None
        journal.judge = self.replica.judge
        try:
            recovered = journal.recover(0, cluster.now_ms(), found.epoch, self.replica.standby)
        except StoreError as error:
            raise CannotServeError(str(error)) from error
        self.epoch = found.epoch
        shard.history.begun(self, journal)
        await patiently(process, lambda: self.coordinator.current(found.key))  # type: ignore[arg-type]
        self.map.refresh()
        counts = ShardCounts(1 << 30)
        engine = self.engine = Engine(
            shard=shard.id,
            boot=process.boot,
            store=journal,
            recovered=recovered,
            counts=counts,
            memory_mark=1 << 30,
            max_delivery_count=0,
            now_ms=cluster.now_ms(),
            names=Names(),
            map=self.map,
        )
        self.movers: list[Mover] = []

        def ask(actions: Actions) -> None:
            for queue in actions.wanted:
                for mover in self.movers:
                    mover.take_back(queue)

        address = f"sim://{self.name}"
        loop = cluster.loop
        wiring = self._wiring()
        return SimServer(
            loop, engine, journal, counts, wiring, address, clock=loop.time, ask=ask, worker=_worker
        )

    def end(self, *, is_noticed: bool) -> None:
        """Nothing of this process happens any more."""
        self.is_over = True
        self.host.turns.is_ended = True
        for worker in self.workers:
            worker.end()
        self.member.shard.cluster.network.gone(self.host, is_noticed=is_noticed)
        self.coordinator.die()


class SimMember:
    """One member: a directory on a machine."""

    def __init__(self, shard: "SimMembers", place: str, drawn: str) -> None:
        self.shard = shard
        self.place = place
        """The machine."""
        self.drawn = drawn
        """The id of the directory if it has none."""
        self.id = drawn
        self.files = SimFiles(shard.cluster.chance)
        self.clock_rate = 1.0
        self.lives = 0
        self.life: MemberLife | None = None
        self.is_down = False
        """Whether nobody starts it."""
        self.is_faulty = False
        """Whether its disk has lost records that it had synced, and does not have them again."""
        self.owes: tuple[int, int, int] | None = None
        """Of a faulty one: epoch, segment and offset up to which it needs what its owner has."""

    def start(self) -> None:
        self.is_down = False
        if self.life is None:
            self.lives += 1
            self.life = MemberLife(self, self.lives)

    def ended(self, life: MemberLife) -> None:
        """A process has ended by itself; its supervisor starts another one."""
        if life.is_over:
            return
        life.end(is_noticed=True)
        self.life = None
        self.files = self.files.after_kill()
        if self.is_faulty and " is damaged" in life.process.failure:
            self.shard.note(f"an operator empties the directory of {self.place}")
            self.empty()
        self._start_later()

    def empty(self) -> None:
        """The next process begins with an empty directory."""
        self.files, self.drawn = SimFiles(self.shard.cluster.chance), self.shard.draw()
        self.id, self.is_faulty = self.drawn, False
        self.shard.disk_fault_s = self.shard.cluster.loop.time()

    def fail(self) -> None:
        """Its disk has lost records that it had synced."""
        self.is_faulty, self.owes = True, None
        self.shard.disk_fault_s = self.shard.cluster.loop.time()

    def _start_later(self) -> None:
        cluster = self.shard.cluster
        cluster.loop.call_later(cluster.chance.choice(RESTART_S), self._start_again, context=cluster.outside)

    def _start_again(self) -> None:
        if not self.is_down:
            self.start()

    def kill(self) -> None:
        """The process ends as by SIGKILL; what it has written stays."""
        self.is_down = True
        life, self.life = self.life, None
        if life is not None:
            self.shard.note(f"{life.name} is killed")
            life.end(is_noticed=True)
            self.files = self.files.after_kill()

    def crash(self, keep: str | None = None) -> None:
        """The machine stops; what was not synced may be on the disk, or not."""
        self.is_down = True
        life, self.life = self.life, None
        keep = keep or self.shard.cluster.chance.choice(("some", "none", "all"))
        if life is not None:
            self.shard.note(f"the machine of {life.name} stops, {keep} is kept")
            life.end(is_noticed=False)
        self.files = self.files.after(keep)


async def _leave() -> None:
    """The simulation ends the process."""


def _life() -> MemberLife:
    return LIFE.get()


def _worker(loop: Any, name: str) -> SimWorker:
    life = _life()
    cluster = life.member.shard.cluster
    worker = SimWorker(loop, life.host.context, cluster.chance, lambda: life.member.files)
    life.workers.append(worker)
    return worker


class _Time:
    """In the place of the module time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.perf_counter = self.monotonic = loop.time


@contextlib.contextmanager
def simulated(cluster: Any) -> Iterator[None]:
    """Replaces what the program makes of the machine."""
    replacements: dict[str, Any] = {
        "lightrail.shard.replication.replica.Worker": _worker,
        "lightrail.shard.replication.replica.RealFiles": lambda _: _life().member.files,
        "lightrail.shard.replication.replica.steady_ns": lambda: _life().now_ns(),
        "lightrail.shard.replication.owning.steady_ns": lambda: _life().now_ns(),
        "lightrail.shard.replication.owning.time": _Time(cluster.loop),
        "lightrail.shard.replication.standing_by.Worker": _worker,
        "lightrail.shard.replication.standing_by.RealFiles": lambda _: _life().member.files,
        "lightrail.shard.replication.standing_by.LAG_RECORDS": LAG_RECORDS,
        "lightrail.shard.replication.standing_by.AT_ONCE": LAG_RECORDS // 2,
    }
    with contextlib.ExitStack() as stack:
        for name, value in replacements.items():
            stack.enter_context(mock.patch(name, value))
        yield
