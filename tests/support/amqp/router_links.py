"""A router's link at a frontend whose shards, directory and times are the test's."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from proton import Message

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.performatives import Rejected
from lightrail.amqp.sections import Header, encode_header
from lightrail.frontend.links.routing import RouterLink
from lightrail.model import conditions
from lightrail.model.placement import Placement
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.routers import Routers
from lightrail.wire.bodies import Refusal, Targets
from lightrail.wire.frames import ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER_SIZE, Kind
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend, FakeLink, FakeShard, Said
from tests.support.routers import Graph

FULL = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "full")


class RouterFrontend(FakeFrontend):
    """A frontend with a namespace and two shards: queues whose names begin with `far` are on the second."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.shards = [FakeShard(0), FakeShard(1)]
        self.directory = graph.directory
        self.routers = Routers(graph.directory, self.later, self.now_ms)
        self.shard_connections.placed = self.placed  # type: ignore[attr-defined]
        self.broken = False
        self.unregistered: set[int] = set()
        """Shards whose addresses are not known."""

    def now_ms(self) -> int:
        return self.graph.now_ms

    def poll(self) -> None:
        self.graph.directory.refresh()

    def placed(self, queue: str) -> FakeShard | None:
        placement = self.shard_connections.placement(queue)
        if placement is None or placement.shard in self.unregistered:
            return None
        return self.shards[placement.shard]

    async def find(self, queue: str) -> Placement:
        await asyncio.sleep(0)
        if self.broken:
            raise OSError("no disk")
        return Placement(
            *self.shard_connections.placements.setdefault(queue, (int(queue.startswith("far")), 1))
        )

    def forget_route(self, queue: str) -> None:
        self.shard_connections.placements.pop(queue, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    tasks: list[asyncio.Task[None]]


class Rig:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.frontend = RouterFrontend(graph)
        self.frontend.tasks = []
        self.connection = FakeConnection(self.frontend)
        self.link = FakeLink()
        self.router = RouterLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            number=5,
            router="r",
            label="me",
        )
        self.next_id = 0
        self.router.start()
        self.meaning: list[dict[int, list[str]]] = [{}, {}]

    async def settle(self) -> None:
        """Everything that was begun ends."""
        for _ in range(10):
            await asyncio.sleep(0)
            calls, self.frontend.calls = self.frontend.calls, []
            for wait_ms, call in calls:
                if wait_ms:
                    self.frontend.calls.append((wait_ms, call))
                else:
                    call()

    async def send(self, *payloads: bytes, settled: bool = False, head: bytes = b"") -> int:
        first = self.next_id
        self.next_id += len(payloads)
        self.link.credit -= len(payloads)
        event = Transfers(self.link, first, list(payloads), settled, 0, head)  # type: ignore[arg-type]
        self.router.transfers(event, self.graph.now_ms)
        await self.settle()
        return first

    def said(self, shard: int = 0) -> list[tuple[list[str], list[bytes]]]:
        """The queues and the messages of the frames that left."""
        found = []
        for said in self.frontend.shards[shard].take():
            if said.kind == Kind.TARGETS:
                self.meaning[shard][said.number] = Targets.decode(said.body).queues
            elif said.kind == Kind.ROUTE:
                found.append((self.meaning[shard][said.epoch], messages(said)))
        return found

    def answer(self, number: int, count: int = 1, shard: int = 0) -> None:
        self.lane(shard).answered(number, count)

    async def refuse(self, number: int, refusal: Refusal, shard: int = 0) -> None:
        self.lane(shard).refused(number, refusal)
        await self.settle()

    def lane(self, shard: int = 0) -> Any:
        """The only one to a shard."""
        (lane,) = self.frontend.shards[shard].opened.values()
        return lane

    def outcomes(self) -> list[str]:
        """Of each message: its condition, or accepted."""
        found: dict[int, str] = {}
        for first, last, state in self.link.settled:
            for id in range(first, last + 1):
                assert id not in found
                found[id] = "accepted"
                if isinstance(state, Rejected):
                    assert state.error is not None
                    found[id] = str(state.error.condition)
                else:
                    assert state is ACCEPTED
        assert sorted(found) == list(range(len(found)))
        return [found[id] for id in sorted(found)]


def messages(said: Said) -> list[bytes]:
    ends = memoryview(said.part)[ENQUEUE_ENDS : ENQUEUE_ENDS + 4 * said.count].cast("I")
    blob = said.part[ENQUEUE_ENDS + 4 * said.count :]
    starts = [0, *ends[:-1]]
    return [blob[start:end] for start, end in zip(starts, ends, strict=True)]


def message(subject: str, **fields: Any) -> bytes:
    encoded: bytes = Message(subject=subject, body="x", **fields).encode()
    return encoded


def run(check: Callable[[Rig], Awaitable[None]], **policy: Any) -> None:
    async def checked() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r", **policy)
        await check(Rig(graph))

    asyncio.run(checked())


async def fan_out(rig: Rig, *queues: str) -> None:
    await rig.graph.queue(*queues)
    for queue in queues:
        await rig.graph.subscribe("r", queue)


async def source(rig: Rig) -> None:
    """A queue `source` behind the router, which forwards to `end`."""
    await rig.graph.queue("end")
    forwards = Policy.parse({"role": "queue", "forward_to": "end"})
    await rig.graph.service.give(ANYBODY, "source", forwards)
    await rig.graph.subscribe("r", "source")


def expiries(rig: Rig, shard: int = 0) -> dict[str, int]:
    """The expiry of the frames that left, by queue."""
    found = {}
    for said in rig.frontend.shards[shard].take():
        if said.kind == Kind.TARGETS:
            rig.meaning[shard][said.number] = Targets.decode(said.body).queues
        elif said.kind == Kind.ROUTE:
            for queue in rig.meaning[shard][said.epoch]:
                found[queue] = ENQUEUE_COLUMNS.unpack_from(said.part, HEADER_SIZE)[0]
    return found


def head(ttl_ms: int) -> bytes:
    return encode_header(Header(ttl=ttl_ms))
