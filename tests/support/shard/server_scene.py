"""A shard's server on a real loop and sockets, with a frontend, a clock and a slow store of the test."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import zmq

from lightrail.model.clock import wall_ms
from lightrail.shard.engine.engine import Engine
from lightrail.shard.engine.server import Server
from lightrail.shard.journal.memory import MemoryCommit, MemoryStore
from lightrail.shard.journal.record import Record
from lightrail.shard.journal.store import Recovered, StoreBusyError
from lightrail.shard.queue.values.runs import Location
from lightrail.shard.queues.delivery_marks import FileMarks
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Hello
from lightrail.wire.frames import HEADER, VERSION, Kind, frame
from lightrail.wire.sockets.wiring import Wiring
from lightrail.wire.sockets.zeromq import LoopSocket

WAIT_S = 20


class Clock:
    """Seconds, as the test has them."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class SlowStore(MemoryStore):
    """Its commits last until the test lets them end, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: OSError | None = None
        self.closed = False
        self.crowded_by = 1 << 30
        """Records from which on the store is crowded while a commit is under way."""
        self.busy_from = 1 << 30
        """The same, where it finds out by a record that does not fit."""
        self._is_busy = False

    @property
    def is_crowded(self) -> bool:
        return self._in_flight is not None and (self._is_busy or self._records >= self.crowded_by)

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        self._is_busy = self._in_flight is not None and self._records >= self.busy_from
        if self._is_busy:
            raise StoreBusyError("send again in a moment")
        return super().append(record, now_ms)

    def begin_commit(self) -> MemoryCommit:
        commit = super().begin_commit()
        store = self

        class Slow(MemoryCommit):
            def perform(self) -> None:
                assert store.go_on.wait(WAIT_S)
                if store.error is not None:
                    raise store.error

        slow = Slow(commit.records, commit.messages, commit.synced)
        self._in_flight = slow
        return slow

    def close(self, now_ms: int = 0) -> None:
        self.closed = True
        super().close(now_ms)


class Frontend:
    """A DEALER on the loop that waits for kinds of frames."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, b"frontend-0")
        socket.connect(address)
        self.heard: list[tuple[Kind, int, int]] = []
        self._came = asyncio.Event()
        self.socket = LoopSocket(asyncio.get_running_loop(), socket, self._receive, self._came.set)

    def _receive(self, parts: list[bytes]) -> None:
        for part in parts:
            kind, _, _, _, link, _, number = HEADER.unpack_from(part)
            self.heard.append((Kind(kind), link, number))

    def say(self, *parts: bytes) -> None:
        assert self.socket.send(parts)

    async def until(self, kind: Kind, count: int = 1) -> None:
        async with asyncio.timeout(WAIT_S):
            while sum(1 for heard in self.heard if heard[0] == kind) < count:
                self._came.clear()
                await self._came.wait()

    async def greet(self) -> None:
        self.say(frame(Kind.HELLO, body=Hello(VERSION, "frontend-0", 7, 1).encode()))
        await self.until(Kind.WELCOME)


def play(
    test: Callable[[Server, SlowStore, Frontend], Awaitable[None]],
    tmp_path: Path,
    marks: FileMarks | None = None,
    *,
    on_loop: bool = True,
) -> None:
    async def run() -> None:
        store = SlowStore()
        counts = ShardCounts()
        engine = Engine(
            shard=0,
            boot=1,
            store=store,
            recovered=Recovered(),
            counts=counts,
            memory_mark=1 << 30,
            max_delivery_count=10,
            now_ms=wall_ms(),
            marks=marks,
        )
        address = f"ipc://{tmp_path}/shard"
        # A socket file that a killed process left behind.
        (tmp_path / "shard").touch()
        clock = Clock()
        wiring = Wiring(asyncio.get_running_loop(), on_loop=on_loop)
        server = Server(asyncio.get_running_loop(), engine, store, counts, wiring, address, clock=clock)
        if marks is not None:
            marks.begin(asyncio.get_running_loop(), server.turn)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        frontend = Frontend(context, address)
        try:
            await frontend.greet()
            await test(server, store, frontend)
        finally:
            store.go_on.set()
            if not store.closed:
                await server.close()
            frontend.socket.close()
            context.term()
            wiring.close()

    asyncio.run(run())
