"""LoopSocket on a real loop: no message waits for a later one, however they come."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import zmq

from lightrail.wire.sockets.zeromq import MESSAGES_PER_TURN, WITHOUT_COPY_BYTES, LoopSocket
from lightrail.wire.sockets.zeromq_ends import bind
from tests.support import zmtp

Socket = zmq.Socket[bytes]
WAIT_S = 20


class End:
    """A LoopSocket that writes down what comes."""

    def __init__(self, socket: Socket) -> None:
        self.got: list[list[bytes]] = []
        self.turns = 0
        self.came = asyncio.Event()
        self.on_message: Callable[[list[bytes]], None] = lambda parts: None
        self.on_turn: Callable[[], None] = lambda: None
        self.socket = LoopSocket(asyncio.get_running_loop(), socket, self._receive, self._turn)

    def _receive(self, parts: list[bytes]) -> None:
        self.got.append(parts)
        self.came.set()
        self.on_message(parts)

    def _turn(self) -> None:
        self.turns += 1
        self.on_turn()

    async def has(self, count: int) -> None:
        """Waits until so many messages have come; nothing else may be needed for that."""
        async with asyncio.timeout(WAIT_S):
            while len(self.got) < count:
                self.came.clear()
                await self.came.wait()


class Context:
    """Keeps its sockets until the end of the test."""

    def __init__(self) -> None:
        self._context: zmq.Context[Socket] = zmq.Context()
        self._made: list[Socket] = []

    def make(self, kind: int) -> Socket:
        self._made.append(self._context.socket(kind))
        return self._made[-1]

    def close(self) -> None:
        for made in self._made:
            made.close(0)
        self._context.term()


def run(test: Callable[[Context], Coroutine[None, None, None]]) -> None:
    context = Context()
    try:
        asyncio.run(test(context))
    finally:
        context.close()


def pair(context: Context, address: str) -> tuple[Socket, Socket]:
    """(ROUTER, DEALER) that know each other."""
    router = context.make(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.RCVHWM, 0)
    router.bind(address)
    dealer = context.make(zmq.DEALER)
    dealer.setsockopt(zmq.SNDHWM, 0)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.setsockopt(zmq.ROUTING_ID, b"d")
    dealer.connect(address)
    return router, dealer


@pytest.fixture(params=["inproc", "ipc"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "inproc://here" if request.param == "inproc" else f"ipc://{tmp_path}/s"


def test_what_was_there_before_the_socket_was_watched_is_read(address: str) -> None:
    async def test(context: Context) -> None:
        router, dealer = pair(context, address)
        for number in range(3):
            dealer.send_multipart([b"%d" % number])
        assert router.poll(WAIT_S * 1_000)
        end = End(router)
        await end.has(3)
        end.socket.close()

    run(test)


def test_bursts_from_a_thread_are_all_read(address: str) -> None:
    """Many more than fit into a turn, in bursts that end anywhere; every edge but the last may be missed."""

    async def test(context: Context) -> None:
        router, dealer = pair(context, address)
        end = End(router)
        chance = random.Random(1)
        bursts = [chance.choice((1, 2, 7, 255, 256, 257, 600)) for _ in range(60)]

        def send() -> None:
            number = 0
            for burst in bursts:
                for _ in range(burst):
                    dealer.send_multipart([b"%d" % number, b"x" * (number % 50)])
                    number += 1

        thread = threading.Thread(target=send)
        thread.start()
        await end.has(sum(bursts))
        thread.join()
        assert [int(parts[1]) for parts in end.got] == list(range(sum(bursts)))
        assert end.turns >= sum(bursts) // MESSAGES_PER_TURN
        end.socket.close()

    run(test)


def test_sending_between_reads_loses_no_edge(address: str) -> None:
    """Ping-pong with several balls: each send uses up edges of what came meanwhile."""

    async def test(context: Context) -> None:
        router, dealer = pair(context, address)
        server, client = End(router), End(dealer)
        total = 3_000
        sent = 0

        def serve(parts: list[bytes]) -> None:
            assert server.socket.send(parts)

        def play() -> None:
            nonlocal sent
            # One ball more now and then, sent from within the turn.
            while sent < total and sent - len(client.got) < 5:
                assert client.socket.send([b"%d" % sent])
                sent += 1

        server.on_message = serve
        client.on_turn = play
        play()
        await client.has(total)
        assert [int(parts[0]) for parts in client.got] == list(range(total))
        server.socket.close()
        client.socket.close()

    run(test)


def test_an_error_in_one_message_strands_no_other(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(context: Context) -> None:
        router, dealer = pair(context, address)
        end = End(router)

        def fail(parts: list[bytes]) -> None:
            if parts[1] == b"bad":
                raise ValueError("bad")

        def fail_too() -> None:
            raise ValueError("also bad")

        end.on_message = fail
        end.on_turn = fail_too
        for number in range(600):
            dealer.send_multipart([b"bad" if number % 3 == 0 else b"good"])
        await end.has(600)
        end.socket.close()

    run(test)
    assert "could not be applied" in caplog.text
    assert "could not be ended" in caplog.text


def test_nobody_there_is_said_and_no_error() -> None:
    async def test(context: Context) -> None:
        router = context.make(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.bind("inproc://router")
        dealer = context.make(zmq.DEALER)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.connect("ipc:///nowhere/at/all")
        server, client = End(router), End(dealer)
        assert not server.socket.send([b"nobody", b"x"])
        assert not client.socket.send([b"x"])
        server.socket.close()
        client.socket.close()
        assert not client.socket.send([b"x"])
        client.socket.close()

    run(test)


def test_closed_in_the_middle_of_a_turn(address: str) -> None:
    async def test(context: Context) -> None:
        router, dealer = pair(context, address)
        end = End(router)
        end.on_turn = end.socket.close
        for _ in range(3 * MESSAGES_PER_TURN):
            dealer.send_multipart([b"x"])
        await end.has(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert end.turns == 1

    run(test)


def test_a_turn_is_scheduled_once(address: str) -> None:
    """Sends within a turn, and its end, both look for more: that is one more turn, not two."""

    async def test(context: Context) -> None:
        loop = asyncio.get_running_loop()
        router, dealer = pair(context, address)
        end = End(router)
        await asyncio.sleep(0)
        scheduled: list[object] = []
        real = loop.call_soon

        def call_soon(callback: Callable[..., object], *args: object, **options: object) -> asyncio.Handle:
            if getattr(callback, "__name__", "") == "_drain":
                scheduled.append(callback)
            return real(callback, *args, **options)  # type: ignore[arg-type]

        def on_turn() -> None:
            for _ in range(3):
                end.socket.send([b"d", b"y"])

        end.on_turn = on_turn
        loop.call_soon = call_soon  # type: ignore[method-assign]
        count = 4 * MESSAGES_PER_TURN
        for _ in range(count):
            dealer.send_multipart([b"x"])
        await end.has(count)
        assert len(scheduled) <= end.turns + 1
        end.socket.close()

    run(test)


@pytest.mark.parametrize("copies", [True, False])
def test_a_large_part_comes_as_a_view_where_copies_are_not_wanted(address: str, copies: bool) -> None:
    """It lives as long as the view, whatever comes after it and even when the socket is closed."""

    async def test(context: Context) -> None:
        router, dealer = pair(context, address)
        end = End(router)
        end.socket.copies = copies
        large = bytes(range(256)) * (WITHOUT_COPY_BYTES // 256)
        dealer.send_multipart([large, large[:-1]])
        await end.has(1)
        dealer.send_multipart([bytes(len(large))] * 3)
        await end.has(2)
        end.socket.close()
        _, first, second = end.got[0]
        assert type(first) is (bytes if copies else memoryview)
        assert type(second) is bytes
        assert bytes(first) == large
        assert second == large[:-1]

    run(test)


def raw_dealer(port: int, name: bytes) -> socket.socket:
    """A connection by hand, behind its handshake."""
    connection = socket.create_connection(("127.0.0.1", port), WAIT_S)
    connection.sendall(zmtp.ready(b"DEALER", name))
    zmtp.read_handshake(connection)
    return connection


@pytest.mark.parametrize("end", [socket.socket.close, zmtp.reset])
def test_peers_that_end_or_lose_their_name_within_a_message_end_no_router(
    end: Callable[[socket.socket], None],
) -> None:
    """ZeroMQ looks at the ends of connections, and at names that are taken over, after 100 parts."""

    async def test(context: Context) -> None:
        router = context.make(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        port = int(bind(router, "tcp://127.0.0.1:0").rpartition(":")[2])
        whole = [b"%d" % number for number in range(350)]
        server = End(router)
        for count in range(10):
            former = raw_dealer(port, b"name")
            former.sendall(zmtp.message(whole))
            # The loop does nothing until the message has arrived.
            assert router.poll(WAIT_S * 1_000)
            former.sendall(zmtp.message(whole, is_whole=False))
            if count % 2:
                end(former)
            successor = raw_dealer(port, b"name")
            successor.sendall(zmtp.message([b"last", b"%d" % count]))
            server.socket._schedule()
            async with asyncio.timeout(WAIT_S):
                while server.got[-1:] != [[b"name", b"last", b"%d" % count]]:
                    server.came.clear()
                    await server.came.wait()
            former.close()
            successor.close()
        first = [parts for parts in server.got if parts[1] != b"last"]
        assert first == [[b"name", *whole]] * 10
        server.socket.close()

    run(test)
