"""The PROXY protocol: behind a balancer a client is listed, and judged, by its own address."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lightrail.client import Credentials, connect
from lightrail.model.protocols import V2_SIGNATURE
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.http_client import Http

USER = Credentials("ann", "a password")
SASL = b"AMQP\x03\x01\x00\x00"
ELSEWHERE = "127.0.0.2"
"""An address of this machine that the setting does not list."""
V1 = b"PROXY TCP4 203.0.113.7 10.0.0.1 40000 5672\r\n"
V2 = V2_SIGNATURE + b"\x21\x11\x00\x0c" + bytes([203, 0, 113, 7, 10, 0, 0, 1, 0x9C, 0x40, 0x16, 0x28])
LOCAL = V2_SIGNATURE + b"\x20\x00\x00\x00"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, ssl.SSLContext]]:
    """A broker with TLS, and a user who may do everything; 127.0.0.1 is a balancer."""
    folder: Path = tmp_path_factory.mktemp("balanced")
    authority = Authority(folder / "ca")
    made = authority.sign("localhost", "DNS:localhost")
    admin(folder / "data", "user", "add", "ann", password="a password")
    admin(folder / "data", "permission", "set", "ann", "/", "all")
    tls = ("--amqps", "127.0.0.1:0", "--tls-certificate", made.certificate, "--tls-key", made.key)
    trusted = ("--proxy-protocol-from", "127.0.0.1, 10.0.0.0/8")
    with Broker(folder / "data", "--shards", "1", "--frontends", "1", *tls, *trusted) as broker:
        yield broker, ssl.create_default_context(cafile=authority.path)


@asynccontextmanager
async def balancer(address: str, header: bytes) -> AsyncIterator[int]:
    """The port of a balancer that sends this header, in two pieces, before the bytes of each client."""
    host, _, port = address.rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(host, int(port))
        to_writer.write(header[:9])
        to_writer.write(header[9:])
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("scheme", "header", "peer"),
    [
        ("amqp", V1, "203.0.113.7:40000"),
        ("amqps", V2, "203.0.113.7:40000"),
        ("ws", V2, "203.0.113.7:40000"),
        ("wss", V1, "203.0.113.7:40000"),
        ("amqps", LOCAL, "127.0.0.1:"),
    ],
)
def test_a_connection_is_listed_with_the_address_that_the_balancer_names(
    served: tuple[Broker, ssl.SSLContext], scheme: str, header: bytes, peer: str
) -> None:
    broker, tls = served
    encrypted = scheme in ("amqps", "wss")

    async def test() -> None:
        async with (
            balancer(broker.ready["amqps" if encrypted else "amqp"], header) as port,
            connect(f"{scheme}://localhost:{port}/", credentials=USER, tls=tls, name="listed") as connection,
            connection.sender("q") as sender,
        ):
            await sender.send("a message")
            with Http(broker.http, USER.user or "", USER.password or "") as http:
                listed = await asyncio.to_thread(http, "GET", "/!connections?container=listed")
            [found] = listed.json()["connections"]
            assert found["peer"].startswith(peer)
            assert (found["tls"], found["transport"] == "websocket") == (encrypted, scheme.startswith("ws"))

    asyncio.run(asyncio.wait_for(test(), 60.0))


def test_the_gateway_of_a_machine_that_is_listed_passes_websockets_on(
    served: tuple[Broker, ssl.SSLContext],
) -> None:
    broker, _ = served

    async def test() -> None:
        async with (
            connect(f"ws://{broker.http}/", credentials=USER) as connection,
            connection.sender("q") as sender,
        ):
            await sender.send("a message")

    asyncio.run(asyncio.wait_for(test(), 60.0))


def answer(address: str, sent: bytes, source: str) -> bytes:
    """The first bytes that are answered; none if the connection is closed."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0)) as client:
        client.sendall(sent)
        try:
            return client.recv(4096)
        except ConnectionResetError:
            return b""  # reset: the broker closed it before it read all bytes


@pytest.mark.parametrize(
    ("port", "sent", "source", "answered", "named"),
    [
        ("amqp", SASL, ELSEWHERE, SASL, ""),
        (
            "amqp",
            SASL,
            "127.0.0.1",
            b"",
            "speaks AMQP 1.0 with SASL, without a balancer's header; connections",
        ),
        ("amqps", b"\x16\x03\x01", "127.0.0.1", b"", "speaks TLS, without a balancer's header; connections"),
        ("amqp", b"PROXY TCP4 a b 1 2\r\n", "127.0.0.1", b"", "found 'PROXY TCP4 a b 1 2'); connections"),
        ("amqp", V2, ELSEWHERE, SASL, "the sources that proxy_protocol_from lists"),
    ],
)
def test_a_header_is_read_from_listed_sources_alone_and_is_required_of_them(
    served: tuple[Broker, ssl.SSLContext], port: str, sent: bytes, source: str, answered: bytes, named: str
) -> None:
    broker, _ = served
    before = len(broker.said())
    assert answer(broker.ready[port], sent, source)[:8] == answered
    wait.until(lambda: named in broker.said()[before:], "the log says what was expected")


def test_a_client_of_elsewhere_is_no_client_of_this_machine_though_its_balancer_is(
    served: tuple[Broker, ssl.SSLContext],
) -> None:
    """PLAIN in the clear is for loopback alone."""
    address = served[0].ready["amqp"]
    assert b"PLAIN" in answer(address, LOCAL + SASL, "127.0.0.1")
    assert b"PLAIN" not in answer(address, V1 + SASL, "127.0.0.1")
