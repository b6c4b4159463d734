"""A whole cluster decided by one seed: shards, frontends, etcd, network; faults; and the laws at the end.

The laws: what was accepted is delivered until somebody takes it; nothing is stored twice (a message has one
sequence for ever); the messages of one sender have rising sequences; in an epoch one shard alone speaks for a
queue; and when the faults stop, everything that waits gets its end.
"""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightrail.cluster import moves
from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.map import SHARD_SETS, ShardRecord
from lightrail.wire.frames import HEADER, Kind
from tests.support.shard.life import Id, id_of
from tests.support.shard.scene import delivered
from tests.support.sim.coordinator import Etcd
from tests.support.sim.frontend import SimFrontend
from tests.support.sim.loop import SimLoop
from tests.support.sim.network import Host, Network
from tests.support.sim.shard import SimShard

START_MS = 1_700_000_000_000
CALM_S = 120.0
"""Simulated seconds in which everything has to end once the faults stopped."""


class BrokenLawError(AssertionError):
    """A law does not hold."""


@dataclass
class Fate:
    """Of one message."""

    durable: bool
    queue: str
    accepted: bool = False
    sequence: int | None = None
    deliveries: int = 0
    held: int = 0
    taken: bool = False


@dataclass
class Ledger:
    """What every client knows."""

    fates: dict[Id, Fate] = field(default_factory=dict)
    sequences: dict[tuple[str, int], Id] = field(default_factory=dict)
    forgiving: bool = False
    """Something happened after which what was delivered, or transient, may come again or be lost."""
    crashed: bool = False

    def sent(self, ids: Sequence[Id], durable: bool, queue: str) -> None:
        for id in ids:
            self.fates[id] = Fate(durable, queue)

    def accepted(self, ids: Sequence[Id]) -> None:
        for id in ids:
            self.fates[id].accepted = True

    def may_be_lost(self, queue: str) -> None:
        """Its shard crashes: what it delivered and had not accepted yet may get another sequence."""
        for fate in self.fates.values():
            if fate.queue == queue and fate.sequence is not None and not fate.accepted:
                self.sequences.pop((queue, fate.sequence), None)
                fate.sequence = None

    def delivered(self, queue: str, id: Id, sequence: int, attempts: int) -> None:
        fate = self.fates[id]
        if fate.queue != queue:
            raise BrokenLawError(f"{id} was sent to {fate.queue} and came from {queue}")
        if fate.sequence is not None and fate.sequence != sequence and (fate.durable or not self.crashed):
            raise BrokenLawError(f"{id} of {queue} is stored twice: as {fate.sequence} and as {sequence}")
        other = self.sequences.get((queue, sequence))
        if other is not None and other != id and not (self.crashed and not self.fates[other].durable):
            raise BrokenLawError(f"sequence {sequence} of {queue} was {other} and is {id}")
        self.sequences[queue, sequence] = id
        fate.sequence = sequence
        fate.deliveries += 1
        fate.held += 1
        if not self.forgiving and (fate.taken or fate.held > 1):
            raise BrokenLawError(f"{id} of {queue} was delivered again: {fate}")

    def returned(self, id: Id) -> None:
        self.fates[id].held = max(0, self.fates[id].held - 1)

    def taken(self, id: Id) -> None:
        fate = self.fates[id]
        fate.taken = True
        fate.held = max(0, fate.held - 1)

    def unfinished(self) -> list[Id]:
        """What must still come to somebody."""
        return [
            id
            for id, fate in self.fates.items()
            if fate.accepted and not fate.taken and (fate.durable or not self.crashed)
        ]

    def check_order(self) -> None:
        last: dict[int, tuple[Id, int]] = {}
        for id in sorted(self.fates):
            sequence = self.fates[id].sequence
            if sequence is None or not (self.fates[id].durable or not self.crashed):
                continue
            if id[0] in last and last[id[0]][1] >= sequence:
                raise BrokenLawError(f"{last[id[0]]} was sent before {id}, which is {sequence}")
            last[id[0]] = (id, sequence)


