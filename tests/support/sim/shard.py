"""A shard of a simulated cluster: real engine, journal and mover, a disk that loses what was not synced."""

import asyncio
import random
from typing import TYPE_CHECKING, Final

import zmq

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.map import SHARDS, Map, Member
from lightrail.cluster.membership import MemberRefusedError, register, until_free
from lightrail.model import limits
from lightrail.model.policy import QUEUE
from lightrail.namespace.records import Name
from lightrail.shard.engine.engine import Engine
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import Commit
from lightrail.shard.main import MOVE_SOURCE_IDLE_MS
from lightrail.shard.moving.mover import Mover
from lightrail.shard_client.peers.pool import Pool
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.sockets.wiring import Wiring
from lightrail.wire.sockets.zeromq import LoopSocket
from tests.support.shard.fake_files import FakeFiles
from tests.support.sim.coordinator import SimCoordinator
from tests.support.sim.network import Host

if TYPE_CHECKING:
    from tests.support.sim.cluster import Cluster

COMMIT_S: Final = (0.0002, 0.004)
"""What a sync takes."""
SEGMENT_BYTES: Final = 20_000


class Names:
    """Every name is a queue; this is not about names."""

    history = ""

    def refresh(self) -> None:
        """Nothing changes."""

    def get(self, name: str) -> Name:
        return Name(name, QUEUE, 1)

    def subscription(self, router: str, id: str) -> None:
        """There is none."""

    def listen(self, listener: object) -> None:
        """Nothing changes."""


class SimShard:
    """One shard over all of its lives; `life` is the present one, or None."""

    def __init__(self, cluster: "Cluster", id: int) -> None:
        self.cluster = cluster
        self.id = id
        self.address = f"sim://shard-{id}"
        self.files = FakeFiles()
        self.lives = 0
        self.life: Life | None = None
        self.coordinator: SimCoordinator | None = None
        """Of the latest life."""
        self.deposed: list[Life] = []
        """Former lives that went on alone."""

    def start(self) -> None:
        assert self.life is None
        self.lives += 1
        former, self.coordinator = self.coordinator, None
        owner = f"replicas/{self.id}"
        revision = 0
        if self.cluster.is_fenced:
            revision = self.cluster.etcd.commit([Write(owner, str(self.lives))])
            if former is not None:
                former.was_deposed = True
        self.life = Life(self)
        self.coordinator = self.life.coordinator
        if self.cluster.is_fenced:
            self.coordinator.fence.set(owner, revision)

    def crash(self, *, lives_for_s: float = 0.0) -> None:
        """As a machine that stops: what was not synced may be on the disk, or not.

        Args:
            lives_for_s: how long its process goes on, on a disk of its own, while nobody hears it.
        """
        life, self.life = self.life, None
        if life is not None:
            if lives_for_s:
                life.isolate()
                self.deposed.append(life)
                self.cluster.loop.call_later(lives_for_s, life.die)
            else:
                life.die()
            chance = self.cluster.chance
            keep = chance.choice(("some", "none", "all"))
            self.files = self.files.after_crash(chance.randrange(1 << 30), keep)


