"""azure-servicebus with connection strings: shared access keys are keys of users, with their rights."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus._pyamqp import cbs
from azure.servicebus._pyamqp.utils import generate_sas_token
from azure.servicebus.exceptions import ServiceBusError
from proton import Message

from tests.interop.azure_scene import client_for, key_of, received
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.amqp.proton_blocking import connected
from tests.support.broker import Broker
from tests.support.namespace import give, subscribe


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with users, where a connection of nobody may come to show its token."""
    data = tmp_path_factory.mktemp("azure") / "data"
    admin(data, "user", "add", "ann", password="a password")
    with Broker(data, "--service-bus-auto-create", "true") as started:
        yield started


def text_of(key: str) -> tuple[str, str]:
    """The name and the key itself."""
    name, _, secret = key.partition(";")
    return name.partition("=")[2], secret.partition("=")[2]


def test_a_connection_string_sends_and_receives(guarded: Broker, queue: str) -> None:
    with client_for(guarded, key_of(guarded.data, "shop")) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        with client.get_queue_receiver(queue) as receiver:
            assert list(map(str, received(receiver, 2))) == ["one", "two"]


def test_a_user_made_for_its_key_has_the_rights_that_it_was_given(guarded: Broker, queue: str) -> None:
    key = key_of(guarded.data, "reader", "--rights", "listen", "--prefix", queue)
    give(guarded.data, queue, role="queue")
    with client_for(guarded, key) as client:
        with client.get_queue_receiver(queue) as receiver:
            assert receiver.receive_messages(max_wait_time=1) == []
        with (
            pytest.raises(ServiceBusError, match="no right to send"),
            client.get_queue_sender(queue) as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))


def test_another_key_signs_nothing(guarded: Broker, queue: str) -> None:
    name, secret = text_of(key_of(guarded.data, "keyed"))
    wrong = secret[:-2] + ("A" if secret[-2] != "A" else "B") + "="
    for user, text in ((name, wrong), ("nobody", secret), ("ann", secret)):
        found = f"SharedAccessKeyName={user};SharedAccessKey={text}"
        with (
            pytest.raises(ServiceBusError),
            client_for(guarded, found) as client,
            client.get_queue_sender(queue) as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))


def test_both_keys_of_a_user_are_good_until_one_is_deleted(guarded: Broker, queue: str) -> None:
    first, second = (key_of(guarded.data, "rotating") for _ in range(2))
    assert first != second
    shown = json.loads(admin(guarded.data, "key", "show", "rotating", "--json"))
    assert [each["key"] for each in shown["keys"]] == [text_of(first)[1], text_of(second)[1]]
    for each in (first, second):
        with client_for(guarded, each) as client, client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x"))
    admin(guarded.data, "key", "delete", "rotating", shown["keys"][0]["id"])
    with (
        pytest.raises(ServiceBusError),
        client_for(guarded, first) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    with client_for(guarded, second) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))


def test_a_plain_client_logs_in_with_a_key_for_its_password(guarded: Broker, queue: str) -> None:
    """As JMS does: the name of the key is the user."""
    name, secret = text_of(key_of(guarded.data, "jms"))
    options = {"user": name, "password": secret, "allow_insecure_mechs": True, "allowed_mechs": "PLAIN"}
    with connected(guarded.amqp, **options) as connection:
        connection.create_sender(queue).send(Message(body="text"))
        receiver = connection.create_receiver(queue)
        assert receiver.receive(timeout=10).body == "text"
        receiver.accept()


def test_a_password_stays_beside_a_key(guarded: Broker) -> None:
    admin(guarded.data, "user", "add", "both", password="first")
    key = key_of(guarded.data, "both")
    admin(guarded.data, "user", "password", "both", password="second")
    assert text_of(key)[1] in admin(guarded.data, "key", "show", "both")
    listed = json.loads(admin(guarded.data, "key", "list", "--json"))["users"]
    assert [len(each["keys"]) for each in listed if each["name"] == "both"] == [1]


