"""HTTP server: what clients without a request can take of it, in connections and in time."""

import asyncio
import resource
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from lightrail.gateway.main import HTTP_CONNECTIONS_MAX, HTTP_FILES_PART
from lightrail.model.endpoint import Endpoint
from lightrail.telemetry import http_connection, http_server
from lightrail.telemetry.exposition import HTTP_OWN_CONNECTIONS_MAX, HTTP_OWN_FILES_PART
from lightrail.telemetry.http_connection import (
    HTTP_IDLE_LOOKS,
    HTTP_SOURCE_PART,
    Connections,
    HttpConnection,
    source_of,
)
from tests.support.certificates import Authority

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
BIG = 32 * 1024 * 1024
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(check: Coroutine[Any, Any, None]) -> None:
    """On the loop that the processes have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check)


class Scene:
    def __init__(
        self,
        runner: http_server.HttpRunner,
        connections: Connections,
        port: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.runner = runner
        self.connections = connections
        self.port = port
        self.tls = tls
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Streams:
        """A connection; with TLS its handshake is done."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        self._writers.append(writer)
        return reader, writer

    async def silent(self) -> Streams:
        """A connection of TCP alone."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def admitted(self, count: int) -> None:
        while len(self.connections) != count:  # noqa: ASYNC110 - the server counts in its own turns
            await asyncio.sleep(0)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def serving(
    most: int = 100, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
) -> AsyncIterator[Scene]:
    app = web.Application()
    connections = Connections(most)
    endpoints = [(Endpoint("127.0.0.1", 0), server_tls)]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here\n")

    async def wait(_: web.Request) -> web.Response:
        scene.waiting.set()
        await scene.go_on.wait()
        return web.Response(text="late\n")

    async def big(_: web.Request) -> web.Response:
        return web.Response(body=bytes(BIG))

    app.add_routes([web.get("/", answer), web.get("/wait", wait), web.get("/big", big)])
    runner, (port,) = await http_server.serve(app, connections, endpoints, shared=False)
    scene = Scene(runner, connections, port, client_tls)
    try:
        yield scene
    finally:
        scene.close()
        await runner.cleanup()
        assert len(connections) == 0


def test_a_silent_connection_ends_after_the_time_for_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_HEAD_MS", 50)

    async def check() -> None:
        async with serving() as scene:
            reader, _ = await scene.connect()
            assert await reader.read() == b""
            assert scene.connections.closed["head"] == 1

    run(check())


def test_a_head_that_comes_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_HEAD_MS", 50)

    async def check() -> None:
        async with serving() as scene:
            _, writer = await scene.connect()

            async def trickle() -> None:
                for byte in GET[:-2] + b"X-Slow: " + b"x" * 10_000:
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(0.001)

            slow = asyncio.create_task(trickle())
            await scene.admitted(1)
            await scene.admitted(0)
            slow.cancel()
            assert scene.connections.closed["head"] == 1

    run(check())


def test_the_time_for_a_later_head_begins_with_its_first_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_HEAD_MS", 50)

    async def check() -> None:
        async with serving() as scene:
            reader, writer = await scene.connect()
            writer.write(GET)
            assert (await reader.readuntil(b"here\n")).startswith(b"HTTP/1.1 200 ")
            writer.write(GET)  # as late as HTTP_IDLE_MS allows; the time for a head has not begun
            await reader.readuntil(b"here\n")
            writer.write(GET[:-4])
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            assert scene.connections.closed["head"] == 1

    run(check())


def test_a_connection_without_another_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HTTP_IDLE_MS", 50)

    async def check() -> None:
        async with serving() as scene:
            reader, writer = await scene.connect()
            writer.write(GET)
            await reader.readuntil(b"here\n")
            assert await reader.read() == b""

    run(check())


def test_a_request_under_way_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_HEAD_MS", 20)
    monkeypatch.setattr(http_server, "HTTP_IDLE_MS", 20)

    async def check() -> None:
        async with serving() as scene:
            reader, writer = await scene.connect()
            writer.write(GET.replace(b"/ ", b"/wait "))
            await scene.waiting.wait()
            silent, _ = await scene.connect()
            assert await silent.read() == b""  # came later, and its time is over
            scene.go_on.set()
            assert (await reader.readuntil(b"late\n")).startswith(b"HTTP/1.1 200 ")

    run(check())


def test_a_request_that_ends_as_its_time_at_the_end_of_the_process_does_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        async with serving() as scene:
            reader, writer = await scene.connect()
            writer.write(GET.replace(b"/ ", b"/wait "))
            await scene.waiting.wait()
            assert scene.runner.server is not None
            (connection,) = scene.runner.server.connections
            assert isinstance(connection, HttpConnection)
            loop.call_later(0.01, scene.go_on.set)
            ending = loop.create_task(connection.shutdown(0.02))
            # Both are due in the same turn of the loop, the end of the request before that of its time.
            loop.call_soon(time.sleep, 0.05)
            await ending
            assert (await reader.readuntil(b"late\n")).startswith(b"HTTP/1.1 200 ")

    run(check())
    assert not caplog.records


def test_a_client_that_does_not_read_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_WRITE_MS", 50)

    async def check() -> None:
        async with serving() as scene:
            _, writer = await scene.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET.replace(b"/ ", b"/big "))
            await scene.admitted(1)
            await scene.admitted(0)
            assert scene.connections.closed["write"] == 1

    run(check())


def test_a_client_that_reads_slowly_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_WRITE_MS", 1_000)

    async def check() -> None:
        async with serving() as scene:
            reader, writer = await scene.connect()
            writer.write(GET.replace(b"/ ", b"/big "))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            left = BIG
            while left:
                part = await reader.read(1024 * 1024)
                assert part
                left -= len(part)
                await asyncio.sleep(0.01)
            assert scene.connections.closed["write"] == 0

    run(check())


def test_a_handshake_that_does_not_come_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HTTP_HEAD_MS", 50)
    made = Authority(tmp_path).sign("localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)

    async def check() -> None:
        async with serving(server_tls=server) as scene:
            reader, _ = await scene.silent()
            await scene.admitted(1)
            assert await reader.read() == b""
            await scene.admitted(0)

    run(check())


def test_who_sends_requests_gets_in_among_any_number_who_do_not() -> None:
    async def check() -> None:
        async with serving(most=20) as scene:
            held, asking = await scene.connect()
            asking.write(GET.replace(b"/ ", b"/wait "))
            await scene.waiting.wait()
            for _ in range(50):
                await scene.silent()
            for _ in range(3):
                reader, writer = await scene.connect()
                writer.write(GET)
                assert (await reader.readuntil(b"here\n")).startswith(b"HTTP/1.1 200 ")
            assert len(scene.connections) == scene.connections.most_of_a_source
            assert len(scene.connections) == 20 // HTTP_SOURCE_PART
            assert scene.connections.closed["idle"] == 44
            scene.go_on.set()
            assert (await held.readuntil(b"late\n")).startswith(b"HTTP/1.1 200 ")

    run(check())


def test_where_all_have_a_request_under_way_a_new_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with serving(most=4) as scene:
            for _ in range(2):
                scene.waiting.clear()
                _, writer = await scene.connect()
                writer.write(GET.replace(b"/ ", b"/wait "))
                await scene.waiting.wait()
            for _ in range(3):
                reader, _ = await scene.connect()
                assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            assert scene.connections.refused == 3
            scene.go_on.set()

    run(check())
    (told,) = [each for each in caplog.messages if "refused" in each]
    assert "127.0.0.1" in told
    assert "2 from one source" in told


@pytest.fixture
def few_files() -> Iterator[Callable[[int], None]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_are_left_to_everything_else(few_files: Callable[[int], None]) -> None:
    few_files(200)
    assert http_server.admitted(HTTP_CONNECTIONS_MAX, HTTP_FILES_PART) == 100
    assert http_server.admitted(HTTP_OWN_CONNECTIONS_MAX, HTTP_OWN_FILES_PART) == 25
    few_files(10_000)
    assert http_server.admitted(HTTP_CONNECTIONS_MAX, HTTP_FILES_PART) == 8_976
    assert http_server.admitted(HTTP_OWN_CONNECTIONS_MAX, HTTP_OWN_FILES_PART) == 256


def test_a_source_is_an_address_or_a_network_of_ipv6() -> None:
    assert source_of("10.1.2.3") == "10.1.2.3"
    assert source_of("::ffff:10.1.2.3") == "10.1.2.3"
    assert source_of("2001:db8:1:2::7") == source_of("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert source_of("fe80::1%eth0") == "fe80::/64"


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(of the server, of its clients)"""
    authority = Authority(tmp_path)
    made = authority.sign("localhost", "IP:127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    return server, ssl.create_default_context(cafile=authority.path)


def test_a_client_of_tls_is_served(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def check() -> None:
        async with serving(server_tls=contexts[0], client_tls=contexts[1]) as scene:
            reader, writer = await scene.connect()
            writer.write(GET)
            assert (await reader.readuntil(b"here\n")).startswith(b"HTTP/1.1 200 ")
            assert len(scene.connections) == 1

    run(check())


def test_other_protocols_are_named(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    async def check(sent: bytes, answered: bytes, **tls: ssl.SSLContext) -> None:
        async with serving(**tls) as scene:  # type: ignore[arg-type]
            reader, writer = await scene.silent()
            writer.write(sent)
            assert (await reader.read()).startswith(answered)

    run(check(GET, b"", server_tls=contexts[0]))
    run(check(b"AMQP\x00\x01\x00\x00", b"HTTP/1.0 400 "))
    run(check(b"\x16\x03\x01\x00\x05hello", b"HTTP/1.0 400 "))
    named = [each.partition("; ")[0] for each in caplog.messages if " speaks " in each]
    assert named == [
        "the client 127.0.0.1 speaks HTTP",
        "the client 127.0.0.1 speaks AMQP 1.0 without SASL",
        "the client 127.0.0.1 speaks TLS",
    ]


class Busy:
    """A connection that has a request under way, or none."""

    def __init__(self, source: str, *, idle: bool = False) -> None:
        self.source = source
        self.looks = 0
        self.closed = False
        self._idle = idle

    def idle(self) -> bool:
        self.looks += 1
        return self._idle

    def close_for_another(self) -> None:
        self.closed = True


def test_for_a_new_client_so_many_connections_are_looked_at() -> None:
    """However many are busy, an accept costs no more; the next one looks on behind those."""
    connections = Connections(10 * HTTP_IDLE_LOOKS)
    busy = [Busy(f"10.0.{number >> 8}.{number & 255}") for number in range(connections.most - 1)]
    last = Busy("10.1.0.0", idle=True)
    for each in (*busy, last):
        connections.add(each)
    refusals = 0
    while not connections.make_room("10.2.0.0"):
        refusals += 1
        assert sum(each.looks for each in busy) == refusals * HTTP_IDLE_LOOKS
    assert last.closed
    assert refusals == connections.most // HTTP_IDLE_LOOKS - 1
