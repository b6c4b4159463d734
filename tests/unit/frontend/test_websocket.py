"""AMQP in a WebSocket: what a client may send as a handshake and as frames, and what it gets."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason

from lightrail import websocket
from lightrail.amqp import events
from lightrail.amqp.performatives import Source, Target
from lightrail.frontend.connections import connections
from lightrail.frontend.hooks import FrontendHooks
from lightrail.model import limits
from lightrail.model.links import Ending
from lightrail.wire.forwarded import FIELD, Forwarded
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.now import now

AMQP = b"AMQP\x00\x01\x00\x00"


class Browser:
    """The client's end of a WebSocket; `client` is the socket and the AMQP engine."""

    def __init__(self, scene: Scene) -> None:
        self.client = Client(scene)
        self.transport = self.client.transport
        self.websocket = WSConnection(ConnectionType.CLIENT)
        self.events: list[Event] = []

    def send(self, *sent: Event, piece: int = 1 << 20) -> None:
        """Sends events, in pieces of so many bytes."""
        self.send_bytes(b"".join(self.websocket.send(each) for each in sent), piece)

    def send_bytes(self, data: bytes, piece: int = 1 << 20) -> None:
        for at in range(0, len(data), piece):
            self.transport.protocol.data_received(data[at : at + piece])

    async def hear(self) -> list[Event]:
        """What the broker has sent since the last time."""
        await self.client.scene.settle()
        written = bytes(self.transport.written)
        self.transport.written.clear()
        if written:
            self.websocket.receive_data(written)
        return list(self.websocket.events())

    async def ask(
        self,
        *,
        subprotocols: Sequence[str] = ("amqp",),
        headers: Sequence[tuple[bytes, bytes]] = (),
        piece: int = 1 << 20,
    ) -> list[Event]:
        """Asks for a WebSocket."""
        request = Request(
            host="localhost", target="/", subprotocols=list(subprotocols), extra_headers=list(headers)
        )
        self.send(request, piece=piece)
        return await self.hear()

    async def turn(self) -> None:
        """AMQP goes both ways until there is none."""
        amqp = self.client.amqp
        for _ in range(6):
            data = b"".join(amqp.output)
            amqp.output.clear()
            if data:
                self.send(BytesMessage(data=data))
            heard = b"".join(bytes(each.data) for each in await self.hear() if isinstance(each, BytesMessage))
            self.client.events += amqp.feed(heard, self.client.scene.frontend.now_ms()) if heard else ()
            if not heard and not data:
                break


def refusal(browser: Browser) -> bytes:
    """The answer to a handshake that was refused."""
    assert browser.transport.closing
    return bytes(browser.transport.written)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("offered", [("amqp",), ("AMQPWSB10",), ("mqtt", "amqp")])
def test_a_client_opens_a_connection_and_closes_it(offered: tuple[str, ...], piece: int) -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        (accepted,) = await browser.ask(subprotocols=offered, piece=piece)
        assert isinstance(accepted, AcceptConnection)
        assert accepted.subprotocol == offered[-1]
        assert scene.frontend.counts.websockets == 1
        [listed] = connections(scene.frontend, {})["connections"]
        assert (listed["transport"], listed["forwarded"]) == ("websocket", False)
        amqp = browser.client.amqp
        amqp.open()
        await browser.turn()
        assert [type(each) for each in browser.client.take(events.Opened)] == [events.Opened]
        assert scene.connections[0].opened
        amqp.close()
        data = b"".join(amqp.output)
        browser.send(BytesMessage(data=data))
        *_, end = await browser.hear()
        assert isinstance(end, CloseConnection)
        assert end.code == CloseReason.NORMAL_CLOSURE
        await scene.settle()
        assert scene.connections == []
        assert scene.frontend.counts.websockets == 0

    play(check)


@pytest.mark.parametrize(
    ("headers", "allowed", "status"),
    [
        ([(b"origin", b"https://evil.example")], "", b"403"),
        ([(b"origin", b"https://evil.example")], "https://app.example", b"403"),
        ([(b"origin", b"https://app.example")], "https://app.example", b"101"),
        ([(b"origin", b"null")], "*", b"101"),
        ([], "", b"101"),
        # As websocket-client for Python sends it: the address itself.
        ([(b"origin", b"http://localhost")], "", b"101"),
        ([(b"origin", b"http://localhost:8080")], "", b"403"),
    ],
)
def test_a_page_connects_only_from_an_origin_that_is_allowed(
    headers: list[tuple[bytes, bytes]], allowed: str, status: bytes
) -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send(Request(host="localhost", target="/", subprotocols=["amqp"], extra_headers=headers))
        await scene.settle()
        assert browser.transport.written.startswith(b"HTTP/1.1 " + status)
        assert browser.transport.closing is (status == b"403")
        assert scene.frontend.counts.connections_refused == (status == b"403")

    play(check, websocket_origins=(allowed,) if allowed else ())


