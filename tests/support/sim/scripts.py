"""What happens in a run of the simulated cluster: moves, and the faults beside them."""

import asyncio
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.sim.cluster import Cluster
    from tests.support.sim.shard import SimShard


class Script:
    """What happens in a run; this one only moves queues, and calls some moves off."""

    def __init__(self, cluster: "Cluster", steps: int = 5) -> None:
        self.cluster = cluster
        self._steps = steps

    async def run(self) -> None:
        chance = self.cluster.chance
        for _ in range(self._steps):
            self.cluster.busy_until_s = self.cluster.loop.time() + 0.5
            await asyncio.sleep(chance.uniform(0.01, 0.2))
            await self.step()
        self.cluster.busy_until_s = self.cluster.loop.time() + 0.3
        await asyncio.sleep(0.3)

    async def step(self) -> None:
        await self.cluster.ask_move()
        if self.cluster.chance.random() < 0.2:
            await asyncio.sleep(self.cluster.chance.uniform(0.001, 0.05))
            await self.cluster.cancel_moves()


class Faults(Script):
    """Moves, and beside them everything that may fail."""

    async def step(self) -> None:
        await super().step()
        if self.cluster.chance.random() < 0.6:
            await self.until_frozen()
            # Between here and the end of the move are some ten steps.
            await asyncio.sleep(self.cluster.chance.uniform(0.0, 0.03))
            ends = [self.cluster.shards[id] for id in self.ends]
            if ends and self.cluster.chance.random() < 0.7:
                await self.cluster.chance.choice((self.crash, self.cut_off_shard))(
                    self.cluster.chance.choice(ends)
                )
                return
        fault = self.cluster.chance.choice(
            (self.crash, self.crash, self.break_connections, self.cut_off, self.lose_etcd, self.slow_down)
        )
        await fault()

    async def until_frozen(self) -> None:
        """A source is about to be frozen, or nothing comes of the move."""
        self.ends: list[int] = []
        until = self.cluster.loop.time() + 0.5
        while self.cluster.loop.time() < until:
            for key, entry in self.cluster.etcd.entries.items():
                if key.startswith("moves/") and entry.value and "frozen" in entry.value:
                    move = json.loads(entry.value)
                    self.ends = [move["source"], move["to"]]
                    return
            await asyncio.sleep(0.0005)

    async def cut_off_shard(self, shard: "SimShard") -> None:
        """One end of a move is alone, for longer than the other one waits."""
        cluster = self.cluster
        life = shard.life
        if life is None:
            return
        cluster.ledger.forgiving = True
        cluster.network.cut_off(life.host)
        await asyncio.sleep(cluster.chance.choice((0.5, 13.0)))
        if life.host in cluster.network.hosts:
            cluster.network.heal(life.host, broken=cluster.chance.random() < 0.3)

    async def crash(self, shard: "SimShard | None" = None) -> None:
        """A shard dies, and comes back after a while."""
        cluster = self.cluster
        shard = shard or cluster.chance.choice(cluster.shards)
        cluster.crash(shard)
        await asyncio.sleep(cluster.chance.choice((0.01, 0.2, 1.0, 12.0)))
        if shard.life is None:
            shard.start()

    async def break_connections(self) -> None:
        self.cluster.ledger.forgiving = True
        self.cluster.network.break_some(self.cluster.chance.choice((0.2, 0.5, 1.0)))

    async def cut_off(self) -> None:
        """A process is alone for a while, and keeps its connections, or loses them."""
        cluster = self.cluster
        host = cluster.chance.choice(cluster.hosts())
        cluster.ledger.forgiving = True
        cluster.network.cut_off(host)
        await asyncio.sleep(cluster.chance.choice((0.05, 0.5, 3.0, 15.0)))
        if host in cluster.network.hosts:
            cluster.network.heal(host, broken=cluster.chance.random() < 0.5)

    async def lose_etcd(self) -> None:
        cluster = self.cluster
        if cluster.chance.random() < 0.5:
            cluster.etcd.answers_lost = 0.5
        else:
            cluster.etcd.is_down = True
        await asyncio.sleep(cluster.chance.choice((0.05, 0.5, 8.0, 20.0)))
        cluster.etcd.is_down = False
        cluster.etcd.answers_lost = 0.0

    async def slow_down(self) -> None:
        cluster = self.cluster
        cluster.network.slow = cluster.chance.choice((5.0, 50.0))
        await asyncio.sleep(cluster.chance.choice((0.1, 0.5)))
        cluster.network.slow = 1.0


class Late(Faults):
    """The destination is alone just before its transaction, for longer than the source waits."""

    async def step(self) -> None:
        cluster = self.cluster
        await cluster.ask_move()
        await self.until_frozen()
        if not self.ends:
            return
        await asyncio.sleep(cluster.chance.uniform(0.003, 0.02))
        life = cluster.shards[self.ends[1]].life
        assert life is not None
        cluster.ledger.forgiving = True
        cluster.network.cut_off(life.host)
        await asyncio.sleep(13)
        cluster.network.heal(life.host, broken=False)


class Overtaken(Faults):
    """The destination dies just after it sent its transaction; its successor starts before it arrives."""

    async def step(self) -> None:
        cluster = self.cluster
        await cluster.ask_move()
        await self.until_frozen()
        if not self.ends:
            return
        cluster.etcd.late = 0.9
        await asyncio.sleep(cluster.chance.uniform(0.003, 0.05))
        destination = cluster.shards[self.ends[1]]
        self.end(destination)
        await asyncio.sleep(cluster.chance.choice((0.01, 0.2, 1.0)))
        cluster.etcd.late = cluster.chance.choice((0.0, 0.3))
        if destination.life is None:
            destination.start()
        await asyncio.sleep(cluster.chance.choice((0.1, 1.0, 5.0)))
        cluster.etcd.late = 0.0

    def end(self, destination: "SimShard") -> None:
        self.cluster.crash(destination)


class Delayed(Faults):
    """All faults, and many transactions arrive late: also of processes that have died or are cut off."""

    async def step(self) -> None:
        cluster = self.cluster
        cluster.etcd.late = cluster.chance.choice((0.1, 0.5, 0.9))
        await super().step()
        cluster.etcd.late = 0.0

    async def crash(self, shard: "SimShard | None" = None) -> None:
        """A shard dies, and sometimes its successor as well when it has just begun."""
        cluster = self.cluster
        shard = shard or cluster.chance.choice(cluster.shards)
        await super().crash(shard)
        while cluster.chance.random() < 0.5:
            await asyncio.sleep(cluster.chance.uniform(0.001, 0.1))
            await super().crash(shard)


class Fenced(Overtaken):
    """The same where each process owns its shard by an entry: nothing of a former owner is written.

    Some former owners live on and do not know that they are none.
    """

    def __init__(self, cluster: "Cluster", steps: int = 5) -> None:
        super().__init__(cluster, steps)
        cluster.is_fenced = True

    def end(self, destination: "SimShard") -> None:
        chance = self.cluster.chance
        lives_for_s = chance.choice((0.0, chance.uniform(0.5, 20.0)))
        self.cluster.crash(destination, lives_for_s=lives_for_s)
        if lives_for_s:
            # At once: what the former owner syncs later is not on the disk of its successor.
            destination.start()


SCRIPTS: dict[str, type[Script]] = {
    "moves": Script,
    "faults": Faults,
    "late": Late,
    "overtaken": Overtaken,
    "delayed": Delayed,
    "fenced": Fenced,
}
