"""The gateway's handlers of shards and moves over a coordinator in memory; shards only give figures."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import MOVES, PLACEMENT, SHARD_SETS, SHARDS, Map, Member, Move, Placed, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.request import Request
from lightrail.model import limits
from lightrail.model.policy import Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, Name
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.shard.requests.requests import COLUMNS
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.wire.bodies import Answer

Handler = Callable[[Request], Awaitable[web.StreamResponse]]


class FigurePeer:
    """A shard that serves these queues, and brings these others to itself."""

    def __init__(self) -> None:
        self.state = ConnectionState.SERVING
        self.address = "tcp://there:1"
        self.queues: dict[str, list[int]] = {}
        """Rows of COLUMNS by name; each look adds `rate` to what arrived."""
        self.rates: dict[str, int] = {}
        self.moves: list[dict[str, Any]] = []
        self.prepared: list[dict[str, Any]] = []
        """Transactions that wait here for the decision of another shard."""
        self.concluded: list[dict[str, Any]] = []
        """Decisions that came."""
        self.is_full = False
        """Whether it has no room to conclude transactions."""

    def has(self, *queues: str, bytes: int = 100, rate: int = 0) -> None:
        for queue in queues:
            row = dict.fromkeys(COLUMNS, 0) | {"bytes": bytes, "resident": bytes}
            self.queues[queue] = list(row.values())
            self.rates[queue] = rate

    async def request(self, op: str, fields: dict[str, Any], *, wait_ms: int = limits.REQUEST_MS) -> Answer:
        if self.state is not ConnectionState.SERVING:
            raise ShardDownError("it is not there now")
        if op == "moves":
            return Answer({"moves": [dict(each) for each in self.moves]}, memoryview(b""))
        if op == "kept":
            return Answer({"count": 0, "queues": []}, memoryview(b""))
        if op == "transactions":
            return Answer({"count": len(self.prepared), "transactions": list(self.prepared)}, memoryview(b""))
        if op == "conclude":
            if self.is_full:
                raise ShardRefusedError("amqp:resource-limit-exceeded", "the disk is full")
            self.concluded.append(fields)
            self.prepared = [each for each in self.prepared if each["id"] != fields["id"]]
            return Answer({"concluded": True}, memoryview(b""))
        assert op == "queues"
        names = sorted(name for name in self.queues if name > fields["after"])
        page, rest = names[: fields["limit"]], names[fields["limit"] :]
        rows = {name: list(self.queues[name]) for name in page}
        for name in page:
            self.queues[name][COLUMNS.index("arrived")] += self.rates[name]
        answer = {"columns": COLUMNS, "queues": rows, "next": page[-1] if rest else None}
        return Answer(answer, memoryview(b""))


class MoveScene:
    """Shards 0 … `shards` - 1, which are registered and serve."""

    def __init__(self, shards: int = 3) -> None:
        self.coordinator = MemoryCoordinator()
        self.map = Map(self.coordinator)
        self.peers = {id: FigurePeer() for id in range(shards)}
        self._shards = shards
        self.services: Any = SimpleNamespace(
            coordinator=self.coordinator,
            map=self.map,
            shards=SimpleNamespace(peers=self.peers, request_all=self.request_all, wiring=None),
            directory=Directory(self.coordinator, auto_create=True),
        )

    async def request_all(self, op: str, fields: dict[str, Any]) -> dict[int, Answer]:
        """See ShardConnections.request_all."""
        peers = sorted(self.peers.items())
        return {
            id: await peer.request(op, fields) for id, peer in peers if peer.state is ConnectionState.SERVING
        }

    async def begin(self) -> None:
        for id in range(self._shards):
            await self.shard(id)

    async def shard(self, id: int, *, state: str = "active", registered: bool = True) -> None:
        await self.put(f"{SHARD_SETS}{id}", ShardRecord(id, "d", state).encode())
        member = Member(id, 1, address=f"tcp://{id}").encode() if registered else None
        await self.put(f"{SHARDS}{id}", member)

    async def place(self, shard: int, *queues: str, there: bool = True) -> None:
        for queue in queues:
            await self.put(PLACEMENT + queue, Placed.encode(shard, 1))
            await self.put(NAMES + queue, Name(queue, Policy(Role.QUEUE, {}), 0, 0, 0, 0).to_value())
            if there:
                self.peers[shard].has(queue)

    async def move(self, queue: str, source: int, to: int, phase: str = "waiting") -> None:
        await self.put(MOVES + queue, Move(queue, source, to, 1, phase).encode())

    async def put(self, key: str, value: str | None) -> None:
        await self.coordinator.write([Write(key, value)])

    async def ask(
        self,
        handler: Handler,
        path: str = "/",
        body: Any = None,
        *rest: str,
        caller: Caller = ANYBODY,
    ) -> Any:
        """The JSON of the answer, None where it has none. Raises ProblemError."""
        payload = StreamReader(Mock(_reading_paused=False), 2**16, loop=asyncio.get_running_loop())
        payload.feed_data(json.dumps(body).encode())
        payload.feed_eof()
        http: web.Request = make_mocked_request("POST", path, payload=payload)
        response = await handler(Request(self.services, http, caller, "", rest))
        assert isinstance(response, web.Response)
        return json.loads(response.text) if response.text else None

    async def refused(self, handler: Handler, path: str = "/", body: Any = None, *rest: str) -> ProblemError:
        try:
            found = await self.ask(handler, path, body, *rest)
        except ProblemError as problem:
            return problem
        raise AssertionError(f"expected to be refused, got {found}")


def with_scene(check: Callable[[MoveScene], Awaitable[None]], shards: int = 3) -> None:
    """Runs a check against such a scene."""

    async def run() -> None:
        scene = MoveScene(shards)
        await scene.begin()
        await check(scene)

    asyncio.run(run())
