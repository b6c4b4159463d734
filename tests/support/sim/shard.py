"""A shard of a simulated cluster: real engine, journal and mover, a disk that loses what was not synced."""

import asyncio
import random
from typing import TYPE_CHECKING, Final

import zmq

from lightrail.cluster.map import SHARDS, Map, Member
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
from lightrail.wire.socket import LoopSocket
from tests.support.shard.fake_files import FakeFiles
from tests.support.sim.coordinator import SimCoordinator

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

    def start(self) -> None:
        assert self.life is None
        self.lives += 1
        self.life = Life(self)

    def crash(self) -> None:
        """As a machine that stops: what was not synced may be on the disk, or not."""
        life, self.life = self.life, None
        if life is not None:
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
        self.sources = Pool(
            self.loop,
            name=f"shard-{shard.id}",
            boot=self.engine.boot,
            address=lambda id: self.map.shards[id].address if id in self.map.shards else None,
            now_ms=self.now_ms,
            idle_ms=MOVE_SOURCE_IDLE_MS,
        )
        self.sources._context = self.context  # type: ignore[assignment]
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
        member = Member(self.shard.id, self.engine.boot, self.shard.address)
        while not self.dead:
            try:
                await self.coordinator.register(f"{SHARDS}{self.shard.id}", member.encode(), lambda _: None)
                return
            except Exception:
                await asyncio.sleep(1.0)

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
            self.cluster.said(self.shard.id, parts)
            if not self.socket.send([identity, *parts]):
                self.engine.lost(identity)
                self.loop.call_soon(self.turn)

    def _beat(self) -> None:
        if self.dead:
            return
        self.engine.tick(self.now_ms())
        self.look()
        self.loop.call_later(limits.DIRECTORY_POLL_MS / 1000, self._beat)

    def die(self) -> None:
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
        self.cluster.network.gone(self.host)
        self.coordinator.die()
