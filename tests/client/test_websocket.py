"""AMQP over WebSocket, as the client speaks it: the same as over TCP, and clear errors of who refuses."""

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage

from lightrail.client import ConnectError, Event, ReconnectPolicy, connect, sync
from lightrail.client.options import Address, Credentials
from lightrail.client.websocket import WEBSOCKET_REFUSAL_BYTES
from lightrail.transport import open_transport
from lightrail.websocket import WEBSOCKET_FRAMES_AT_ONCE, WEBSOCKET_MESSAGE_BYTES
from tests.client.conftest import play
from tests.support import wait
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import Broker
from tests.support.certificates import Authority

SOON = ReconnectPolicy(first=0.02, longest=0.2)


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReturningBroker]:
    """With TLS, for tests that start it again when they have killed it."""
    folder = tmp_path_factory.mktemp("websocket")
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    flags = ("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    started = ReturningBroker(folder / "data", *flags)
    started.tls = ssl.create_default_context(cafile=authority.path)  # type: ignore[attr-defined]
    yield started
    started.stop()


def test_messages_of_every_size_go_there_and_back(broker: Broker) -> None:
    """Small ones share a WebSocket message, large ones need several: borders of both mean nothing."""
    bodies = [b"x" * size for size in (0, 1, WEBSOCKET_MESSAGE_BYTES, 3_000_000)] + list(range(2_000))

    async def test() -> None:
        async with (
            connect(f"ws://{broker.amqp}/any/path?with=query") as connection,
            connection.sender("websocket/sizes") as sender,
            connection.receiver("websocket/sizes", presettled=True) as receiver,
        ):
            await sender.send_all(bodies)
            found: list[Any] = []
            while len(found) < len(bodies):
                found += [each.body for each in await receiver.receive(100)]
            assert found == bodies

    play(test())


def test_without_await_and_as_a_transport(broker: Broker) -> None:
    with sync.connect(f"ws://{broker.amqp}") as connection, connection.sender("websocket/sync") as sender:
        assert sender.send(1).accepted

    async def test() -> None:
        transport = await open_transport(f"ws://{broker.amqp}/path#websocket/sync")
        await transport.close()
        with pytest.raises(ValueError, match="behind # in the URL"):
            await open_transport(f"ws://{broker.amqp}/orders")

    play(test())


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_broker_that_is_killed_or_stands_still_is_found_again(again: ReturningBroker, scheme: str) -> None:
    async def until(events: list[Event], kind: str, count: int) -> None:
        while [event.kind for event in events].count(kind) < count:  # noqa: ASYNC110 - whatever it is
            await asyncio.sleep(0.005)

    async def test() -> None:
        events: list[Event] = []
        secure = scheme == "wss"
        port = again.broker.ready["amqps"].rpartition(":")[2]
        url = f"wss://localhost:{port}" if secure else f"ws://{again.url}"
        tls = again.tls if secure else None  # type: ignore[attr-defined]
        async with (
            connect(url, reconnect=SOON, heartbeat=0.3, tls=tls, on_event=events.append) as connection,
            connection.sender(f"websocket/{scheme}") as sender,
            connection.receiver(f"websocket/{scheme}", presettled=True) as receiver,
        ):
            await sender.send("before")
            frontend = again.broker.pid("frontend")
            await asyncio.to_thread(wait.freeze, frontend)
            await until(events, "lost", 1)
            os.kill(frontend, signal.SIGCONT)
            await until(events, "connected", 2)
            assert (await sender.send("frozen")).accepted
            if not secure:  # the port of TLS is another one after a start
                await asyncio.to_thread(again.kill)
                await until(events, "lost", 2)
                await asyncio.to_thread(again.start)
            assert (await sender.send("after")).accepted
            found: list[Any] = []
            while "after" not in found:
                found += [each.body for each in await receiver.receive(10)]

    play(test())


# --- servers that are no broker ----------------------------------------------------------------------------


class Server:
    """Answers the handshake with `answer`, or with bytes of its own, and then sends events."""

    def __init__(self, answer: bytes | AcceptConnection, *then: Any) -> None:
        self.answer = answer
        self.then = then
        self.request = Request(host="", target="")
        self.url = ""

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        websocket = WSConnection(ConnectionType.SERVER)
        websocket.receive_data(await reader.readuntil(b"\r\n\r\n"))
        [request] = websocket.events()
        assert isinstance(request, Request)
        self.request = request
        if isinstance(self.answer, bytes):
            writer.write(self.answer)
        else:
            writer.write(websocket.send(self.answer) + b"".join(map(websocket.send, self.then)))
        await reader.read()
        writer.close()

    @asynccontextmanager
    async def served(self) -> Any:
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/at?token=secret"
            yield self


def refusal(server: Server, **options: Any) -> str:
    """Why the client does not connect."""
    found: list[str] = []

    async def test() -> None:
        async with server.served():
            with pytest.raises(ConnectError) as raised:
                await connect(server.url, **options)
            found.append(str(raised.value))

    play(test())
    return found[0]


LONG = b"x" * (WEBSOCKET_REFUSAL_BYTES + 1)
OPENING = AcceptConnection(subprotocol="amqp")


@pytest.mark.parametrize(
    ("answer", "then", "expected"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno\r\n\x1bway\n", (), r"404: no\r\n\x1bway"),
        (
            b"HTTP/1.1 503 Busy\r\nContent-Length: 900\r\n\r\n" + LONG,
            (),
            f"answers 503: {LONG[:-1].decode()}",
        ),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", (), "answers 302"),
        (b"AMQP\x00\x01\x00\x00\r\n\r\n", (), "found one that sends something else"),
        (AcceptConnection(), (), "expected the subprotocol amqp, found none"),
        (OPENING, (TextMessage(data="AMQP"),), "expected binary messages, found text"),
        (OPENING, (CloseConnection(code=1013, reason="later"),), "closed the WebSocket: later (1013)"),
        (OPENING, (BytesMessage(data=b"HTTP/1.1"),), "found b'HTTP/1.1'"),
    ],
)
def test_a_server_that_refuses_gives_a_reason_without_the_query(
    answer: bytes | AcceptConnection, then: tuple[Any, ...], expected: str
) -> None:
    server = Server(answer, *then)
    found = refusal(server)
    assert expected in found
    assert LONG.decode() not in found
    assert (server.request.target, server.request.subprotocols) == ("/at?token=secret", ["amqp"])
    assert "secret" not in found


def test_a_server_that_never_answers_the_handshake_is_given_up() -> None:
    assert "within 0.2 s" in refusal(Server(b""), reconnect=ReconnectPolicy(connect=0.2))


def test_many_pings_are_answered_in_turns() -> None:
    """More than are read in one turn, and a close behind them."""
    pings = [Ping()] * (3 * WEBSOCKET_FRAMES_AT_ONCE)
    assert "later (1013)" in refusal(Server(OPENING, *pings, CloseConnection(code=1013, reason="later")))


# --- addresses ---------------------------------------------------------------------------------------------


def test_what_an_address_says() -> None:
    address = Address.parse("wss://ann:pw@[::1]/a?b=c")
    assert address == Address("wss", "::1", 443, Credentials("ann", "pw"), "/a?b=c")
    assert (address.authority, str(address)) == ("[::1]", "wss://[::1]:443/a")
    assert Address.parse("ws://host:8080").authority == "host:8080"
    for wrong in ("ws://host/a b", "ws://host/é", "ws://host/a#b", "http://host"):
        with pytest.raises(ValueError, match="expected"):
            Address.parse(wrong)


WITHOUT = """
import sys
sys.modules["wsproto"] = None
from lightrail.client.sync import connect
from lightrail.client import ConnectError
try:
    connect("ws://127.0.0.1:1")
except ConnectError as error:
    print(error)
"""


def test_without_wsproto_the_error_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60)
    assert "need the package wsproto: pip install 'lightrail[websocket]'" in done.stdout, done.stderr
