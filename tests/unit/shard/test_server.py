"""The shard's server on a real loop and sockets: commits and the archive in threads, failures, the end."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq

from lightrail.cluster.readers import Reader
from lightrail.journal.archive import segment_name
from lightrail.model import limits
from lightrail.shard.archiving.archiver import Archiver
from lightrail.shard.archiving.contents import RealFolders
from lightrail.shard.archiving.retention import Rule
from lightrail.shard.effects.actions import Read
from lightrail.shard.engine import server as server_module
from lightrail.shard.engine.engine import Engine
from lightrail.shard.engine.server import Server
from lightrail.shard.journal.commit import Worker
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.memory import MemoryCommit, MemoryStore
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import Recovered, StoreBusyError
from lightrail.shard.queue.values.runs import Batch, Location, Run, batch_of
from lightrail.shard.queues import delivery_marks
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.delivery_marks import FileMarks
from lightrail.shard.startup.storage import DISK_SILENCE_MS
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ConsumerOpen, Hello, ProducerOpen
from lightrail.wire.frames import HEADER, VERSION, Kind, frame
from lightrail.wire.socket import MESSAGES_PER_TURN, WITHOUT_COPY_BYTES, LoopSocket
from tests.support import wait
from tests.support.shard.scene import batch

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
            now_ms=Server.now_ms(),
            marks=marks,
        )
        address = f"ipc://{tmp_path}/shard"
        # A socket file that a killed process left behind.
        (tmp_path / "shard").touch()
        clock = Clock()
        server = Server(asyncio.get_running_loop(), engine, store, counts, address, clock=clock)
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

    asyncio.run(run())


def test_a_durable_batch_is_answered_after_its_commit(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        store.go_on.clear()
        frontend.say(batch(1, 1, [b"a"]))
        frontend.say(batch(1, 2, [b"b"]), frame(Kind.PING))
        await frontend.until(Kind.PONG)
        assert (Kind.ACCEPTED, 1, 1) not in frontend.heard
        store.go_on.set()
        async with asyncio.timeout(WAIT_S):
            while not {(Kind.ACCEPTED, 1, 1), (Kind.ACCEPTED, 1, 2)} & set(frontend.heard):
                await frontend.until(Kind.ACCEPTED)

    play(test, tmp_path)


def test_a_large_batch_stays_where_zeromq_received_it_until_it_is_on_disk_and_delivered(
    tmp_path: Path,
) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        stored: list[Batch] = []
        append = store.append
        with pytest.MonkeyPatch.context() as patch:

            def note(record: Record, now_ms: int = 0) -> Location | None:
                if isinstance(record, Append):
                    stored.append(record.batch)
                return append(record, now_ms)

            patch.setattr(store, "append", note)
            frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
            large = bytes(range(256)) * (WITHOUT_COPY_BYTES // 256)
            frontend.say(batch(1, 1, [large]))
            frontend.say(batch(1, 2, [b"small"]))
            async with asyncio.timeout(WAIT_S):
                while len(stored) < 2:
                    await frontend.until(Kind.ACCEPTED, len(stored) + 1)
        assert [type(each.data) for each in stored] == [memoryview, bytes]
        assert stored[0].message(0) == large
        frontend.say(
            frame(Kind.CONSUMER_OPEN, link=2, body=ConsumerOpen("q").encode()),
            frame(Kind.CREDIT, link=2, number=2),
        )
        await frontend.until(Kind.DELIVER)

    play(test, tmp_path)


def test_a_failed_commit_ends_the_shard_and_answers_nothing(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        store.error = OSError("the disk is broken")
        frontend.say(batch(1, 1, [b"a"]))
        async with asyncio.timeout(WAIT_S):
            await server.failed.wait()
        # Turns and heartbeats go on without anything being begun on a store that is broken.
        frontend.say(batch(1, 2, [b"b"]), frame(Kind.PING))
        await frontend.until(Kind.PONG)
        server._beat()
        assert server._timer is not None
        assert "disk is broken" in (server._engine.not_ready() or "")
        assert Kind.ACCEPTED not in {kind for kind, _, _ in frontend.heard}

    play(test, tmp_path)


def test_frames_that_make_no_sense_disturb_nobody(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        for garbage in (b"", b"\x04", b"\x02" + bytes(23) + b"no JSON", bytes((5, *bytes(23))) + b"[]"):
            frontend.say(garbage)
        frontend.say(frame(Kind.PING))
        await frontend.until(Kind.PONG)

    play(test, tmp_path)


def test_what_a_lost_frontend_held_goes_to_another_at_once(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        engine = server._engine
        now_ms = server.now_ms()
        hello = Hello(VERSION, "frontend-1", 8, 1)
        other = b"gone"
        engine.receive(other, [frame(Kind.HELLO, body=hello.encode())], now_ms)
        body = ConsumerOpen("q").encode()
        engine.receive(
            other,
            [frame(Kind.CONSUMER_OPEN, link=1, body=body), frame(Kind.CREDIT, link=1, number=5)],
            now_ms,
        )
        frontend.say(
            frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()),
            frame(Kind.CONSUMER_OPEN, link=2, body=body),
            frame(Kind.CREDIT, link=2, number=5),
            batch(1, 1, [b"a"], durable=False),
        )
        # ZeroMQ knows no way to the other one: the message comes back and goes to us, no matter whose turn.
        await frontend.until(Kind.DELIVER)

    play(test, tmp_path)


def test_a_dropped_name_ends_its_links_without_anybody_asking(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        names = server._engine._queues.names
        assert isinstance(names, EveryName)
        names.drop("q")
        await frontend.until(Kind.GONE)

    play(test, tmp_path)


async def closes_in_a_commit(server: Server, store: SlowStore, frontend: Frontend) -> "asyncio.Future[None]":
    """A server that is to close while a commit is under way, which waits for the test."""
    frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
    await frontend.until(Kind.PRODUCER_READY)
    store.go_on.clear()
    frontend.say(batch(1, 1, [b"a"]), frame(Kind.PING))
    await frontend.until(Kind.PONG)
    return asyncio.ensure_future(server.close())


def test_the_end_waits_for_a_commit_that_begins_as_the_one_before_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        closing = await closes_in_a_commit(server, store, frontend)
        await asyncio.sleep(0)
        ended = server._idle.set

        def late() -> None:
            server._receive([b"frontend-0", batch(1, 2, [b"b"])])
            server._turn()

        def set_and_more() -> None:
            monkeypatch.undo()
            asyncio.get_running_loop().call_soon(late)
            ended()

        monkeypatch.setattr(server._idle, "set", set_and_more)
        store.go_on.set()
        await closing
        assert server._commit is None
        await frontend.until(Kind.ACCEPTED, 2)

    play(test, tmp_path)


def test_the_end_waits_for_the_commit_under_way(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        closing = await closes_in_a_commit(server, store, frontend)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        store.go_on.set()
        await closing
        assert store.closed
        await frontend.until(Kind.ACCEPTED)
        # Timers that were set before ring into nothing.
        server._turn()
        server._commit_lazily()

    play(test, tmp_path)


def test_a_worker_does_things_in_order_and_says_what_failed() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        worker = Worker(loop, "test")
        done: list[object] = []
        all_done = asyncio.Event()

        def fail() -> None:
            raise ValueError("no")

        def note(number: int) -> Callable[[BaseException | None], None]:
            def noted(error: BaseException | None) -> None:
                done.append((number, type(error)))
                if number == 2:
                    all_done.set()

            return noted

        worker.submit(lambda: None, note(0))
        worker.submit(fail, note(1))
        worker.submit(lambda: None, note(2))
        async with asyncio.timeout(WAIT_S):
            await all_done.wait()
        assert done == [(0, type(None)), (1, ValueError), (2, type(None))]
        worker.close()

    asyncio.run(test())


class SlowDisk:
    """Takes the place of os.pwrite: the test says when it goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.marked: list[int] = []
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._slow)

    def _slow(self, file: int, data: bytes, offset: int) -> int:
        assert self.go_on.wait(WAIT_S)
        if len(data) == 8:
            self.marked.append(int.from_bytes(data, "little"))
        return self._write(file, data, offset)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_delivery_leaves_when_its_mark_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """A kill in between would leave it unmarked. A disk that hangs holds nobody up for ever."""
    disk = SlowDisk(monkeypatch)
    if hangs:
        monkeypatch.setattr(delivery_marks, "DELIVERY_MARK_WAIT_MS", 50)

    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(
            frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()),
            frame(Kind.CONSUMER_OPEN, link=2, body=ConsumerOpen("q").encode()),
            frame(Kind.CREDIT, link=2, number=9),
        )
        await frontend.until(Kind.CONSUMER_READY)
        disk.go_on.clear()
        frontend.say(batch(1, 1, [b"a"], durable=False))
        if not hangs:
            await asyncio.to_thread(wait.until, lambda: server._engine._queues.marks.holds, "it holds")
            assert Kind.DELIVER not in [kind for kind, _, _ in frontend.heard]
            disk.go_on.set()
        await frontend.until(Kind.DELIVER)
        disk.go_on.set()
        assert disk.marked == ([] if hangs else [1])

    play(test, tmp_path, FileMarks(str(tmp_path), bytes(16)))


