"""WebSockets that a gateway passes on: what the frontend gets, bounds of buffers, and frontends that fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from lightrail.gateway import websockets
from lightrail.gateway.app import problems
from lightrail.gateway.websockets import WebSockets, is_request
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.telemetry import http_server
from lightrail.telemetry.http_connection import Connections
from lightrail.wire.forwarded import FIELD, Forwarded

SECRET = b"s" * 32
NONCE = "dGhlIHNhbXBsZSBub25jZQ=="
REQUEST = (
    "GET /a%20b?c=d HTTP/1.1\r\nHost: broker.example\r\n"
    "upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    f"Sec-WebSocket-Key: {NONCE}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
    "Sec-WebSocket-Protocol: amqp\r\nOrigin: https://app.example\r\nCookie: secret\r\n"
    f"{FIELD}: 1 0 1 127.0.0.1 1 forged\r\n\r\n"
)
ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: x\r\n\r\n"
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
DEADLINE_S = 20.0


class Scene:
    """A gateway, and a frontend whose connections the test plays."""

    def __init__(self, most: int) -> None:
        self.admitted = Connections(most)
        self.frontends: asyncio.Queue[Streams] = asyncio.Queue()
        self.port = 0
        self.websockets = WebSockets(None, SECRET, self.admitted)

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator["Scene"]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.frontends.put_nowait((reader, writer))

        app = web.Application(middlewares=[problems])
        app.router.add_route("*", "/{path:.*}", self._handle)
        async with await asyncio.start_server(accept, "127.0.0.1", 0) as frontend:
            at = Endpoint("127.0.0.1", frontend.sockets[0].getsockname()[1])
            self.websockets = WebSockets(at, SECRET, self.admitted)
            here = Endpoint("127.0.0.1", 0)
            runner, [self.port] = await http_server.serve(app, self.admitted, [(here, None)], shared=False)
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert is_request(request)
        return await self.websockets.serve(request)

    async def ask(self) -> Streams:
        """A client that has sent its request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(REQUEST.encode())
        return reader, writer

    async def accepted(self) -> tuple[Streams, Streams]:
        """A client and the frontend that has accepted its WebSocket."""
        client = await self.ask()
        reader, writer = await self.frontends.get()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ACCEPTED)
        assert (await client[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return client, (reader, writer)


def play(test: Callable[[Scene], Awaitable[None]], most: int = 100) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), Scene(most).served() as scene:
            await test(scene)

    asyncio.run(run())


async def answer(client: Streams) -> tuple[bytes, bytes]:
    """Status line and body of a refusal, after which the gateway keeps the connection."""
    head = await client[0].readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    client[1].close()
    return head.partition(b"\r\n")[0], await client[0].readexactly(length)


def test_the_frontend_gets_the_request_and_who_sent_it_and_nothing_else() -> None:
    async def test(scene: Scene) -> None:
        client = await scene.ask()
        reader, writer = await scene.frontends.get()
        first, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        assert first == "GET /a%20b?c=d HTTP/1.1"
        found = [tuple(each.split(": ", 1)) for each in fields]
        signed = [value for name, value in found if name == FIELD]
        host, port = client[1].get_extra_info("sockname")
        now_ms = int(signed[0].split(" ")[1])
        assert len(signed) == 1
        assert Forwarded.read(signed[0], SECRET, NONCE.encode(), now_ms) == Forwarded(host, port, tls=False)
        assert sorted(each for each in found if each[0] != FIELD) == [
            ("Connection", "keep-alive, Upgrade"),
            ("Host", "broker.example"),
            ("Origin", "https://app.example"),
            ("Sec-WebSocket-Key", NONCE),
            ("Sec-WebSocket-Protocol", "amqp"),
            ("Sec-WebSocket-Protocol", "mqtt"),
            ("Sec-WebSocket-Version", "13"),
            ("Upgrade", "websocket"),
        ]
        writer.close()
        client[1].close()

    play(test)


def test_bytes_go_both_ways_until_one_side_closes() -> None:
    async def test(scene: Scene) -> None:
        for closes in ("client", "frontend"):
            client, frontend = await scene.accepted()
            assert (scene.websockets.open, len(scene.admitted)) == (1, 2)
            for source, sink in ((client, frontend), (frontend, client)):
                source[1].write(b"\x82\x03\x00\r\n" * 1_000)
                assert await sink[0].readexactly(5_000) == b"\x82\x03\x00\r\n" * 1_000
            one, other = (client, frontend) if closes == "client" else (frontend, client)
            one[1].write(b"last")
            one[1].close()
            assert await other[0].read() == b"last"
            other[1].close()
            while scene.websockets.open or len(scene.admitted):  # noqa: ASYNC110 - both sockets close
                await asyncio.sleep(0)

    play(test)


def test_bytes_right_behind_the_request_are_passed_on() -> None:
    async def test(scene: Scene) -> None:
        client = await scene.ask()
        client[1].write(b"early")
        reader, writer = await scene.frontends.get()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ACCEPTED + b"at once")
        await client[0].readuntil(b"\r\n\r\n")
        assert await client[0].readexactly(7) == b"at once"
        assert await reader.readexactly(5) == b"early"
        client[1].close()
        writer.close()

    play(test)


