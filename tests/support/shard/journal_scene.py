"""A gateway over shards whose journals are in memory, all in one process: real sockets between them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiohttp

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import SHARD_SETS, SHARDS, Member, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.app import Gateway, open_services
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Members
from lightrail.gateway.services import Services
from lightrail.model.clock import wall_ms
from lightrail.model.settings import Settings
from lightrail.shard.engine.engine import Engine
from lightrail.shard.engine.server import Server
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.store import Recovered
from lightrail.shard.requests.journal_requests import JournalRequests
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry import exposition
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.sockets.wiring import Wiring
from tests.support import wait
from tests.support.shard.fake_journals import FakeJournals


async def eventually(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Returns once it holds; other tasks and threads get on meanwhile."""
    await asyncio.to_thread(wait.until, condition, "what the test waits for", deadline_s)


class Came(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class JournalScene:
    """Shards 0 … with one journal each, `d0`, `d1` …, and a gateway."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.coordinator = MemoryCoordinator()
        self.journals: dict[int, FakeJournals] = {}
        self.servers: dict[int, Server] = {}
        self.requests: dict[int, JournalRequests] = {}
        self.wiring: Wiring
        self.shards: ShardConnections
        self.services: Services
        self.url = ""
        self._session: aiohttp.ClientSession
        self._runner: Any

    async def begin(self, shards: int) -> None:
        loop = asyncio.get_running_loop()
        self.wiring = Wiring(loop)
        for shard in range(shards):
            self.journals[shard] = FakeJournals()
            self.journals[shard].journal(f"d{shard}", shard)
            await self.start(shard)
        self.shards = ShardConnections(self.coordinator, loop, self.wiring, name="gateway-0", boot=1)
        self.shards.refresh()
        members = Members()
        self.services = open_services(
            settings=Settings(archive=str(self.directory / "archive")),
            coordinator=self.coordinator,
            shards=self.shards,
            members=members,
            health=Health(0, members, lambda: None),
        )
        await self.services.callers.refresh()
        self._runner, port = await exposition.listen(Gateway(self.services).application(), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession()
        await eventually(lambda: self.shards.not_ready() is None)

    async def start(self, shard: int) -> None:
        counts = ShardCounts()
        store = MemoryStore()
        engine = Engine(
            shard=shard,
            boot=shard + 1,
            store=store,
            recovered=Recovered(),
            counts=counts,
            memory_mark=1 << 30,
            max_delivery_count=10,
            now_ms=wall_ms(),
        )
        loop = asyncio.get_running_loop()
        server = Server(loop, engine, store, counts, self.wiring, f"ipc://{self.directory}/shard-{shard}")
        requests = JournalRequests(loop, cast(Any, self.journals[shard]), server.turn)
        engine.answer(requests.operations)
        self.servers[shard], self.requests[shard] = server, requests
        await self.put(f"{SHARD_SETS}{shard}", ShardRecord(shard, f"d{shard}").encode())
        member = Member(shard, shard + 1, address=server.address, disk=f"d{shard}")
        await self.put(f"{SHARDS}{shard}", member.encode())

    async def stop(self, shard: int) -> None:
        """The shard ends in order; it stays a part of the cluster."""
        self.requests.pop(shard).close()
        await self.servers.pop(shard).close()
        await self.put(f"{SHARDS}{shard}", None)
        peer = self.shards.peers[shard]
        peer.greet_again("the test has stopped it")

    async def put(self, key: str, value: str | None) -> None:
        await self.coordinator.write([Write(key, value)])

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Came:
        async with self._session.request(
            method,
            self.url + path,
            json=body,
            headers={key.replace("_", "-"): headers[key] for key in headers},
        ) as response:
            return Came(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Came:
        return await self.ask("GET", path, **headers)

    async def end(self) -> None:
        await self._session.close()
        await self._runner.cleanup()
        for shard in list(self.servers):
            self.journals[shard].gate.set()
            self.requests.pop(shard).close()
            await self.servers.pop(shard).close()


def with_journals(check: Callable[[JournalScene], Awaitable[None]], directory: Path, shards: int = 1) -> None:
    """Run a check against a gateway and so many shards."""

    async def run() -> None:
        scene = JournalScene(directory)
        await scene.begin(shards)
        try:
            await check(scene)
        finally:
            await scene.end()

    asyncio.run(run())