def test_a_lock_comes_back_by_a_timer_and_not_by_a_heartbeat(tmp_path: Path) -> None:
    """Within 50 ms of its time, never before; a busy machine may miss it now and then, so the best counts."""

    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        loop = asyncio.get_running_loop()
        body = ConsumerOpen("q", lock_ms=60).encode()
        began = loop.time()
        frontend.say(
            frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()),
            frame(Kind.CONSUMER_OPEN, link=2, body=body),
            frame(Kind.CREDIT, link=2, number=9),
            batch(1, 1, [b"a"], durable=False),
        )
        late_ms = []
        for count in range(1, 9):
            await frontend.until(Kind.DELIVER, count)
            locked = loop.time()
            await frontend.until(Kind.DELIVER, count + 1)
            now = loop.time()
            # We hear of a delivery later than its lock begins, so the beginning is what is certain.
            assert (now - began) * 1000 > 59 * count
            late_ms.append((now - locked) * 1000 - 60)
        assert sorted(late_ms)[2] < 50

    play(test, tmp_path)


def test_sealed_segments_come_into_the_archive_while_the_shard_serves(tmp_path: Path) -> None:
    async def run() -> None:
        journal = Journal(RealFiles(tmp_path / "shard-0"), "c", 0, segment_bytes=10_000)
        recovered = journal.recover(1 << 30, Server.now_ms())
        archiver = Archiver(
            journal,
            RealFolders(tmp_path / "archive"),
            rule=Rule(),
            seal_ms=1_000_000,
            readers=lambda: {"nightly": Reader()},
        )
        counts = ShardCounts()
        engine = Engine(
            shard=0,
            boot=1,
            store=journal,
            recovered=recovered,
            counts=counts,
            memory_mark=1 << 30,
            max_delivery_count=10,
            now_ms=Server.now_ms(),
        )
        address = f"ipc://{tmp_path}/shard"
        server = Server(asyncio.get_running_loop(), engine, journal, counts, address, archiver=archiver)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        frontend = Frontend(context, address)
        try:
            await frontend.greet()
            frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
            await frontend.until(Kind.PRODUCER_READY)
            number = 0
            async with asyncio.timeout(WAIT_S):
                while archiver.counts.segments < 3:
                    number += 1
                    frontend.say(batch(1, number, [bytes(1_000)]))
                    await frontend.until(Kind.ACCEPTED, 1)
                    frontend.heard.clear()
        finally:
            await server.close()
            frontend.socket.close()
            context.term()
        folder = tmp_path / "archive" / journal.incarnation.folder
        for number in (1, 2, 3):
            assert (folder / segment_name(number)).samefile(tmp_path / "shard-0" / segment_name(number))

    asyncio.run(run())


