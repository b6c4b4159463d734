"""The listener of TLS: clients that speak it reach the frontend, others are named and answered."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from lightrail.amqp.frames import SASL_HEADER, TLS_HEADER
from lightrail.frontend import listener
from lightrail.model.endpoint import Endpoint
from lightrail.model.protocols import Balancers
from lightrail.model.settings import Settings
from lightrail.telemetry.open_files import OpenFiles
from lightrail.telemetry.strangers import Strangers
from tests.support.amqp.frontend_scene import Scene, play
from tests.support.certificates import Authority


class Echo(asyncio.Protocol):
    """Stands for a client's connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.transport.close()


def test_clients_of_tls_reach_the_frontend_and_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    made = authority.sign("localhost", "IP:127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    client = ssl.create_default_context(cafile=authority.path)
    frontend: Any = SimpleNamespace(
        protocol=lambda source: Echo(),
        settings=Settings(),
        now_ms=lambda: 0,
        counts=SimpleNamespace(connections_refused=0),
        strangers=Strangers(logging.getLogger("test"), "AMQP 1.0 is served here"),
    )

    async def answer(port: int, sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(sent)
        found = await reader.read()
        writer.close()
        return found

    async def check() -> None:
        accepting = await listener.listen(frontend, Endpoint("127.0.0.1", 0), server)
        port = accepting.sockets[0].getsockname()[1]
        assert await answer(port, SASL_HEADER, client) == SASL_HEADER
        assert await answer(port, SASL_HEADER) == TLS_HEADER
        assert await answer(port, b"GET / HTTP/1.1\r\n") == b""
        monkeypatch.setattr(listener, "HANDSHAKE_S", 0.05)
        assert await answer(port, b"") == b""
        monkeypatch.setattr("lightrail.model.limits.HALF_OPEN_MAX", 0)
        assert await answer(port, b"") == b""
        assert frontend.counts.connections_refused == 1
        accepting.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
    assert [each.partition(" speaks ")[2] for each in caplog.messages] == [
        "AMQP 1.0 with SASL; AMQP 1.0 is served here",
        "HTTP; AMQP 1.0 is served here",
    ]


def test_a_balancer_that_writes_no_header_keeps_no_socket(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checks that only connect are not logged, as they have nothing that could be wrong."""
    made: list[Any] = []

    def protocol(source: Any) -> Echo:
        made.append(source)
        return Echo()

    frontend: Any = SimpleNamespace(
        protocol=protocol,
        settings=Settings(proxy_protocol_from=("127.0.0.0/8",)),
        now_ms=lambda: 0,
        counts=SimpleNamespace(connections_refused=0),
    )

    async def answer(port: int, sent: bytes, *, ends: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        if ends:
            writer.write_eof()
        found = await reader.read()
        writer.close()
        return found

    async def check() -> None:
        accepting = await listener.listen(frontend, Endpoint("127.0.0.1", 0), None)
        port = accepting.sockets[0].getsockname()[1]
        assert await answer(port, b"", ends=True) == b""
        assert await answer(port, b"PROXY TCP4", ends=True) == b""
        assert await answer(port, b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nAMQP") == b"AMQP"
        assert await answer(port, b"PROXY UNKNOWN\r\nAMQP") == b"AMQP"
        monkeypatch.setattr(listener, "HANDSHAKE_S", 0.05)
        assert await answer(port, b"PROXY TCP4") == b""
        accepting.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
    assert made == [("192.0.2.1", 1), None]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("balancer", "named", "source"),
    [
        ("10.0.0.1", "192.0.2.1", ("192.0.2.1", 1)),
        ("127.0.0.1", "127.0.0.9", ("127.0.0.9", 1)),
        ("10.0.0.1", "127.0.0.9", None),
    ],
)
def test_a_client_on_the_machine_of_a_balancer_is_not_on_this_machine(
    balancer: str, named: str, source: tuple[str, int] | None
) -> None:
    frontend: Any = SimpleNamespace()

    async def check() -> None:
        with listener.bound(Endpoint("127.0.0.1", 0)) as listening:
            accepting = listener.OpeningListener(frontend, listening, None, Balancers(("10.0.0.1",)))
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.setblocking(False)
                theirs.send(f"PROXY TCP4 {named} 192.0.2.2 1 2\r\n".encode())
                assert await accepting._source(ours, (balancer, 2)) == source
            accepting.close()

    asyncio.run(check())


def test_a_client_that_gets_one_of_the_last_descriptors_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the limit libuv accepts and closes clients without an error, so the log has a line before."""

    async def test(scene: Scene) -> None:
        frontend = scene.frontend
        frontend.open_files = OpenFiles(logging.getLogger("test"), lambda: 0.0, lambda: 8)
        accepting = await listener.listen(frontend, Endpoint("127.0.0.1", 0), None)
        port = accepting.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(SASL_HEADER)
        assert await reader.readexactly(len(SASL_HEADER)) == SASL_HEADER
        writer.close()
        accepting.close()

    play(test)
    assert [each.partition(" of 8 ")[2].partition(";")[0] for each in caplog.messages] == [
        "file descriptors are in use"
    ]


def test_a_lack_of_descriptors_for_tls_is_logged_once_a_minute_and_not_with_each_attempt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "ACCEPT_PAUSE_S", 0.0)
    attempts = 5

    class Exhausted:
        """A listening socket for whose connections there is no descriptor."""

        def __init__(self, listening: socket.socket) -> None:
            self.listening = listening
            self.refused = 0
            self.enough = asyncio.Event()

        def fileno(self) -> int:
            return self.listening.fileno()

        def listen(self, backlog: int) -> None:
            self.listening.listen(backlog)

        def close(self) -> None:
            self.listening.close()

        def accept(self) -> None:
            self.refused += 1
            if self.refused == attempts:
                self.enough.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def check() -> None:
        frontend: Any = SimpleNamespace(open_files=OpenFiles(logging.getLogger("test"), lambda: 0.0))
        exhausted: Any = Exhausted(listener.bound(Endpoint("127.0.0.1", 0)))
        accepting = listener.OpeningListener(
            frontend, exhausted, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), Balancers(())
        )
        with socket.create_connection(exhausted.listening.getsockname()[:2]):
            await exhausted.enough.wait()
        accepting.close()

    asyncio.run(check())
    assert len(caplog.messages) == 1
    assert "Too many open files" in caplog.messages[0]


def test_accepted_sockets_are_kept_alive() -> None:
    """Transport 2.4.5: TCP keep-alive, beside the idle time-outs that clients may do without."""
    with listener.bound(Endpoint("127.0.0.1", 0)) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"can't listen at 127\.0\.0\.1:{port}: Address already in use"):
            listener.bound(Endpoint("127.0.0.1", port))
