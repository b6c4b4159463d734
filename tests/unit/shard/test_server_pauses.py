"""A shard's server whose disk is slow or whose turn is full: what waits, and where; nothing is lost."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path

import pytest

from lightrail.model import limits
from lightrail.shard.engine import server as server_module
from lightrail.shard.engine.server import Server
from lightrail.shard.queues import delivery_marks
from lightrail.shard.queues.delivery_marks import FileMarks
from lightrail.shard.startup.storage import DISK_SILENCE_MS
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen
from lightrail.wire.frames import Kind, frame
from lightrail.wire.sockets.zeromq import MESSAGES_PER_TURN
from lightrail.wire.sockets.zeromq_ends import Router
from tests.support import wait
from tests.support.shard.scene import batch
from tests.support.shard.server_scene import WAIT_S, Clock, Frontend, SlowStore, play


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
        server.turn()
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
        server.turn()
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


def test_what_a_frontend_sends_is_received_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SHARD_INTAKE_MS", 0)
    monkeypatch.setattr(server_module, "SHARD_PARTS", 3)

    async def test(server: Server, store: SlowStore, frontend: Frontend) -> None:
        frontend.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
        await frontend.until(Kind.PRODUCER_READY)
        turns = 0
        turn = server.turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        monkeypatch.setattr(server, "turn", counted)
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
        assert isinstance(server._socket, Router)
        socket = server._socket._socket
        receive, after = socket._receive, socket._after

        def received(parts: list[bytes]) -> None:
            read[-1] += 1
            receive(parts)

        def turned() -> None:
            read.append(0)
            after()

        monkeypatch.setattr(socket, "_receive", received)
        monkeypatch.setattr(socket, "_after", turned)
        sent = 0
        async with asyncio.timeout(WAIT_S):
            while max(read) <= MESSAGES_PER_TURN:
                # While the loop stands still ZeroMQ's threads go on.
                for _ in range(900):
                    sent += frontend.socket.send([frame(Kind.PING)])
                await frontend.until(Kind.PONG, sent)
        assert max(read) <= server_module.SHARD_MESSAGES

    play(test, tmp_path, on_loop=False)
