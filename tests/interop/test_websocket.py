"""AMQP over WebSocket, as clients speak it: rhea with the package ws, and azure-servicebus."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from tests.interop.test_azure_servicebus import Credential
from tests.interop.test_proton_security import admin
from tests.interop.test_rhea import node
from tests.support.broker import Broker
from tests.support.certificates import Authority

PAGE = "https://app.example.com"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Authority]]:
    """A broker with TLS, a user, and a page that may connect."""
    folder: Path = tmp_path_factory.mktemp("websocket")
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost")
    admin(folder / "data", "user", "add", "ann", password="a password")
    tls = ("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    flags = ("--allow-anonymous", "true", "--service-bus-auto-create", "true", "--websocket-origins", PAGE)
    with Broker(folder / "data", *tls, *flags) as broker:
        yield broker, authority


@pytest.mark.parametrize(("port", "durable"), [("amqp", False), ("amqp", True), ("http", True)])
def test_everything_arrives_once_and_in_order(broker: Broker, queue: str, port: str, durable: bool) -> None:
    """At the port of AMQP, and through the gateway at that of HTTP."""
    found = node("pass", f"ws://{broker.ready[port]}", queue, count=5_000, durable=durable)
    assert found == {"bodies": list(range(5_000)), "outcomes": ["accepted"]}


def test_users_enter_over_tls(served: tuple[Broker, Authority], queue: str) -> None:
    broker, authority = served
    address = f"wss://localhost:{broker.ready['amqps'].rpartition(':')[2]}"
    tls: dict[str, Any] = {"files": {"ca": authority.path}}
    assert node("enter", address, queue, username="ann", password="a password", **tls) is None
    refused = node("enter", address, queue, username="ann", password="another", **tls)
    assert "amqp:unauthorized-access" in refused or "disconnected" in refused


def test_a_page_enters_from_an_origin_that_is_allowed(served: tuple[Broker, Authority], queue: str) -> None:
    broker, _ = served
    address = f"ws://{broker.amqp}"
    user: dict[str, Any] = {"username": "ann", "password": "a password"}
    assert node("enter", address, queue, origin=PAGE, **user) is None
    refused = node("enter", address, queue, origin="https://evil.example.com", **user)
    assert refused.startswith("disconnected: ")


@pytest.mark.parametrize("port", ["amqp", "http"])
def test_azure_servicebus_sends_and_receives(served: tuple[Broker, Authority], queue: str, port: str) -> None:
    broker, _ = served
    with ServiceBusClient(
        broker.amqp,
        Credential(broker),
        use_tls=False,
        custom_endpoint_address=f"sb://{broker.ready[port]}",
        retry_total=0,
        transport_type=TransportType.AmqpOverWebsocket,
    ) as client:
        with client.get_queue_sender(queue) as sender:
            for number in range(5):
                sender.send_messages(ServiceBusMessage(f"number {number}"))
        with client.get_queue_receiver(queue) as receiver:
            found = receiver.receive_messages(5, max_wait_time=10)
            assert [str(each) for each in found] == [f"number {number}" for number in range(5)]
            for each in found:
                receiver.complete_message(each)
