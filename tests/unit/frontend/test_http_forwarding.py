"""Requests of administration at the ports of AMQP: what is forwarded, with which field, and how many."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.cluster.map import Member
from lightrail.frontend import http_forwarding
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.http_forwarding import HTTP_FORWARDED_BUFFER_BYTES
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.service_bus.frontend import HOOKS
from lightrail.wire.forwarded import FIELD, NONCE_FIELD, TO_FRONTEND, TO_GATEWAY, Forwarded
from tests.support.amqp.frontend_scene import FakeTransport, Scene
from tests.support.amqp.frontend_scene import play as play_scene

REQUEST = b"PUT /q?api-version=2021-05 HTTP/1.1\r\nHost: broker:5672\r\nContent-Length: 4\r\n\r\nbody"


class Gateway:
    """A gateway, as far as bytes are concerned."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.readers: list[asyncio.StreamReader] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.came = asyncio.Event()

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.scene.frontend.http.gateway = Endpoint("127.0.0.1", port)
        return server

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.readers.append(reader)
        self.writers.append(writer)
        self.came.set()

    async def head(self) -> dict[str, str]:
        """The header fields of the first request, with the request line as an empty name."""
        await self.came.wait()
        lines = (await self.readers[0].readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        return {"": lines[0], **fields}


class Browser:
    """A client of HTTP at the port of AMQP."""

    def __init__(self, scene: Scene, host: str = "127.0.0.1", **extra: Any) -> None:
        self.connection = scene.frontend.protocol()
        self.transport = FakeTransport(self.connection, host)
        self.transport.extra |= extra
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.transport.protocol.data_received(data)

    def is_read(self) -> bool:
        """Whether the frontend reads this client's socket."""
        return bool(self.transport.reading)

    @property
    def answer(self) -> bytes:
        return bytes(self.transport.written)


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until a condition is true."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


Check = Callable[[Scene, Gateway], Awaitable[None]]


def play(check: Check, hooks: FrontendHooks = HOOKS, **settings: Any) -> None:
    async def test(scene: Scene) -> None:
        gateway = Gateway(scene)
        server = await gateway.serve()
        try:
            await check(scene, gateway)
        finally:
            scene.frontend.http.close()
            server.close()
            for reader, writer in zip(gateway.readers, gateway.writers, strict=True):
                while await reader.read(1 << 20):
                    pass
                writer.close()
                await writer.wait_closed()

    play_scene(test, hooks, **settings)


@pytest.mark.parametrize("pieces", [1, 7])
def test_the_gateway_gets_the_request_with_a_field_about_its_client(pieces: int) -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        scene.authenticator.has_users = True
        client = Browser(scene, "192.0.2.1")
        size = -(-len(REQUEST) // pieces)
        for at in range(0, len(REQUEST), size):
            client.send(REQUEST[at : at + size])
        fields = await gateway.head()
        assert fields[""] == "PUT /q?api-version=2021-05 HTTP/1.1"
        assert fields["Host"] == "broker:5672"
        assert list(fields)[-1] == FIELD, "no line of the client can continue it"
        nonce = fields[NONCE_FIELD].encode()
        secret, now_ms = scene.authenticator.secret, scene.time_ms
        read = Forwarded.read(fields[FIELD], secret, nonce, now_ms, TO_GATEWAY)
        assert read == Forwarded("192.0.2.1", 40_000, tls=False)
        with pytest.raises(ValueError, match="another code"):
            Forwarded.read(fields[FIELD], secret, nonce, now_ms, TO_FRONTEND)
        assert await gateway.readers[0].readexactly(4) == b"body"
        gateway.writers[0].write(b"HTTP/1.1 201 Created\r\n\r\n")
        await until(lambda: client.answer)
        assert client.answer == b"HTTP/1.1 201 Created\r\n\r\n"
        # It is no connection of AMQP any more.
        assert scene.connections == []
        assert len(scene.frontend.unproven) == 0
        client.transport.abort()
        assert await gateway.readers[0].read() == b""
        assert len(scene.frontend.http) == 0

    play(check)


def test_fields_of_that_name_by_the_client_are_removed() -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        forged = Forwarded("127.0.0.1", 1, tls=True).sign(b"?" * 32, b"n", scene.time_ms, TO_GATEWAY)
        head = REQUEST.replace(
            b"Host:", f"lightrail-forwarded: {forged}\r\nLIGHTRAIL-NONCE: n\r\nHost:".encode()
        )
        Browser(scene).send(head)
        fields = await gateway.head()
        assert [name for name in fields if name.lower() == FIELD.lower()] == [FIELD]
        assert [name for name in fields if name.lower() == NONCE_FIELD.lower()] == [NONCE_FIELD]
        assert fields[FIELD] != forged

    play(check)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /q?api-version=1 HTTP/1.1\nHost: h\n\nGET /!ui HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /q?api-version=1 HTTP/1.1\r\nHost: h\n\nGET /!ui HTTP/1.1\r\n\r\n",
        b"GET /q?api-version=1 HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
        b"GET /q?api-version=1 HTTP/1.1\r\nHost: h\r\n continued\r\n\r\n",
        b"GET /q?api-version=1 HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET /q?api-version=1 HTTP/1.1\r\nno field\r\n\r\n",
        b"GET /q?api-version=1 HTTP/1.1\r\nHost: h\0\r\n\r\n",
    ],
)
def test_a_head_that_others_may_read_otherwise_is_refused(head: bytes) -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        client = Browser(scene)
        client.send(head)
        await scene.settle()
        assert b"/!ui" not in client.answer
        assert not gateway.came.is_set()
        # Not forwarded: refused, or answered as what is no request of administration.
        assert client.answer.startswith((b"HTTP/1.1 400", b"AMQP"))

    play(check)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /!status HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /q HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /q?x=api-version HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /api-version=1 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nx?api-version=1 y\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"DELETED",
    ],
)
def test_everything_else_gets_the_protocol_header_of_amqp(request_: bytes) -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        client = Browser(scene)
        client.send(request_)
        await scene.settle()
        assert client.answer == b"AMQP\x00\x01\x00\x00"
        assert not gateway.came.is_set()

    play(check)


