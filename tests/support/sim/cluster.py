"""A whole cluster decided by one seed: shards, frontends, etcd, network; faults; and the laws at the end.

The laws: what was accepted is delivered until somebody takes it; nothing is stored twice (a message has one
sequence for ever); the messages of one sender have rising sequences; in an epoch one shard alone speaks for a
queue; and when the faults stop, everything that waits gets its end.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightrail.cluster import moves
from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.map import SHARD_SETS, ShardRecord
from lightrail.wire.frames import HEADER, Kind
from tests.support.shard.life import Id, id_of
from tests.support.shard.scene import delivered
from tests.support.sim.coordinator import Etcd, SimCoordinator
from tests.support.sim.frontend import SimFrontend
from tests.support.sim.loop import SimLoop
from tests.support.sim.network import Host, Network
from tests.support.sim.shard import SimShard

if TYPE_CHECKING:
    from tests.support.sim.scripts import Script

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
    settled: bool = False
    """Its settlement was answered: it is never delivered again."""


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

    def settled(self, id: Id) -> None:
        """Its settlement is answered: it comes to nobody again, unless it is sent again.

        A sender without an answer sends again, and of a transient message the next owner knows nothing.
        """
        fate = self.fates[id]
        fate.settled = fate.durable or fate.accepted

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

    etcd_type = Etcd
    calm_s = CALM_S
    asks = False
    """Whether clients ask for answers to their settlements."""
    busy_rate = 1_500
    idle_rate = 40
    """Acts of clients per second around the events of a run, and between them."""

    def __init__(self, seed: int, *, shards: int = 3, frontends: int = 2, queues: int = 2) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.loop = SimLoop()
        self.network = Network(self.loop, self.chance)
        self.etcd = self.etcd_type(self.loop, self.chance)
        self.ledger = Ledger()
        self.is_draining = False
        self.is_fenced = False
        """Whether each process of a shard owns it by an entry, which it has written at its start."""
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
        self.shards = self._make_shards(shards)
        self.frontends: list[SimFrontend] = []
        self._frontends = frontends

    def coordinator(self, host: Host) -> SimCoordinator:
        """What a new process sees of etcd."""
        return SimCoordinator(self.etcd, host)

    def _make_shards(self, count: int) -> list[SimShard]:
        return [SimShard(self, id) for id in range(count)]

    def now_ms(self) -> int:
        return START_MS + int(self.loop.time() * 1000)

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def said(self, shard: int, parts: Sequence[bytes]) -> None:
        """What a shard tells a frontend: nobody else may deliver from that queue in that epoch, and nobody
        may deliver what is settled for ever. What is on its way already may arrive after that."""
        for part in parts:
            kind, _, _, epoch, _, count, _ = HEADER.unpack_from(part)
            if kind == Kind.DELIVER and count:
                fates = {
                    id: self.ledger.fates[id] for id in (id_of(each.message) for each in delivered(part))
                }
                queue = next(iter(fates.values())).queue
                for id, fate in fates.items():
                    if fate.settled:
                        raise BrokenLawError(
                            f"{id} of {queue} is delivered after the answer to its settlement: {fate}"
                        )
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
            self._end_processes()
            for frontend in self.frontends:
                frontend.die()
            ended = self._ended_tasks()
            for task in asyncio.all_tasks(self.loop) - ended:
                task.cancel()
                self.graveyard.append(task)
            self.loop.run_until_complete(asyncio.gather(*self.graveyard, return_exceptions=True))
            asyncio.set_event_loop(None)
            self.loop.close()
        if self.errors:
            raise BrokenLawError(self.errors[0])

    def _ended_tasks(self) -> set[asyncio.Task[object]]:
        """Tasks that are not waited for, as their processes have ended."""
        return set()

    def _end_processes(self) -> None:
        for shard in self.shards:
            for life in (*shard.deposed, shard.life):
                if life is not None:
                    life.die()

    async def _started(self) -> None:
        await asyncio.sleep(0.1)

    def _failed(self, _loop: object, context: dict[str, object]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def _run(self, script: "Callable[[Cluster], Script]") -> None:
        acting = script(self)
        for shard in self.shards:
            shard.start()
        await self._started()
        self.frontends = [SimFrontend(self, id) for id in range(self._frontends)]
        for frontend in self.frontends:
            for queue in self.queues:
                await frontend.add_sender(queue)
                await frontend.add_receiver(queue)
        working = asyncio.ensure_future(self._work())
        try:
            await acting.run()
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
            rate = self.busy_rate if self.loop.time() < self.busy_until_s else self.idle_rate
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
        until = self.loop.time() + self.calm_s
        while True:
            waiting = self.waiting()
            if waiting:
                self.busy_until_s = self.loop.time() + 1
            else:
                waiting = self.lacks()
            if not waiting:
                return
            if self.loop.time() > until:
                raise BrokenLawError(f"{self.calm_s:g} s after the last fault: {waiting}")
            await asyncio.sleep(0.05)

    def lacks(self) -> str:
        """What is missing although all messages have their end; empty if nothing is."""
        return ""

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

    def crash(self, shard: SimShard, *, lives_for_s: float = 0.0) -> None:
        self.ledger.forgiving = self.ledger.crashed = True
        for queue in self.queues:
            if shard.life is not None and shard.life.engine._queues.find(queue) is not None:
                self.ledger.may_be_lost(queue)
        shard.crash(lives_for_s=lives_for_s)

    def hosts(self) -> list[Host]:
        return list(self.network.hosts)


class _Watch(logging.Handler):
    """Mistakes that the product only logs are mistakes here."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            text = logging.Formatter().format(record)
            self._errors.append(text)
