"""Disabled entities: what Azure's SDK for Python is refused, and what it may still do."""

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from tests.interop.azure_scene import client_for, key_of, received
from tests.support.broker import Broker
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    server = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    flags = ("--https", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    with Broker(tmp_path_factory.mktemp("status") / "data", "--allow-anonymous", "true", *flags) as broker:
        yield broker


@pytest.fixture(scope="module")
def manager(running: Broker) -> str:
    return key_of(running.data, "manager")


@pytest.fixture
def admin(running: Broker, manager: str, authority: Authority) -> Iterator[ServiceBusAdministrationClient]:
    text = f"Endpoint=sb://{running.ready['https']};{manager}"
    with ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=authority.path, retry_total=0
    ) as made:
        yield made


@pytest.fixture
def client(running: Broker, manager: str) -> Iterator[ServiceBusClient]:
    with client_for(running, manager) as made:
        yield made


def set_status(admin: ServiceBusAdministrationClient, queue: str, status: EntityStatus) -> None:
    found = admin.get_queue(queue)
    found.status = status
    admin.update_queue(found)
    assert admin.get_queue(queue).status == status


def may_send(client: ServiceBusClient, queue: str) -> bool:
    try:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("sent"))
    except MessagingEntityDisabledError:
        return False
    return True


def may_receive(client: ServiceBusClient, queue: str) -> bool:
    try:
        with client.get_queue_receiver(queue) as receiver:
            return bool(receiver.receive_messages(1, max_wait_time=5))
    except MessagingEntityDisabledError:
        return False


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
    ],
)
def test_the_status_of_a_queue_says_what_is_refused(
    admin: ServiceBusAdministrationClient,
    client: ServiceBusClient,
    queue: str,
    status: EntityStatus,
    sends: bool,
    receives: bool,
) -> None:
    admin.create_queue(queue)
    assert may_send(client, queue)
    set_status(admin, queue, status)
    assert may_send(client, queue) is sends
    assert may_receive(client, queue) is receives
    set_status(admin, queue, EntityStatus.ACTIVE)
    assert may_send(client, queue)
    assert may_receive(client, queue)


def test_open_links_end_with_the_status_and_dead_letters_are_still_received(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, queue: str
) -> None:
    admin.create_queue(queue)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        receiver.dead_letter_message(received(receiver, 1)[0])
        set_status(admin, queue, EntityStatus.DISABLED)
        with pytest.raises(MessagingEntityDisabledError):
            receiver.receive_messages(1, max_wait_time=10)
        # This client tells a sender no reason why its link has ended.
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("three"))
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
        assert list(map(str, received(dead, 1))) == ["one"]


def test_a_disabled_subscription_collects_and_a_disabled_topic_takes_nothing(
    admin: ServiceBusAdministrationClient, client: ServiceBusClient, queue: str
) -> None:
    topic = f"{queue}/topic"
    admin.create_topic(topic)
    admin.create_subscription(topic, "all", status=EntityStatus.DISABLED)
    assert admin.get_subscription(topic, "all").status == EntityStatus.DISABLED
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("collected"))
    with (
        pytest.raises(MessagingEntityDisabledError),
        client.get_subscription_receiver(topic, "all") as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=5)
    enabled = admin.get_subscription(topic, "all")
    enabled.status = EntityStatus.ACTIVE
    admin.update_subscription(topic, enabled)
    disabled = admin.get_topic(topic)
    disabled.status = EntityStatus.DISABLED
    admin.update_topic(disabled)
    assert admin.get_topic(topic).status == EntityStatus.DISABLED
    with pytest.raises(MessagingEntityDisabledError), client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("refused"))
    with client.get_subscription_receiver(topic, "all") as receiver:
        assert list(map(str, received(receiver, 1))) == ["collected"]