@pytest.mark.parametrize(
    ("host", "tls", "status"),
    [
        ("127.0.0.1:5672", False, b"101"),
        ("[::1]:5672", False, b"101"),
        ("evil.example:5672", False, b"403"),
        ("broker.example:5671", True, b"101"),
        ("evil.example:99999", False, b"403"),
    ],
)
def test_the_origin_of_the_address_itself_is_allowed_where_no_name_could_have_been_resolved_anew(
    host: str, tls: bool, status: bytes
) -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        scene.connections[0].client.tls = tls
        origin = [(b"origin", f"http{'s' if tls else ''}://{host}".encode())]
        browser.send(Request(host=host, target="/", subprotocols=["amqp"], extra_headers=origin))
        await scene.settle()
        assert browser.transport.written.startswith(b"HTTP/1.1 " + status)

    play(check)


def test_another_subprotocol_is_refused_by_name() -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send(Request(host="localhost", target="/", subprotocols=["mqtt"]))
        await scene.settle()
        assert refusal(browser).startswith(b"HTTP/1.1 400 ")
        assert refusal(browser).endswith(b"expected the subprotocol amqp, found mqtt\n")

    play(check)


def test_a_further_name_of_amqp_is_that_of_a_hook() -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send(Request(host="localhost", target="/", subprotocols=["AMQPWSB10"]))
        await scene.settle()
        assert refusal(browser).endswith(b"expected the subprotocol amqp, found AMQPWSB10\n")

    play(check, FrontendHooks())


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\n\r\n",
        b"G" * (limits.WEBSOCKET_HEAD_BYTES + 1),
    ],
)
def test_other_requests_are_answered_as_any_other_protocol_is(request_: bytes) -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send_bytes(request_, 1_000)
        await scene.settle()
        assert bytes(browser.transport.written) == AMQP
        assert browser.transport.closing

    play(check)


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"Host: \xff\xfe..example\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\n",
        b"Host: h\r\nConnection: upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: \xff\r\n",
    ],
)
def test_a_request_that_can_not_be_read_is_refused(fields: bytes) -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send_bytes(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n" + fields + b"\r\n")
        await scene.settle()
        assert refusal(browser).startswith(b"HTTP/1.1 400 ")

    play(check)


@pytest.mark.parametrize("version", [b"Sec-WebSocket-Version: 8\r\n", b""])
def test_a_client_of_another_version_learns_the_version_that_is_served(version: bytes) -> None:
    """RFC 6455 4.4."""

    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send_bytes(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: amqp\r\n"
            + version
            + b"\r\n"
        )
        await scene.settle()
        head = refusal(browser)
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"\r\nsec-websocket-version: 13\r\n" in head.lower()

    play(check)


def test_pings_are_answered_unless_their_answers_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_HIGH_WATER", 100)

    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        await browser.ask()
        browser.send(Ping(payload=b"hello"))
        (pong,) = await browser.hear()
        assert isinstance(pong, Pong)
        assert pong.payload == b"hello"
        for _ in range(30):
            if not browser.transport.closing:
                browser.send(Ping(payload=b"hello"))
        assert browser.transport.aborted

    play(check)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (lambda browser: browser.websocket.send(TextMessage(data="AMQP")), CloseReason.UNSUPPORTED_DATA),
        # Only the first of several errors is answered.
        (
            lambda browser: (
                2 * browser.websocket.send(TextMessage(data="AMQP"))
                + browser.websocket.send(Ping())
                + browser.websocket.send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
            ),
            CloseReason.UNSUPPORTED_DATA,
        ),
        # Frames of a client have to be masked.
        (lambda _browser: b"\x82\x01x", CloseReason.PROTOCOL_ERROR),
        (lambda _browser: b"\x8f\x80\x00\x00\x00\x00", CloseReason.PROTOCOL_ERROR),
    ],
)
def test_what_no_client_may_send_closes_the_websocket(
    sent: Callable[[Browser], bytes], code: CloseReason
) -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        await browser.ask()
        browser.send_bytes(sent(browser))
        (end,) = await browser.hear()
        assert isinstance(end, CloseConnection)
        assert end.code == code
        assert browser.transport.closing

    play(check)


def test_a_client_that_closes_its_websocket_is_answered() -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        await browser.ask()
        browser.send(CloseConnection(code=CloseReason.GOING_AWAY))
        (end,) = await browser.hear()
        assert isinstance(end, CloseConnection)
        await scene.settle()
        assert scene.connections == []

    play(check)


