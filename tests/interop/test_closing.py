"""What clients fetched ahead when they close or crash: only what they work on is ever counted (ADR 5)."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Event, Message, SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

from tests.interop.azure_scene import client_for
from tests.interop.azure_scene import received as received_by_azure
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, drain, received
from tests.support.broker import ROOT, Broker
from tests.support.certificates import Authority

ROUNDS = 100
"""Ten times the failed deliveries that make a dead letter."""
REST = 40
"""Messages that nobody works on."""
WORKERS = 20
"""Clients that receive from one queue at the same time."""
CRASHES = 10
"""Failed deliveries that make a dead letter, by default."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """It signs the certificate of `broker`."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    """Without users, with TLS as well."""
    server = authority.sign("localhost", "DNS:localhost")
    files = ("--tls-certificate", server.certificate, "--tls-key", server.key)
    with Broker(tmp_path_factory.mktemp("broker") / "data", "--amqps", "127.0.0.1:0", *files) as started:
        yield started


def filled(connection: BlockingConnection, queue: str, count: int) -> None:
    sender = connection.create_sender(queue)
    for number in range(count):
        sender.send(Message(body=number, durable=True))


class Closing(MessagingHandler):
    """A client that opens a connection, fetches ahead, works on one message, and closes: so many times."""

    def __init__(self, address: str, queue: str, how: str, credit: int, options: dict[str, Any]) -> None:
        super().__init__(prefetch=credit, auto_accept=False)
        self.address = address
        self.queue = queue
        self.how = how
        self.options = options
        self.bodies: list[Any] = []
        self.working = False

    def on_start(self, event: Event) -> None:
        self.working = True
        connection = event.container.connect(self.address, reconnect=False, **self.options)
        event.container.create_receiver(connection, self.queue)

    def on_message(self, event: Event) -> None:
        if self.working:
            self.working = False
            self.bodies.append(event.message.body)
            self.accept(event.delivery)
            getattr(event, self.how).close()

    def on_link_closed(self, event: Event) -> None:
        event.connection.close()

    on_session_closed = on_link_closed

    def on_connection_closed(self, event: Event) -> None:
        if len(self.bodies) < ROUNDS:
            self.on_start(event)

    def on_transport_error(self, event: Event) -> None:
        raise AssertionError(event.transport.condition)


@pytest.mark.parametrize("how", ["link", "session", "connection"])
@pytest.mark.parametrize(("scheme", "credit"), [("amqp", 1), ("amqp", 1_000), ("amqps", 1_000)])
def test_a_client_of_proton_that_closes_counts_nothing(
    broker: Broker, authority: Authority, queue: str, scheme: str, credit: int, how: str
) -> None:
    # By name: proton does not compare addresses with those in a certificate.
    address = f"{scheme}://localhost:{broker.ready[scheme].rpartition(':')[2]}"
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(authority.path)
    options = {"ssl_domain": domain} if scheme == "amqps" else {}
    count = ROUNDS + REST
    with connected(address, **options) as connection:
        filled(connection, queue, count)
    client = Closing(address, queue, how, credit, options)
    Container(client).run()
    assert client.bodies == list(range(ROUNDS))
    with connected(address, **options) as connection:
        left = received(connection.create_receiver(queue, credit=count), REST)
        assert [(each.body, each.delivery_count) for each in left] == [(n, 0) for n in range(ROUNDS, count)]
        assert drain(connection, connection.create_receiver(f"{queue}/$dlq", credit=count)) == []


@pytest.mark.parametrize("prefetch", [1, 1_000])
def test_clients_of_azure_that_close_count_nothing(
    guarded: Broker, key: str, client: ServiceBusClient, queue: str, prefetch: int
) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(ROUNDS + REST)])

    def work(rounds: int) -> list[tuple[str, int | None]]:
        found = []
        with client_for(guarded, key) as own:
            for _ in range(rounds):
                with own.get_queue_receiver(queue, prefetch_count=prefetch) as receiver:
                    (message,) = received_by_azure(receiver, 1)
                    receiver.complete_message(message)
                    found.append((str(message), message.delivery_count))
        return found

    # At the same time: this client needs a second to close a receiver.
    with ThreadPoolExecutor(WORKERS) as threads:
        done = [each for found in threads.map(work, [ROUNDS // WORKERS] * WORKERS) for each in found]
    with client.get_queue_receiver(queue, prefetch_count=prefetch) as receiver:
        done += [(str(each), each.delivery_count) for each in received_by_azure(receiver, REST)]
    assert sorted(done) == sorted((str(number), 0) for number in range(ROUNDS + REST))


def test_a_client_that_is_killed_in_the_middle_of_one_message_makes_a_dead_letter_of_no_other_one(
    broker: Broker, queue: str
) -> None:
    count = 100
    with connected(broker.amqp) as connection:
        filled(connection, queue, count)
    script = Path(__file__).with_name("proton_hold.py")
    for _ in range(CRASHES):
        command = [sys.executable, str(script), broker.amqp, queue, str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT) as client:
            assert client.stdout is not None
            assert wait.line(client.stdout) == b"0\n"
            client.kill()
    with connected(broker.amqp) as connection:
        (dead,) = received(connection.create_receiver(f"{queue}/$dlq"), 1)
        assert dead.body == 0
        left = received(connection.create_receiver(queue, credit=count), count - 1)
        assert [each.body for each in left] == list(range(1, count))
        # A message that may have been handled is marked, which is not counted.
        assert {each.delivery_count for each in left} == {1}