class Life:
    """One process."""

    def __init__(self, shard: SimShard) -> None:
        cluster = self.cluster = shard.cluster
        self.shard = shard
        self.loop = cluster.loop
        self.chance: random.Random = cluster.chance
        self.host, self.context = cluster.network.host(f"shard-{shard.id}.{shard.lives}")
        self.coordinator = SimCoordinator(cluster.etcd, self.host)
        self.map = Map(self.coordinator)
        self.map.refresh()
        self.store = Journal(shard.files, "sim", shard.id, segment_bytes=SEGMENT_BYTES)
        recovered = self.store.recover(1 << 30, self.now_ms())
        self.counts = ShardCounts(1 << 30)
        self.engine = Engine(
            shard=shard.id,
            boot=1_000 * (shard.id + 1) + shard.lives,
            store=self.store,
            recovered=recovered,
            counts=self.counts,
            memory_mark=1 << 30,
            max_delivery_count=0,
            now_ms=self.now_ms(),
            names=Names(),
            map=self.map,
        )
        self.dead = False
        self._commit: Commit | None = None
        socket = self.context.socket(zmq.ROUTER)
        socket.bind(shard.address)
        self.socket = LoopSocket(self.loop, socket, self._receive, self.turn)  # type: ignore[arg-type]
        wiring = Wiring(self.loop)
        wiring._context = self.context  # type: ignore[assignment]
        self.sources = Pool(
            self.loop,
            wiring,
            name=f"shard-{shard.id}",
            boot=self.engine.boot,
            address=lambda id: self.map.shards[id].address if id in self.map.shards else None,
            now_ms=self.now_ms,
            idle_ms=MOVE_SOURCE_IDLE_MS,
        )
        self.mover = Mover(
            shard=shard.id,
            engine=self.engine,
            coordinator=self.coordinator,
            map=self.map,
            get_name=Names().get,
            sources=self.sources,
            counts=self.counts,
            turn=self.turn,
            now_ms=self.now_ms,
        )
        self.coordinator.on_news(self.look)
        self.loop.call_soon(self._beat)
        self.loop.call_soon(self.mover.begin_due)
        self._registering = self.loop.create_task(self._register())

    def now_ms(self) -> int:
        return self.cluster.now_ms()

    async def _register(self) -> None:
        key = f"{SHARDS}{self.shard.id}"
        own = Member(self.shard.id, self.engine.boot, self.shard.address)

        async def free() -> int:
            return await until_free(
                self.coordinator,
                key,
                own,
                lease_ms=limits.ETCD_LEASE_MS,
                replaces=own.boot - 1,
                clock=self.loop.time,
            )

        while not self.dead:
            try:
                return await register(self.coordinator, key, own, self._displaced, free)
            except (CoordinatorError, MemberRefusedError):
                await asyncio.sleep(1.0)

    def _displaced(self, value: str) -> None:
        """A real process would end: here no living process has the number of another one."""
        if not (self.dead or self.coordinator.is_deposed):
            self.cluster.errors.append(
                f"shard {self.shard.id} was displaced by a process that is dead: {value}"
            )

    # --- the shell ---------------------------------------------------------------------------------------

    def _receive(self, parts: list[bytes]) -> None:
        if not self.dead:
            rest = parts[1:]
            while rest:
                rest = self.engine.receive(parts[0], rest, self.now_ms())

    def look(self) -> None:
        """News have come."""
        if not self.dead:
            self.engine.refresh(self.now_ms())
            self.turn()

    def turn(self) -> None:
        if self.dead:
            return
        actions = self.engine.step(self.now_ms())
        self._send(actions.output)
        if self._commit is None and self.store.pending:
            self._begin()
        for queue in actions.wanted:
            self.mover.take_back(queue)
        for read in actions.reads:
            read.perform(self.store)
            self.loop.call_later(self.chance.uniform(*COMMIT_S), self._read, read)

    def _read(self, read: object) -> None:
        if not self.dead:
            self.engine.read_ended(read, None, self.now_ms())  # type: ignore[arg-type]
            self.turn()

    def _begin(self) -> None:
        self._commit = self.store.begin_commit()
        self.engine.commit_begun()
        self.loop.call_later(self.chance.uniform(*COMMIT_S), self._end)

    def _end(self) -> None:
        commit, self._commit = self._commit, None
        if self.dead or commit is None:
            return
        commit.perform()
        self.store.end_commit(commit)
        self.engine.commit_ended(self.now_ms())
        self.turn()

    def _send(self, output: list[tuple[bytes, list[bytes]]]) -> None:
        for identity, parts in output:
            if self.socket.send([identity, *parts]):
                self.cluster.said(self.shard.id, parts)
            else:
                self.engine.lost(identity)
                self.loop.call_soon(self.turn)

    def _beat(self) -> None:
        if self.dead:
            return
        self.engine.tick(self.now_ms())
        self.look()
        self.loop.call_later(limits.DIRECTORY_POLL_MS / 1000, self._beat)

    def isolate(self) -> None:
        """Nobody but etcd hears it from now on; it does not notice that another process owns its shard."""
        self.host.is_cut_off = True
        self.socket.close()
        self.cluster.network.gone(self.host)
        self.coordinator.host = Host(f"{self.host.name}, alone")

    def die(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._registering.cancel()
        self.cluster.graveyard += [*self.mover.stop(), self._registering]
        self.socket.close()
        pooled, self.sources._pooled = self.sources._pooled, {}
        for each in pooled.values():
            for timer in (each.idle, each.peer._timer):
                if timer is not None:
                    timer.cancel()
            each.peer._socket.close()
        if self.host in self.cluster.network.hosts:
            self.cluster.network.gone(self.host)
        self.coordinator.die()
