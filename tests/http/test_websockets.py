"""AMQP over WebSocket at the ports of the gateway: messages, recovery, and what listings show."""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.client import AuthenticationError, ConnectError, Credentials, Event, ReconnectPolicy, connect
from tests.interop.test_proton_security import admin
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.http_client import Http

SOON = ReconnectPolicy(first=0.02, longest=0.2)
USER = Credentials("ann", "a password")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, ssl.SSLContext]]:
    """With TLS at the gateway, a user who may do everything, and two frontends."""
    folder: Path = tmp_path_factory.mktemp("websockets")
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    admin(folder / "data", "user", "add", "ann", password="a password")
    admin(folder / "data", "permission", "set", "ann", "/", "all")
    flags = ("--https", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    with Broker(
        folder / "data", *flags, "--sasl-mechanisms", "PLAIN,SCRAM-SHA-256", "--frontends", "2"
    ) as broker:
        yield broker, ssl.create_default_context(cafile=authority.path)


def play(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60.0))


def url_of(broker: Broker, scheme: str) -> str:
    port = broker.ready["https" if scheme == "wss" else "http"].rpartition(":")[2]
    return f"{scheme}://localhost:{port}/$servicebus/websocket"


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_messages_of_every_size_go_there_and_back(served: tuple[Broker, ssl.SSLContext], scheme: str) -> None:
    broker, tls = served
    bodies = [b"x" * size for size in (0, 1, 3_000_000)] + list(range(2_000))

    async def test() -> None:
        async with (
            connect(url_of(broker, scheme), credentials=USER, tls=tls) as connection,
            connection.sender(f"sizes/{scheme}") as sender,
            connection.receiver(f"sizes/{scheme}", presettled=True) as receiver,
        ):
            await sender.send_all(bodies)
            found: list[Any] = []
            while len(found) < len(bodies):
                found += [each.body for each in await receiver.receive(100)]
            assert found == bodies

    play(test())


def test_a_connection_is_listed_with_the_address_of_its_client(
    served: tuple[Broker, ssl.SSLContext],
) -> None:
    broker, tls = served

    async def test() -> None:
        async with connect(url_of(broker, "wss"), credentials=USER, tls=tls, name="listed") as connection:
            with Http(broker.http, USER.user or "", USER.password or "") as http:
                [found] = http("GET", "/!connections?container=listed").json()["connections"]
            with socket.socket(fileno=os.dup(connection.fileno())) as own:
                assert found["peer"] == "{}:{}".format(*own.getsockname()[:2])
            assert (found["user"], found["tls"]) == ("ann", True)
            assert (found["transport"], found["forwarded"]) == ("websocket", True)

    play(test())


def test_who_is_not_let_in_gets_the_reason(served: tuple[Broker, ssl.SSLContext]) -> None:
    broker, _ = served
    url = url_of(broker, "ws")
    wrong = Credentials("ann", "another")

    async def test() -> None:
        with pytest.raises(AuthenticationError):
            await connect(url, credentials=wrong)

    play(test())
    fields = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    for more, status, text in (
        ({"Sec-WebSocket-Protocol": "mqtt"}, 400, "expected the subprotocol amqp, found mqtt"),
        ({"Sec-WebSocket-Protocol": "amqp", "Origin": "https://evil.example"}, 403, "see websocket_origins"),
    ):
        with Http(broker.http) as http:
            answer = http("GET", "/", headers=fields | more)
            assert (answer.status, text in answer.json()["detail"]) == (status, True)
    with Http(broker.http) as http:
        another = {"Sec-WebSocket-Protocol": "amqp", "Sec-WebSocket-Version": "8"}
        answer = http("GET", "/", headers=fields | another)
        assert (answer.status, answer.headers["sec-websocket-version"]) == (400, "13")


@pytest.mark.parametrize("role", ["frontend", "gateway"])
def test_a_client_recovers_when_a_process_is_killed(served: tuple[Broker, ssl.SSLContext], role: str) -> None:
    broker, _ = served
    url = url_of(broker, "ws")

    async def test() -> None:
        events: list[Event] = []
        async with (
            connect(url, credentials=USER, reconnect=SOON, on_event=events.append) as connection,
            connection.sender(f"killed/{role}") as sender,
        ):
            await sender.send("before")
            with Http(broker.http, USER.user or "", USER.password or "") as http:
                [found] = http("GET", "/!connections").json()["connections"]
                number = int(found["id"].partition(".")[0].rpartition("-")[2])
            id = number if role == "frontend" else 0
            [pid] = [
                each["pid"] for each in broker.ready["processes"] if (each["role"], each["id"]) == (role, id)
            ]
            os.kill(pid, signal.SIGKILL)
            while not any(event.kind == "lost" for event in events):  # noqa: ASYNC110 - whatever it is
                await asyncio.sleep(0.005)
            assert (await sender.send("after")).accepted

    play(test())


def test_a_gateway_without_a_frontend_beside_it_is_a_clear_error(tmp_path: Path) -> None:
    async def test(url: str) -> None:
        with pytest.raises(ConnectError, match="no frontend answers now"):
            await connect(url)

    with Broker(tmp_path / "data") as broker:
        frontend = broker.pid("frontend")
        os.kill(broker.process.pid, signal.SIGSTOP)  # it would start another one
        try:
            os.kill(frontend, signal.SIGKILL)
            play(test(f"ws://{broker.http}"))
        finally:
            os.kill(broker.process.pid, signal.SIGCONT)