def test_while_the_disk_hangs_the_shard_says_nothing_and_then_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        clock, counts = server._clock, server._counts
        assert isinstance(clock, Clock)
        frontend.say(
            frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()),
            frame(Kind.CONSUMER_OPEN, link=2, body=ConsumerOpen("q").encode()),
            frame(Kind.CREDIT, link=2, number=5),
        )
        await frontend.until(Kind.CONSUMER_READY)
        store.go_on.clear()
        frontend.say(batch(1, 1, [b"a"]), frame(Kind.PING))
        await frontend.until(Kind.PONG)
        # A commit may be slow: the shard goes on.
        clock.now_s += DISK_SILENCE_MS / 1000
        server._beat()
        frontend.say(frame(Kind.PING))
        await frontend.until(Kind.PONG, 2)
        assert server.not_ready() is None
        assert counts.commit_under_way() == DISK_SILENCE_MS / 1000
        clock.now_s += 25
        server._beat()
        server._beat()
        assert server.not_ready() == "the disk has not answered for 30 s"
        heard = len(frontend.heard)
        frontend.say(frame(Kind.PING), batch(1, 2, [b"b"], durable=False))
        queue = server._engine._queues.find("q")
        assert queue is not None
        contents = queue.machine.contents
        await asyncio.to_thread(wait.until, lambda: contents.held == 2, "the second batch", WAIT_S)
        server._turn()
        assert len(frontend.heard) == heard
        store.go_on.set()
        await frontend.until(Kind.PONG, 3)
        await frontend.until(Kind.ACCEPTED, 1)
        await frontend.until(Kind.DELIVER, 2)
        assert server.not_ready() is None
        assert counts.commit_under_way() == 0

    play(test, tmp_path)
    watch = "lightrail.shard.startup.storage"
    reports = [record.getMessage() for record in caplog.records if record.name == watch]
    assert [report.partition(":")[0] for report in reports] == [
        "the disk has not answered for 30 s",
        "the disk answers again; a commit took 30.0 s",
    ]


