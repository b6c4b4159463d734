"""Shards that move queues between each other, in memory: engines, movers and a coordinator, frames by hand.

A test can cut the requests between shards, or have a shard die at any step. Nothing waits for a real time: a
pause ends at the next turn of the loop.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lightrail.cluster import moves
from lightrail.cluster.coordinator import ConflictError, Write
from lightrail.cluster.coordinator import Coordinator as CoordinatorPort
from lightrail.cluster.map import PLACEMENT, Map, Placed
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.shard.journal.journal import Journal
from lightrail.shard.moving.mover import Mover
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Answer
from lightrail.wire.frames import ENQUEUE_ENDS, HEADER, Kind, OutcomeCode, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, PeerScene, Scene, batch

ROUNDS = 2_000
"""Turns of the loop after which something that should have happened never will."""


class Shard:
    """One shard: its journal on a disk of its own, its engine, its mover."""

    def __init__(self, cluster: "Cluster", id: int) -> None:
        self.cluster = cluster
        self.id = id
        self.files = FakeFiles()
        self.life = 0
        self.alive = False
        self.scene: Scene
        self.map: Map
        self.mover: Mover
        self.links: dict[int, Peer] = {}

    def start(self) -> None:
        """A new process on the same disk."""
        self.life += 1
        self.alive = True
        self.map = Map(self.cluster.coordinator)
        self.map.refresh()
        journal = Journal(self.files, "test", self.id, segment_bytes=1 << 20)
        recovered = journal.recover(1 << 30, self.cluster.now_ms)
        self.scene = Scene(
            journal,
            recovered,
            boot=1_000 * (self.id + 1) + self.life,
            now_ms=self.cluster.now_ms,
            names=self.cluster.names,
            shard=self.id,
            map=self.map,
        )
        self.links = {}
        self.mover = Mover(
            shard=self.id,
            engine=self.scene.engine,
            coordinator=self.cluster.coordinator,
            map=self.map,
            get_name=self.cluster.names.get,
            sources=self,
            counts=self.scene.counts,
            turn=self.settle_down,
            now_ms=lambda: self.cluster.now_ms,
            sleep=self.sleep,
        )
        self.scene.engine.refresh(self.cluster.now_ms)
        self.settle_down()
        self.mover.begin_due()

    def die(self, seed: int = 0) -> None:
        """The process is gone, in the middle of whatever it did; what was committed is on its disk."""
        self.alive = False
        self.mover.stop()
        self.files = self.files.after_crash(seed)

    def settle_down(self) -> None:
        if self.alive:
            self.scene.now_ms = self.cluster.now_ms
            self.scene.settle_down()
            wanted, self.scene.wishes_back = self.scene.wishes_back, []
            for queue in wanted:
                self.mover.take_back(queue)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    # --- the sources of its copies -----------------------------------------------------------------------

    async def request(self, shard: int, op: str, fields: dict[str, Any], *, greeting_ms: int) -> Answer:
        """See copier.Sources: this shard sends a request to another one."""
        asked = self.cluster.shards[shard]
        life = asked.life
        self.cluster.step(f"ask {op}")
        await asyncio.sleep(0)
        if not asked.alive or self.cluster.cut:
            raise ShardDownError("it is not there")
        boot = self.scene.engine.boot
        peer = asked.links.get(boot)
        if peer is None:
            peer = asked.links[boot] = self.cluster.link(self, asked)
            peer.greet()
        number = peer.ask(op, **fields)
        asked.settle_down()
        self.cluster.step(f"answer {op}")
        await asyncio.sleep(0)
        if not asked.alive or asked.life != life:
            raise ShardDownError("it went away")
        answer, blob = peer.answers.pop(number)
        if "error" in answer:
            raise ShardRefusedError(answer["error"]["condition"], answer["error"]["description"])
        return Answer(answer, memoryview(blob))


class Coordinator(MemoryCoordinator):
    """Told to fail by the test, before or after a write."""

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__()
        self.cluster = cluster
        self.latest: Sequence[Write] = ()
        """The transaction that was requested last."""

    async def write(self, writes: Any) -> int:
        self.latest = writes
        self.cluster.step("write")
        await asyncio.sleep(0)
        revision = await super().write(writes)
        self.cluster.step("written")
        await asyncio.sleep(0)
        return revision

    async def arrive(self, writes: Sequence[Write]) -> None:
        """A transaction that was sent before arrives; nobody waits for its answer."""
        with contextlib.suppress(ConflictError):
            await super().write(writes)


class Cluster:
    """Two shards or more, and one name space."""

    def __init__(self, shards: int = 2) -> None:
        self.now_ms = 1_000_000
        self.names = EveryName()
        self.steps: list[str] = []
        self.cut = False
        self.on_step: Callable[[int, str], None] = lambda _number, _step: None
        """Told of every step that another process could see, before it."""
        self.coordinator = Coordinator(self)
        self.shards = [Shard(self, id) for id in range(shards)]

    def link(self, asking: Shard, asked: Shard) -> Peer:
        """The connection through which a shard sends requests to another."""
        return Peer(asked.scene, f"shard-{asking.id}", asking.scene.engine.boot)

    def step(self, what: str) -> None:
        self.steps.append(what)
        self.on_step(len(self.steps), what)

    def start(self) -> None:
        for shard in self.shards:
            shard.start()

    async def place(self, queue: str, shard: int = 0, epoch: int = 1) -> None:
        await self.coordinator.write([Write(PLACEMENT + queue, Placed.encode(shard, epoch))])
        self.look()

    async def begin(self, queue: str, to: int, **options: int) -> None:
        """Somebody asks for a move."""
        map = Map(self.coordinator)
        map.refresh()
        await moves.begin(self.coordinator, map, [(queue, to)], now_ms=self.now_ms, **options)
        self.look()

    def look(self) -> None:
        """Every shard looks at the coordinator."""
        for shard in self.shards:
            if shard.alive:
                shard.scene.engine.refresh(self.now_ms)
                shard.settle_down()

    def pass_time(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        for shard in self.shards:
            if shard.alive:
                shard.scene.now_ms = self.now_ms
                for peer in shard.scene.peers.values():
                    peer.ping()
                shard.scene.engine.tick(self.now_ms)
                shard.settle_down()

    def placed(self, queue: str) -> tuple[int, int]:
        map = Map(self.coordinator)
        map.refresh()
        placed = map.placed(queue)
        assert placed is not None
        return placed.shard, placed.epoch

    def is_moving(self, queue: str) -> bool:
        map = Map(self.coordinator)
        map.refresh()
        return queue in map.moves

    async def until(self, condition: Callable[[], bool], *, step_ms: int = 0) -> None:
        """The loop turns, and shards look, until something is so."""
        for _ in range(ROUNDS):
            if condition():
                return
            await asyncio.sleep(0)
            self.look()
            if step_ms:
                self.pass_time(step_ms)
        raise AssertionError(f"it never came about; the last steps were {self.steps[-10:]}")

    async def moved(self, queue: str, to: int) -> None:
        """Moves a queue, with nothing in the way."""
        await self.begin(queue, to)
        await self.until(lambda: not self.is_moving(queue) and self.placed(queue)[0] == to)

    def close(self) -> None:
        for shard in self.shards:
            if shard.alive:
                shard.die()


class FrontendShard(Protocol):
    """A shard as a frontend sees it."""

    @property
    def alive(self) -> bool: ...
    @property
    def life(self) -> int: ...
    @property
    def scene(self) -> PeerScene: ...
    def settle_down(self) -> None: ...


class FrontendCluster(Protocol):
    """The shards that a frontend connects to, and the coordinator that says who owns what."""

    @property
    def coordinator(self) -> CoordinatorPort: ...
    @property
    def shards(self) -> Sequence[FrontendShard]: ...


class Frontend:
    """One sending and one receiving link to a queue, wherever that is: says everything again where needed."""

    SENDS = 1
    TAKES = 2

    def __init__(self, cluster: FrontendCluster, queue: str, boot: int = 7) -> None:
        self.cluster = cluster
        self.queue = queue
        self.boot = boot
        self.map = Map(cluster.coordinator)
        self.peers: dict[int, tuple[int, Peer]] = {}
        """By shard: in which life of it, and the way there."""
        self.open: dict[int, tuple[int, int, int]] = {}
        """By link: shard, its life, and the epoch."""
        self.resumes = False
        """What is held is known to the shard that the receiving link goes to next."""
        self.number = 0
        self.unanswered: dict[int, bytes] = {}
        self.accepted: list[bytes] = []
        self.sent: list[bytes] = []
        self.next = 0
        """The next delivery number."""
        self.credit = 0
        self.held: dict[int, bytes] = {}
        self.taken: list[bytes] = []
        """What was delivered, in that order."""
        self.settled: list[bytes] = []
        self.rejected: list[bytes] = []
        self.unsaid: list[bytes] = []
        """Settlements that came back."""

    # --- what the client does --------------------------------------------------------------------------

    def send(self, *messages: bytes) -> None:
        self.number += 1
        self.sent += messages
        self.unanswered[self.number] = part = batch(
            self.SENDS, self.number, messages, afresh=not self.unanswered
        )
        self._say(self.SENDS, part)
        self.turn()

    def grant(self, credit: int) -> None:
        self.credit = self.next + credit
        self._say(self.TAKES, frame(Kind.CREDIT, link=self.TAKES, number=self.credit))
        self.turn()

    def settle(self, count: int) -> None:
        """Accepts the first messages that it holds."""
        for number in sorted(self.held)[:count]:
            self.settled.append(self.held.pop(number))
            part = frame(Kind.SETTLE, link=self.TAKES, count=1, number=number)
            if not self._say(self.TAKES, part):
                self.unsaid.append(part)
        self.turn()

    # --- where the queue is ----------------------------------------------------------------------------

    def turn(self) -> None:
        """Hears what there is, and goes where the queue is."""
        self._hear()
        self.map.refresh()
        placed = self.map.placed(self.queue)
        for link, (id, life, _) in list(self.open.items()):
            shard = self.cluster.shards[id]
            if shard.life != life or not shard.alive:
                # It died: what was held of it is ready again.
                del self.open[link]
                if link == self.TAKES:
                    self._lost()
        if placed is None or not self.cluster.shards[placed.shard].alive:
            return
        for link in (self.SENDS, self.TAKES):
            if link not in self.open:
                self._open(link, placed)
        while self.unsaid and self._say(self.TAKES, self.unsaid[0]):
            del self.unsaid[0]
        self._hear()

    def _open(self, link: int, placed: Placed) -> None:
        shard = self.cluster.shards[placed.shard]
        life, peer = self.peers.get(placed.shard, (0, None))
        if peer is None or life != shard.life:
            peer = Peer(shard.scene, "frontend-of-the-test", self.boot)
            peer.greet()
            self.peers[placed.shard] = (shard.life, peer)
        self.open[link] = (placed.shard, shard.life, placed.epoch)
        if link == self.SENDS:
            peer.produce(link, self.queue, epoch=placed.epoch)
            if self.unanswered:
                peer.say(*self.unanswered.values())
        else:
            if not self.resumes:
                self._lost()
            peer.consume(link, self.queue, epoch=placed.epoch, first=self.next, resume=self.resumes)
            self.resumes = True
            unsaid, self.unsaid = self.unsaid, []
            if unsaid:
                peer.say(*unsaid)
            peer.credit(link, self.credit)
        shard.settle_down()

    def reject(self) -> None:
        """Rejects the first message that it holds: it goes to the dead-letter queue."""
        for number in sorted(self.held)[:1]:
            self.rejected.append(self.held.pop(number))
            part = frame(Kind.SETTLE, flags=OutcomeCode.REJECTED, link=self.TAKES, count=1, number=number)
            if not self._say(self.TAKES, part):
                self.unsaid.append(part)
        self.turn()

    def _lost(self) -> None:
        self.held.clear()
        self.unsaid.clear()
        self.resumes = False

    def _say(self, link: int, part: bytes) -> bool:
        there = self.open.get(link)
        if there is None:
            return False
        shard = self.cluster.shards[there[0]]
        if not shard.alive or shard.life != there[1]:
            return False
        self.peers[there[0]][1].say(part)
        shard.settle_down()
        return True

    def _hear(self) -> None:
        for id, (life, peer) in self.peers.items():
            if life != self.cluster.shards[id].life:
                continue
            for each in peer.delivered.pop(self.TAKES, []):
                assert each.number == self.next, "a delivery number came twice or not at all"
                self.held[each.number] = each.message
                self.taken.append(each.message)
                self.next += 1
            for answer in peer.take():
                if answer.kind == Kind.ACCEPTED:
                    for number in range(answer.number, answer.number + answer.count):
                        self._answered(number)
                elif answer.kind == Kind.MOVED and self.open.get(answer.link, (-1,))[0] == id:
                    del self.open[answer.link]
                else:
                    assert answer.kind not in (Kind.GONE, Kind.REFUSED), (answer, peer.refusals)
            for _, part in peer.bounced:
                self.unsaid.append(part)
            peer.bounced.clear()

    def _answered(self, number: int) -> None:
        part = self.unanswered.pop(number, None)
        if part is not None:
            self.accepted += enqueued(part)


def enqueued(part: bytes) -> list[bytes]:
    """The messages of an ENQUEUE frame."""
    count = HEADER.unpack_from(part)[5]
    base = ENQUEUE_ENDS + 4 * count
    ends = memoryview(part)[ENQUEUE_ENDS:base].cast("I")
    return [part[base + start : base + end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