def test_without_hooks_nothing_is_forwarded() -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        client = Browser(scene)
        client.send(REQUEST)
        await scene.settle()
        assert client.answer == b"AMQP\x00\x01\x00\x00"

    play(check, FrontendHooks())


def test_an_endless_head_ends_with_the_protocol_header() -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        client = Browser(scene)
        client.send(b"GET /q?api-version=1 HTTP/1.1\r\nX: " + b"x" * (limits.WEBSOCKET_HEAD_BYTES + 1))
        await scene.settle()
        assert client.answer == b"AMQP\x00\x01\x00\x00"

    play(check)


def test_without_a_gateway_beside_the_answer_names_another() -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        scene.frontend.http.gateway = None
        client = Browser(scene)
        client.send(REQUEST)
        await scene.settle()
        assert client.answer.startswith(b"HTTP/1.1 503")
        assert b"none is known" in client.answer
        members = {3: Member(3, 1, http="10.0.0.3:8080"), 4: Member(4, 1)}
        scene.frontend.gateways = members.values  # type: ignore[method-assign]
        client = Browser(scene)
        client.send(REQUEST)
        await scene.settle()
        assert b"one serves at 10.0.0.3:8080" in client.answer
        assert len(scene.frontend.http) == 0

    play(check)


def test_a_gateway_that_does_not_answer_is_unavailable() -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        scene.frontend.http.gateway = Endpoint("127.0.0.1", 1)
        client = Browser(scene)
        client.send(REQUEST)
        await until(lambda: client.answer)
        assert client.answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in client.answer

    play(check)


@pytest.mark.parametrize("bound", ["HTTP_FORWARDED_MAX", "HTTP_FORWARDED_OF_SOURCE"])
def test_their_number_is_bounded_in_all_and_of_one_source(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        scene.authenticator.has_users = True
        monkeypatch.setattr(http_forwarding, bound, 1)
        first, second, other = Browser(scene), Browser(scene), Browser(scene, "192.0.2.1")
        first.send(REQUEST)
        second.send(REQUEST)
        other.send(REQUEST)
        await scene.settle()
        assert first.answer == b""
        assert second.answer.startswith(b"HTTP/1.1 503")
        assert other.answer.startswith(b"HTTP/1.1 503") == (bound == "HTTP_FORWARDED_MAX")
        scene.frontend.http.close()
        await scene.settle()
        assert len(scene.frontend.http) == 0

    play(check)


def test_a_side_that_does_not_read_stops_the_other() -> None:
    async def check(scene: Scene, gateway: Gateway) -> None:
        client = Browser(scene)
        client.send(REQUEST)
        await gateway.head()
        side = client.transport.protocol
        assert isinstance(side, http_forwarding._Side)
        assert side.other is not None
        upstream = side.other.transport
        assert upstream is not None
        assert client.is_read()
        # The gateway does not read: more than its socket's buffers and HTTP_FORWARDED_BUFFER_BYTES wait.
        gateway.readers[0]._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            client.send(b"x" * HTTP_FORWARDED_BUFFER_BYTES)
            if not client.is_read():
                break
        assert not client.is_read()
        gateway.readers[0]._transport.resume_reading()  # type: ignore[attr-defined]
        while not client.is_read():
            await gateway.readers[0].read(1 << 20)
        # The client does not read its answer.
        side.pause_writing()
        assert not upstream.is_reading()
        side.resume_writing()
        assert upstream.is_reading()
        client.transport.abort()

    play(check)
