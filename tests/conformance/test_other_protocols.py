"""Clients of other protocols: answered by a header (transport 2.2), and named in the log."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message, SSLDomain
from proton.utils import BlockingConnection

from tests.support import wait
from tests.support.broker import Broker
from tests.support.certificates import Authority

AMQP = b"AMQP\x00\x01\x00\x00"
"""As no user is defined, SASL is not asked for."""
SASL = b"AMQP\x03\x01\x00\x00"
TLS = b"AMQP\x02\x01\x00\x00"
OLD = b"AMQP\x00\x00\x09\x01"
MQTT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HELLO = b"\x16\x03\x01\x00\x05hello"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("protocols")
    made = Authority(folder / "ca").sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    tls = ("--tls-certificate", made.certificate, "--tls-key", made.key)
    ports = ("--amqps", "127.0.0.1:0", "--https", "127.0.0.1:0")
    with Broker(folder / "data", "--shards", "1", "--frontends", "1", *ports, *tls) as running:
        yield running


def answer(address: str, sent: bytes) -> bytes:
    """Everything up to the end of the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(sent)
        parts = []
        try:
            while part := client.recv(4096):
                parts.append(part)
        except ConnectionResetError:
            pass  # closed with bytes of ours that nobody read
        return b"".join(parts)


@pytest.mark.parametrize(
    ("port", "sent", "answered", "named"),
    [
        ("amqp", OLD, AMQP, "AMQP 0-9-1"),
        ("amqp", MQTT, AMQP, "MQTT"),
        ("amqp", GET, AMQP, "HTTP"),
        ("amqp", HELLO, AMQP, "TLS"),
        ("amqps", SASL, TLS, "AMQP 1.0 with SASL"),
        # Each protocol is named once a minute by a frontend: those of its plain port are not sent here again.
        ("amqps", b"STOMP\naccept-version:1.2\n\n\x00", b"", "STOMP"),
        ("http", SASL, b"HTTP/1.0 400", "AMQP 1.0 with SASL"),
        ("http", HELLO, b"HTTP/1.0 400", "TLS"),
        ("https", GET, b"", "HTTP"),
    ],
)
def test_they_are_answered_and_named(
    broker: Broker, port: str, sent: bytes, answered: bytes, named: str
) -> None:
    before = len(broker.said())
    found = answer(broker.ready[port], sent)
    assert found[: len(answered)] == answered
    assert found or not answered
    wait.until(lambda: f" speaks {named}; " in broker.said()[before:], "the log names the protocol")


def test_clients_of_tls_are_served(broker: Broker, tmp_path: Path) -> None:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_peer_authentication(SSLDomain.ANONYMOUS_PEER)
    client = BlockingConnection(f"amqps://{broker.ready['amqps']}", timeout=20, ssl_domain=domain)
    client.create_sender("q").send(Message(body="over TLS"))
    client.close()
    host, _, port = broker.ready["https"].rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(GET.replace(b"/ ", b"/healthz "))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