def test_what_comes_to_a_crowded_store_waits_in_the_socket_until_the_commit_has_ended(
    tmp_path: Path,
) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        store.go_on.clear()
        store.crowded_by = 2
        frontend.say(batch(1, 1, [b"a"]), frame(Kind.PING))
        await frontend.until(Kind.PONG)
        for number in range(2, 9):
            frontend.say(batch(1, number, [b"b"]))
        frontend.say(frame(Kind.PING))
        await asyncio.to_thread(wait.until, lambda: server._socket.is_paused, "a paused socket", WAIT_S)
        assert store._records == 2
        assert sum(1 for kind, _, _ in frontend.heard if kind is Kind.PONG) == 1
        store.go_on.set()
        await frontend.until(Kind.PONG, 2)
        await frontend.until(Kind.ACCEPTED, 2)
        queue = server._engine._queues.find("q")
        assert queue is not None
        assert queue.machine.view.gauges.ready == 8

    play(test, tmp_path)


def test_beyond_a_bound_what_a_shard_does_not_read_waits_with_the_frontend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ receives into buffers of 8 KiB, so each small message that nobody reads may take as much."""
    monkeypatch.setattr(limits, "WIRE_MESSAGES_AHEAD", 10)
    count = 3_000
    """More than ten, than the kernel has between the two, and than ZeroMQ's 1,000 at the sending end."""

    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        server._socket.is_paused = True
        large = frame(Kind.PING, body=bytes(8_000))
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while sent < count:
                    if frontend.socket.send([large]):
                        sent += 1
                    else:
                        await asyncio.sleep(0.01)
        assert sent < count
        server._socket.resume()
        async with asyncio.timeout(WAIT_S):
            while sent < count:
                if frontend.socket.send([large]):
                    sent += 1
                else:
                    await asyncio.sleep(0)
        await frontend.until(Kind.PONG, count)

    play(test, tmp_path)


