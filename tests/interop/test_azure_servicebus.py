"""azure-servicebus for Python, with a token of LightRail's instead of a shared access signature."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from tests.interop.test_proton_management import token_of
from tests.interop.test_proton_security import admin
from tests.support.amqp.proton_blocking import connected
from tests.support.broker import Broker
from tests.support.namespace import give, subscribe

TAKEN_AT_ONCE = 100


class Credential:
    """Gives tokens as azure-identity's credentials do."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token = token_of(self.broker, "ann", "a password", ttl=600)
        return AccessToken(token, int(time.time()) + 600)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a user; the client says who it is by a token alone, on a connection of nobody's."""
    data: Path = tmp_path_factory.mktemp("azure") / "data"
    admin(data, "user", "add", "ann", password="a password")
    with Broker(data, "--service-bus-auto-create", "true") as started:
        yield started


@pytest.fixture
def client(guarded: Broker) -> Iterator[ServiceBusClient]:
    # Without TLS its name for the broker may have a port; it is what the client's emulator setting does.
    with ServiceBusClient(guarded.amqp, Credential(guarded), use_tls=False, retry_total=0) as made:
        yield made


def bodies(found: list[Any]) -> list[str]:
    return [str(message) for message in found]


def test_a_message_that_is_sent_is_stored_once(client: ServiceBusClient, queue: str) -> None:
    """It asks for receiver-settle-mode second by habit, and waits to be settled all the same."""
    with client.get_queue_sender(queue) as sender:
        for number in range(5):
            sender.send_messages(ServiceBusMessage(f"number {number}"), timeout=10)
    with client.get_queue_receiver(
        queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=0
    ) as receiver:
        found: list[str] = []
        while more := bodies(receiver.receive_messages(TAKEN_AT_ONCE, max_wait_time=2)):
            found += more
    assert found == [f"number {number}" for number in range(5)]


def test_what_is_completed_is_gone_and_what_is_abandoned_comes_again(
    client: ServiceBusClient, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("done"))
        sender.send_messages(ServiceBusMessage("later"))
    with client.get_queue_receiver(queue) as receiver:
        first, second = _two(receiver)
        receiver.complete_message(first)
        receiver.abandon_message(second)
    with client.get_queue_receiver(queue) as receiver:
        (again,) = receiver.receive_messages(TAKEN_AT_ONCE, max_wait_time=10)
        assert str(again) == "later"
        receiver.complete_message(again)
        assert receiver.receive_messages(TAKEN_AT_ONCE, max_wait_time=1) == []


def _two(receiver: Any) -> list[Any]:
    found: list[Any] = []
    while len(found) < 2:
        more = receiver.receive_messages(2 - len(found), max_wait_time=10)
        assert more, f"expected 2 messages, found {len(found)}"
        found += more
    return found


def test_a_list_of_messages_becomes_single_messages(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(f"listed {number}") for number in range(5)])
        batch = sender.create_message_batch()
        for number in range(5):
            lives = timedelta(minutes=number + 1)
            batch.add_message(ServiceBusMessage(f"batched {number}", time_to_live=lives))
        sender.send_messages(batch)
    with client.get_queue_receiver(queue) as receiver:
        found: list[str] = []
        while len(found) < 10:
            more = receiver.receive_messages(TAKEN_AT_ONCE, max_wait_time=10)
            assert more, f"expected 10 messages, found {len(found)}"
            found += bodies(more)
            for message in more:
                receiver.complete_message(message)
    assert found == [f"{kind} {number}" for kind in ("listed", "batched") for number in range(5)]


def test_a_batch_for_a_topic_reaches_each_subscription(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    queues = [f"{queue}/{name}" for name in ("left", "right")]
    give(guarded.data, queue, role="router")
    for each in queues:
        give(guarded.data, each, role="queue")
        subscribe(guarded.data, queue, each)
    with client.get_topic_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    for each in queues:
        with client.get_queue_receiver(each) as receiver:
            assert sorted(bodies(_two(receiver))) == ["one", "two"]


def test_its_messages_are_read_by_other_clients(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("for proton", application_properties={"key": "value"}))
    with connected(f"amqp://ann:a%20password@{guarded.amqp}", allowed_mechs="PLAIN") as connection:
        message = connection.create_receiver(queue).receive(timeout=10)
    assert (bytes(message.body), message.properties) == (b"for proton", {"key": "value"})