@pytest.mark.parametrize("path", ["", "interop", "{queue}"])
def test_a_signature_is_good_for_its_name_and_below(guarded: Broker, queue: str, path: str) -> None:
    name, secret = text_of(key_of(guarded.data, "narrow"))
    send_by(guarded, queue, _expiring(f"sb://{guarded.amqp}/{path.format(queue=queue)}", name, secret, 600))


@pytest.mark.parametrize("path", ["{queue}x", "{queue}/below", "interoperable"])
def test_a_signature_for_another_name_is_refused(guarded: Broker, queue: str, path: str) -> None:
    name, secret = text_of(key_of(guarded.data, "other"))
    token = _expiring(f"sb://{guarded.amqp}/{path.format(queue=queue)}", name, secret, 600)
    with pytest.raises(ServiceBusError):
        send_by(guarded, queue, token)


def send_by(broker: Broker, queue: str, token: AccessToken) -> None:
    client = ServiceBusClient(broker.amqp, AzureSasCredential(token.token), use_tls=False, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))


SHORT_S = 10
"""The client asks for another token when less than a tenth of this is left, in whole seconds."""


class ShortLived:
    """Signs anew whenever it is asked, for so short a time that the client soon asks again.

    Attributes:
        ahead: how far the clock of the client goes before that of the broker, until it asks again.
    """

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key
        self.given = 0
        self.ahead = timedelta()

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        self.given += 1
        self.ahead = timedelta()
        return _expiring(scopes[0], self.name, self.key, SHORT_S)


def _expiring(resource: str, name: str, key: str, seconds: int) -> AccessToken:
    end = int(time.time()) + seconds
    return AccessToken(generate_sas_token(resource, name, key, end), end)  # type: ignore[no-untyped-call]


def test_a_named_key_signs_anew_before_its_token_ends(
    guarded: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, secret = text_of(key_of(guarded.data, "renewing"))
    credential = ShortLived(name, secret)
    monkeypatch.setattr(cbs, "utc_now", lambda: datetime.now(UTC) + credential.ahead)
    client = ServiceBusClient(guarded.amqp, credential, use_tls=False, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))

        def signed_again() -> bool:
            credential.ahead = timedelta(seconds=SHORT_S - 1)
            sender.send_messages(ServiceBusMessage("x"))
            return credential.given > 2

        wait.until(signed_again, "the client signs another token")
    named = AzureNamedKeyCredential(name, secret)
    client = ServiceBusClient(guarded.amqp, named, use_tls=False, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))


def test_a_link_ends_with_its_signature(guarded: Broker, queue: str) -> None:
    name, secret = text_of(key_of(guarded.data, "ending"))
    token = _expiring(f"sb://{guarded.amqp}/{queue}", name, secret, 2).token
    client = ServiceBusClient(guarded.amqp, AzureSasCredential(token), use_tls=False, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))

        def is_refused() -> bool:
            try:
                sender.send_messages(ServiceBusMessage("x"))
            except ServiceBusError:
                return True
            return False

        wait.until(is_refused, "the link is detached")


def test_subscriptions_are_received_from_under_their_topic(guarded: Broker, queue: str) -> None:
    topic, target = f"{queue}/topic", f"{queue}/of the billing"
    give(guarded.data, topic, role="router")
    give(guarded.data, target, role="queue")
    subscribe(guarded.data, topic, target, id="billing")
    with client_for(guarded, key_of(guarded.data, "topical", "--prefix", queue)) as client:
        with client.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with client.get_subscription_receiver(topic, "billing") as receiver:
            assert list(map(str, received(receiver, 1))) == ["x"]
        with (
            pytest.raises(ServiceBusError, match="no such subscription"),
            client.get_subscription_receiver(topic, "shipping") as receiver,
        ):
            receiver.receive_messages(max_wait_time=1)