@pytest.mark.parametrize("slow", ["client", "frontend"])
def test_who_does_not_read_stops_the_other_side(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound the gateway would hold all of it."""
    monkeypatch.setattr(websockets, "HTTP_WEBSOCKET_BUFFER_BYTES", 64 * 1024)
    size = 64 * 1024 * 1024

    async def test(scene: Scene) -> None:
        client, frontend = await scene.accepted()
        source, sink = (frontend, client) if slow == "client" else (client, frontend)
        sink[1].transport.pause_reading()  # type: ignore[attr-defined]
        source[1].transport.set_write_buffer_limits(0)
        source[1].write(b"x" * size)
        left = -1
        while (now := source[1].transport.get_write_buffer_size()) != left:
            left = now
            # Nothing moves any more: the kernel's buffers and the gateway's are full.
            await asyncio.sleep(0.3)
        assert left > size // 2
        sink[1].transport.resume_reading()  # type: ignore[attr-defined]
        assert await sink[0].readexactly(size) == b"x" * size
        client[1].close()
        frontend[1].close()

    play(test)


def test_a_refusal_of_the_frontend_is_the_answer() -> None:
    async def test(scene: Scene) -> None:
        client = await scene.ask()
        reader, writer = await scene.frontends.get()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n")
        writer.close()
        status, body = await answer(client)
        assert status.startswith(b"HTTP/1.1 403 ")
        assert b'"detail": "no"' in body

    play(test)


@pytest.mark.parametrize("how", ["closes", "floods", "hangs"])
def test_a_frontend_that_does_not_answer_is_not_waited_for(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "hangs":
        monkeypatch.setattr(limits, "OPENING_TIME_MS", 50)

    async def test(scene: Scene) -> None:
        client = await scene.ask()
        reader, writer = await scene.frontends.get()
        await reader.readuntil(b"\r\n\r\n")
        if how == "floods":
            writer.write(b"H" * (2 * limits.WEBSOCKET_HEAD_BYTES))
        elif how == "closes":
            writer.close()
        status, body = await answer(client)
        assert status.startswith(b"HTTP/1.1 503 ")
        assert b"no frontend answers now" in body
        writer.close()

    play(test)


def test_connections_to_frontends_count_among_those_that_are_admitted() -> None:
    async def test(scene: Scene) -> None:
        assert scene.admitted.most_of_a_source == 3
        first, frontend = await scene.accepted()
        status, body = await answer(await scene.ask())
        first[1].close()
        frontend[1].close()
        assert status.startswith(b"HTTP/1.1 503 ")
        assert b"connections are open at this gateway" in body

    play(test, most=6)


def test_without_a_frontend_on_the_machine_the_answer_says_where_to_connect() -> None:
    async def test(scene: Scene) -> None:
        scene.websockets = WebSockets(None, SECRET, scene.admitted)
        status, body = await answer(await scene.ask())
        assert status.startswith(b"HTTP/1.1 503 ")
        assert b"served at the ports of AMQP" in body

    play(test)