def test_many_small_frames_are_read_in_several_turns_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "WEBSOCKET_FRAMES_AT_ONCE", 3)

    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        await browser.ask()
        amqp = browser.client.amqp
        amqp.open()
        data = b"".join(amqp.output)
        amqp.output.clear()
        browser.send(*(BytesMessage(data=bytes([each])) for each in data))
        assert now(browser.transport.reading) is False
        for _ in range(len(data)):
            await asyncio.sleep(0)
        assert browser.transport.reading
        await browser.turn()
        assert browser.client.take(events.Opened)

    play(check)


def test_what_a_client_sent_before_its_socket_was_reset_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that wait for another turn, and bytes that the transport of a failed socket does not read."""
    monkeypatch.setattr(websocket, "WEBSOCKET_FRAMES_AT_ONCE", 3)

    async def check(scene: Scene) -> None:
        async def read() -> None:
            """A frame takes a turn of its own at most."""
            await browser.turn()
            for _ in range(6):
                await scene.settle()
            await browser.turn()

        browser = Browser(scene)
        await browser.ask()
        amqp = browser.client.amqp
        amqp.open()
        await read()
        amqp.begin().attach("r", False, source=Source(address="q"), target=Target())
        await read()
        scene.shard.ready()
        await read()
        assert scene.links_attached() == 1
        amqp.close()
        data = b"".join(amqp.output)
        frames = [browser.websocket.send(BytesMessage(data=data[at : at + 1])) for at in range(len(data))]
        browser.send_bytes(b"".join(frames[:20]))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            browser.transport.extra["socket"] = ours
            theirs.sendall(b"".join(frames[20:]))
            browser.transport.closing = True
            browser.transport.protocol.connection_lost(ConnectionResetError())
        assert scene.shard.endings == [Ending.BY_CLIENT]
        assert scene.connections == []

    play(check)


def test_output_is_cut_into_messages_that_any_client_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "WEBSOCKET_MESSAGE_BYTES", 8)

    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        await browser.ask()
        browser.client.amqp.open()
        browser.send(BytesMessage(data=b"".join(browser.client.amqp.output)))
        heard: list[Any] = await browser.hear()
        assert len(heard) > 2
        assert max(len(each.data) for each in heard) == 8
        assert b"".join(bytes(each.data) for each in heard).startswith(AMQP)

    play(check)


def test_a_client_that_sends_half_a_request_is_closed_in_time() -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send_bytes(b"GET / HTTP/1.1\r\n")
        await scene.settle()
        scene.time_ms += limits.OPENING_TIME_MS
        (connection,) = scene.connections
        connection.tick(scene.time_ms)
        await scene.settle()
        assert browser.transport.closing
        assert not browser.transport.written

    play(check)


def forwarded(scene: Scene, browser: Browser, client: Forwarded, secret: bytes | None = None) -> bytes:
    """The request of a browser, as a gateway passes it on."""
    request = browser.websocket.send(Request(host="h", target="/", subprotocols=["amqp"]))
    nonce = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    signed = client.sign(secret or scene.authenticator.secret, nonce, scene.time_ms)
    head, end, _ = request.partition(b"\r\n\r\n")
    return head + f"\r\n{FIELD}: {signed}".encode() + end


def test_a_client_of_a_gateway_has_its_own_address_and_its_own_mechanisms() -> None:
    async def check(scene: Scene) -> None:
        scene.authenticator.has_users = True
        browser = Browser(scene)
        browser.send_bytes(forwarded(scene, browser, Forwarded("192.0.2.7", 4_000, tls=True)))
        (accepted,) = await browser.hear()
        assert isinstance(accepted, AcceptConnection)
        (connection,) = scene.connections
        client = connection.client
        assert (client.peer, client.tls, client.loopback) == ("192.0.2.7:4000", True, False)
        browser.send(BytesMessage(data=b"AMQP\x03\x01\x00\x00"))
        heard = b"".join(bytes(each.data) for each in await browser.hear() if isinstance(each, BytesMessage))
        assert b"PLAIN" in heard, "offered over TLS"
        assert not connection.sasl_exchange._authentication.anonymous  # type: ignore[union-attr]

    play(check)


def test_without_users_a_gateway_lets_nobody_in_from_another_machine() -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send_bytes(forwarded(scene, browser, Forwarded("192.0.2.7", 4_000, tls=True)))
        await scene.settle()
        assert refusal(browser).startswith(b"HTTP/1.1 403 ")

    play(check)


def test_what_no_gateway_wrote_is_refused() -> None:
    async def check(scene: Scene) -> None:
        browser = Browser(scene)
        browser.send_bytes(forwarded(scene, browser, Forwarded("127.0.0.1", 4_000, tls=True), b"guessed"))
        await scene.settle()
        assert refusal(browser).startswith(b"HTTP/1.1 400 ")
        assert b"another code" in refusal(browser)

    play(check)