class Cluster:
    """Everything of one run."""

    def __init__(self, seed: int, *, shards: int = 3, frontends: int = 2, queues: int = 2) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.loop = SimLoop()
        self.network = Network(self.loop, self.chance)
        self.etcd = Etcd(self.loop, self.chance)
        self.ledger = Ledger()
        self.is_draining = False
        self.graveyard: list[asyncio.Task[None]] = []
        """Tasks of processes that died: their ends are waited for."""
        self.queues = [f"q{i}" for i in range(queues)]
        self.owners: dict[tuple[str, int], int] = {}
        """Who has delivered in which epoch of a queue."""
        self.moves_asked = 0
        self.busy_until_s = 0.5
        """Clients do much until then."""
        self._links = 0
        self.errors: list[str] = []
        self.etcd.commit([Write(f"{SHARD_SETS}{id}", ShardRecord(id).encode()) for id in range(shards)])
        self.shards = [SimShard(self, id) for id in range(shards)]
        self.frontends: list[SimFrontend] = []
        self._frontends = frontends

    def now_ms(self) -> int:
        return START_MS + int(self.loop.time() * 1000)

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def said(self, shard: int, parts: Sequence[bytes]) -> None:
        """What a shard tells a frontend: nobody else may deliver from that queue in that epoch."""
        for part in parts:
            kind, _, _, epoch, _, count, _ = HEADER.unpack_from(part)
            if kind == Kind.DELIVER and count:
                queue = self.ledger.fates[id_of(delivered(part)[0].message)].queue
                owner = self.owners.setdefault((queue, epoch), shard)
                if owner != shard:
                    raise BrokenLawError(f"shards {owner} and {shard} both serve {queue} in epoch {epoch}")

    # --- a run -----------------------------------------------------------------------------------------

    def run(self, script: "Callable[[Cluster], Script]") -> None:
        """Starts everything, lets the script do its worst, and checks the laws."""
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._failed)
        watch = _Watch(self.errors)
        logging.getLogger("lightrail").addHandler(watch)
        try:
            self.loop.run_until_complete(self._run(script))
        finally:
            logging.getLogger("lightrail").removeHandler(watch)
            for shard in self.shards:
                if shard.life is not None:
                    shard.life.die()
            for frontend in self.frontends:
                frontend.die()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
                self.graveyard.append(task)
            self.loop.run_until_complete(asyncio.gather(*self.graveyard, return_exceptions=True))
            asyncio.set_event_loop(None)
            self.loop.close()
        if self.errors:
            raise BrokenLawError(self.errors[0])

    def _failed(self, _loop: object, context: dict[str, object]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def _run(self, script: "Callable[[Cluster], Script]") -> None:
        for shard in self.shards:
            shard.start()
        await asyncio.sleep(0.1)
        self.frontends = [SimFrontend(self, id) for id in range(self._frontends)]
        for frontend in self.frontends:
            for queue in self.queues:
                await frontend.add_sender(queue)
                await frontend.add_receiver(queue)
        working = asyncio.ensure_future(self._work())
        try:
            await script(self).run()
            self.calm()
            self.is_draining = True
            await self._end()
        finally:
            working.cancel()
            self.graveyard.append(working)
        self.ledger.check_order()

    async def _work(self) -> None:
        while True:
            # Much happens around the events of a run, little while everything waits for somebody.
            rate = 1_500 if self.loop.time() < self.busy_until_s else 40
            await asyncio.sleep(self.chance.expovariate(rate))
            for frontend in self.frontends:
                frontend.work()

    def calm(self) -> None:
        """No fault from here on; whoever died is started."""
        self.etcd.is_down = False
        self.etcd.answers_lost = self.etcd.late = 0.0
        self.network.slow = 1.0
        for host in list(self.network.hosts):
            if host.is_cut_off:
                self.network.heal(host, broken=False)
        for shard in self.shards:
            if shard.life is None:
                shard.start()

    async def _end(self) -> None:
        """Everything has its end, in bounded time."""
        until = self.loop.time() + CALM_S
        while True:
            self.busy_until_s = self.loop.time() + 1
            waiting = self.waiting()
            if not waiting:
                return
            if self.loop.time() > until:
                raise BrokenLawError(f"{CALM_S:g} s after the last fault: {waiting}")
            await asyncio.sleep(0.05)

    def waiting(self) -> str:
        """What has not ended; empty when everything has."""
        if self.errors:
            return ""
        for frontend in self.frontends:
            for sender in frontend.senders:
                if sender.unanswered:
                    return f"{len(sender.unanswered)} batches for {sender.queue} have no answer"
        left = self.ledger.unfinished()
        if left:
            first = f"{left[0]}: {self.ledger.fates[left[0]]}"
            return f"{len(left)} accepted messages were not delivered, such as {first}"
        for frontend in self.frontends:
            if any(receiver.held for receiver in frontend.receivers):
                return "messages are held"
        if any(key.startswith("moves/") and each.value for key, each in self.etcd.entries.items()):
            return "moves are under way"
        for queue in self.queues:
            served = []
            for shard in self.shards:
                life = shard.life
                found = None if life is None else life.engine._queues.find(queue)
                if found is not None and found.is_serving:
                    served.append(shard.id)
            placed = self.shards[0].life.map.placed(queue) if self.shards[0].life else None
            if placed is None or served != [placed.shard]:
                return f"{queue} is placed at {placed} and served by {served}"
            life = self.shards[placed.shard].life
            owned = None if life is None else life.engine._queues.find(queue)
            gauges = None if owned is None else owned.machine.view.gauges
            if gauges is None or gauges.ready or gauges.in_flight:
                return f"{queue} still has messages that were taken: {gauges}"
        return ""

    # --- what scripts do ---------------------------------------------------------------------------------

    async def ask_move(self, queue: str | None = None) -> None:
        """A queue shall be elsewhere."""
        frontend = self.chance.choice(self.frontends)
        queue = queue or self.chance.choice(self.queues)
        placed = frontend.shard_connections.map.placed(queue)
        if placed is None:
            return
        to = self.chance.choice([shard.id for shard in self.shards if shard.id != placed.shard])
        try:
            begun = await moves.begin(
                frontend.coordinator, frontend.shard_connections.map, [(queue, to)], now_ms=self.now_ms()
            )
            self.moves_asked += len(begun)
        except CoordinatorError:
            pass

    async def cancel_moves(self) -> None:
        frontend = self.chance.choice(self.frontends)
        for move in list(frontend.shard_connections.map.moves.values()):
            placed = frontend.shard_connections.map.placed(move.queue)
            if move.phase == "waiting" and placed is not None:
                with contextlib.suppress(CoordinatorError):
                    await moves.give_up(frontend.coordinator, move, placed)

    def crash(self, shard: SimShard) -> None:
        self.ledger.forgiving = self.ledger.crashed = True
        for queue in self.queues:
            if shard.life is not None and shard.life.engine._queues.find(queue) is not None:
                self.ledger.may_be_lost(queue)
        shard.crash()

    def hosts(self) -> list[Host]:
        return list(self.network.hosts)


class Script:
    """What happens in a run; this one only moves queues, and calls some moves off."""

    def __init__(self, cluster: Cluster, steps: int = 5) -> None:
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

    async def cut_off_shard(self, shard: SimShard) -> None:
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

    async def crash(self, shard: SimShard | None = None) -> None:
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
        cluster.crash(destination)
        await asyncio.sleep(cluster.chance.choice((0.01, 0.2, 1.0)))
        cluster.etcd.late = cluster.chance.choice((0.0, 0.3))
        destination.start()
        await asyncio.sleep(cluster.chance.choice((0.1, 1.0, 5.0)))
        cluster.etcd.late = 0.0


SCRIPTS: dict[str, type[Script]] = {"moves": Script, "faults": Faults, "late": Late, "overtaken": Overtaken}


class _Watch(logging.Handler):
    """Mistakes that the product only logs are mistakes here."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            text = logging.Formatter().format(record)
            self._errors.append(text)