def test_what_finds_no_room_before_the_commit_has_ended_waits_and_is_not_refused(tmp_path: Path) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        store.go_on.clear()
        frontend.say(batch(1, 1, [b"a"]), frame(Kind.PING))
        await frontend.until(Kind.PONG)
        store.busy_from = 2
        frontend.say(*(batch(1, number, [b"b"]) for number in range(2, 9)), frame(Kind.PING))
        await asyncio.to_thread(wait.until, lambda: server._socket.is_paused, "a paused socket", WAIT_S)
        server._turn()
        assert store._records == 2
        assert sum(1 for kind, _, _ in frontend.heard if kind is Kind.PONG) == 1
        store.go_on.set()
        await frontend.until(Kind.PONG, 2)
        await frontend.until(Kind.ACCEPTED, 2)
        assert not [kind for kind, _, _ in frontend.heard if kind is Kind.REFUSED]
        queue = server._engine._queues.find("q")
        assert queue is not None
        assert queue.machine.view.gauges.ready == 8

    play(test, tmp_path)


@pytest.mark.parametrize("where", ["frame", "turn", "heartbeat", "directory", "commit", "read"])
def test_an_error_on_the_loop_ends_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)

        def fails(*_: object, **__: object) -> None:
            raise OSError("too many open files")

        if where == "heartbeat":
            monkeypatch.setattr(Engine, "tick", fails)
            server._beat()
            assert server._timer is not None
        elif where == "directory":
            monkeypatch.setattr(Engine, "refresh", fails)
            server.follow_directory()
        elif where == "read":
            monkeypatch.setattr(Engine, "read_ended", fails)
            server._end_read(Read("q", 1, Run(batch_of([b"a"]), 0, 1, 0), Location(0, 0, 1)), None)
        else:
            name = {"frame": "receive", "turn": "step", "commit": "commit_ended"}[where]
            monkeypatch.setattr(Engine, name, fails)
            frontend.say(batch(1, 1, [b"a"]))
        async with asyncio.timeout(WAIT_S):
            await server.failed.wait()
        assert "too many open files" in (server.not_ready() or "")
        assert Kind.ACCEPTED not in {kind for kind, _, _ in frontend.heard}
        monkeypatch.undo()

    play(test, tmp_path)


def test_what_a_frontend_sends_is_received_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SHARD_INTAKE_MS", 0)
    monkeypatch.setattr(server_module, "SHARD_PARTS", 3)

    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        turns = 0
        turn = server._turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        monkeypatch.setattr(server, "_turn", counted)
        frames = [batch(1, number, [b"\x00\x53\x75\xa0\x01x"], durable=False) for number in range(1, 61)]
        frontend.say(*frames[:30])
        frontend.say(*frames[30:], frame(Kind.PING))
        await frontend.until(Kind.PONG)
        accepted = [heard for heard in frontend.heard if heard[0] is Kind.ACCEPTED]
        assert accepted
        assert accepted[-1][2] <= 60
        assert turns > 5

    play(test, tmp_path)


def test_what_a_turn_has_no_time_for_leaves_the_socket_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the backlog a message takes its length, in ZeroMQ's buffers up to 8 KiB."""
    monkeypatch.setattr(server_module, "SHARD_INTAKE_MS", 0)

    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        read: list[int] = [0]
        receive, after = server._socket._receive, server._socket._after

        def received(parts: list[bytes]) -> None:
            read[-1] += 1
            receive(parts)

        def turned() -> None:
            read.append(0)
            after()

        monkeypatch.setattr(server._socket, "_receive", received)
        monkeypatch.setattr(server._socket, "_after", turned)
        sent = 0
        async with asyncio.timeout(WAIT_S):
            while max(read) <= MESSAGES_PER_TURN:
                # While the loop stands still ZeroMQ's threads go on.
                for _ in range(900):
                    sent += frontend.socket.send([frame(Kind.PING)])
                await frontend.until(Kind.PONG, sent)
        assert max(read) <= server_module.SHARD_MESSAGES

    play(test, tmp_path)
