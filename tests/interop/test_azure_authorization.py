"""AuthorizationRules of queues and topics: the SDKs for .NET and Python, and AMQP clients with name and key.

The broker has two frontends: what one process wrote, another one checks.
"""

import base64
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, LinkDetached

from tests.interop.azure_scene import administration_string, client_for, key_of, received
from tests.interop.programs import in_csharp
from tests.interop.test_proton_security import admin
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.http_client import Http

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)
KEY, OTHER = "p" * 43 + "=", "s" * 43 + "="


@dataclass
class Scene:
    broker: Broker
    authority: Authority
    key: str

    def admin(self, credential: Any = None) -> ServiceBusAdministrationClient:
        if credential is not None:
            return ServiceBusAdministrationClient(
                self.broker.ready["https"],
                credential,
                connection_verify=self.authority.path,
                retry_total=0,
            )
        return ServiceBusAdministrationClient.from_connection_string(
            f"Endpoint=sb://{self.broker.ready['https']};{self.key}",
            connection_verify=self.authority.path,
            retry_total=0,
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("authorization")
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    flags = ("--https", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    key = key_of(folder / "data", "manager")
    with Broker(folder / "data", "--frontends", "2", *flags) as broker:
        yield Scene(broker, authority, key)


def rule(
    name: str, *rights: str, primary: str | None = KEY, secondary: str | None = OTHER
) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        primary_key=primary,
        secondary_key=secondary,
    )


def parts(rules: Any) -> list[tuple[Any, ...]]:
    """What a client compares of rules."""
    return [
        (
            each.type,
            each.claim_type,
            each.claim_value,
            each.rights,
            each.key_name,
            each.primary_key,
            each.secondary_key,
        )
        for each in rules
    ]


def rules_of(entity: Any) -> list[AuthorizationRule]:
    found: list[AuthorizationRule] = entity.authorization_rules
    return found


def string(name: str, key: str) -> str:
    return f"SharedAccessKeyName={name};SharedAccessKey={key}"


class Signing(ServiceBusSharedKeyCredential):
    """Signs for one entity, where the client signs for everything."""

    def __init__(self, name: str, key: str, entity: str) -> None:
        super().__init__(name, key)
        self.entity = entity

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return super().get_token(f"sb://broker/{self.entity}")


def signed(key: str, resource: str, name: str) -> str:
    sr, end = quote_plus(resource), int(time.time()) + 600
    digest = hmac.digest(key.encode(), f"{sr}\n{end}".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn={name}"


def test_the_client_for_net_compares_uses_changes_and_removes_rules(scene: Scene) -> None:
    broker = scene.broker
    found = in_csharp(
        "Authorization", administration_string(broker, scene.key), f"Endpoint=sb://{broker.amqp}", "net"
    )
    assert found["same"] == [True] * 4
    assert found["used"] == ["one", "two", "two"]
    assert found["refused"] == ["UnauthorizedAccessException"] * 6
    assert found["topic"] == ["topic", "True"]
    assert found["changed"]
    assert found["rotated"] == ["UnauthorizedAccessException", "three"]
    assert found["cleared"] == ["0", "UnauthorizedAccessException"]


def test_the_client_for_python_reads_the_rules_that_it_wrote(scene: Scene) -> None:
    with scene.admin() as client:
        wanted = [rule("z", "Send"), rule("a", "Listen", "Send", primary="q" * 44)]
        made = client.create_queue("py/compared", authorization_rules=wanted)
        assert parts(made.authorization_rules) == [
            (*parts(wanted)[0],),
            (*parts(wanted)[1][:3], ["Send", "Listen"], *parts(wanted)[1][4:]),
        ]
        assert all(each.created_at_utc == each.modified_at_utc for each in rules_of(made))
        got = client.get_queue("py/compared")
        assert parts(got.authorization_rules) == parts(made.authorization_rules)
        (listed,) = (each for each in client.list_queues() if each.name == "py/compared")
        assert parts(listed.authorization_rules) == parts(made.authorization_rules)
        got.max_delivery_count = 4
        client.update_queue(got)
        kept = client.get_queue("py/compared")
        assert (kept.max_delivery_count, parts(kept.authorization_rules)) == (
            4,
            parts(got.authorization_rules),
        )
        kept.authorization_rules = [rule("new", "Manage", primary=None, secondary=None)]
        client.update_queue(kept)
        (new,) = rules_of(client.get_queue("py/compared"))
        assert new.rights == ["Manage", "Send", "Listen"]
        assert new.primary_key != new.secondary_key
        assert len(base64.b64decode(str(new.primary_key))) == 32
        with pytest.raises(HttpResponseError, match="PrimaryKey of the authorization rule short"):
            client.create_queue("py/refused", authorization_rules=[rule("short", "Send", primary="abc")])
        assert "py/refused" not in [each.name for each in client.list_queues()]


def test_both_keys_of_a_topic_are_good_at_its_subscriptions_and_nowhere_else(scene: Scene) -> None:
    with scene.admin() as client:
        rules = [rule("over", "Manage", "Send", "Listen")]
        client.create_topic("py/Topic", authorization_rules=rules)
        client.create_subscription("py/Topic", "Billing")
        client.create_queue("py/apart")
        client.create_queue("py/Topic/below")
    for key, topic in ((KEY, "py/Topic"), (OTHER, "py/topic")):
        with client_for(scene.broker, string("over", key)) as bus:
            with bus.get_topic_sender(topic) as sender:
                sender.send_messages(ServiceBusMessage(key))
                sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=1))
            with bus.get_subscription_receiver(topic, "billing") as receiver:
                (message,) = received(receiver, 1)
                assert str(message) == key
                receiver.dead_letter_message(message, "reason")
            with bus.get_subscription_receiver(
                topic, "billing", sub_queue=ServiceBusSubQueue.DEAD_LETTER
            ) as letters:
                (letter,) = received(letters, 1)
                letters.complete_message(letter)
            for queue in ("py/apart", "py/Topic/below"):
                with pytest.raises(ServiceBusError), bus.get_queue_sender(queue) as sender:
                    sender.send_messages(ServiceBusMessage("x"))
                with pytest.raises(ServiceBusError), bus.get_queue_receiver(queue) as receiver:
                    receiver.peek_messages()


def test_a_manager_by_a_rule_administers_its_entity_alone(scene: Scene) -> None:
    every = rule("all", "Manage", "Send", "Listen")
    with scene.admin() as client:
        client.create_topic("py/managed", authorization_rules=[every])
        client.create_queue("py/source", authorization_rules=[every])
        client.create_queue("py/target")
    with scene.admin(Signing("all", KEY, "py/managed")) as manager:
        manager.create_subscription("py/managed", "mine")
        manager.create_rule("py/managed", "mine", "everything")
        assert [each.name for each in manager.list_subscriptions("py/managed")] == ["mine"]
        assert parts(manager.get_topic("py/managed").authorization_rules) == parts([every])
        for refused in (
            lambda: manager.get_queue("py/source"),
            lambda: manager.get_queue("py/target"),
            lambda: manager.create_queue("py/managed/below"),
            lambda: manager.create_queue("py/another"),
            lambda: list(manager.list_queues()),
            lambda: manager.get_namespace_properties(),
            lambda: manager.create_subscription("py/managed", "out", forward_to="sb://broker/py/target"),
        ):
            with pytest.raises(ClientAuthenticationError):
                refused()
        manager.delete_topic("py/managed")
    with scene.admin(Signing("all", OTHER, "py/source")) as manager:
        source = manager.get_queue("py/source")
        source.forward_to = "sb://broker/py/target"
        with pytest.raises(ClientAuthenticationError):
            manager.update_queue(source)
        source.forward_to = None
        source.forward_dead_lettered_messages_to = "sb://broker/py/target"
        with pytest.raises(ClientAuthenticationError):
            manager.update_queue(source)


def test_name_and_key_log_in_by_plain_and_by_basic_for_the_entity_alone(scene: Scene) -> None:
    with scene.admin() as client:
        client.create_queue("py/plain", authorization_rules=[rule("plain", "Send", "Listen")])
        client.create_queue("py/closed")
        client.create_topic("py/plain.t", authorization_rules=[rule("plain", "Send", "Listen")])
        client.create_subscription("py/plain.t", "s")
    with client_for(scene.broker, string("plain", KEY)) as bus, bus.get_topic_sender("py/plain.t") as sender:
        sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=1))

    def connected(key: str) -> BlockingConnection:
        return BlockingConnection(
            f"amqp://{scene.broker.amqp}",
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            user="plain",
            password=key,
            timeout=20,
        )

    for key in (KEY, OTHER):
        connection = connected(key)
        connection.create_sender("py/plain").send(Message(body=key))
        receiver = connection.create_receiver("py/plain")
        assert receiver.receive(20).body == key
        receiver.accept()
        for create in (connection.create_sender, connection.create_receiver):
            for name in ("py/closed", "py/unknown", "py/plain/below"):
                with pytest.raises(LinkDetached, match="end at the entity"):
                    create(name)
        connection.create_receiver("py/plain.t/Subscriptions/s").close()
        for create, name in (
            (connection.create_sender, "py/plain.t/Subscriptions/s"),
            (connection.create_sender, "py/plain/$dlq"),
            (connection.create_sender, "py/plain.t/$scheduled"),
            (connection.create_receiver, "py/plain.t/$scheduled"),
        ):
            with pytest.raises(LinkDetached, match="gives no right"):
                create(name)
        connection.close()
    with pytest.raises(ConnectionException, match="Authentication failed"):
        connected(KEY + "x")
    basic = {"Authorization": "Basic " + base64.b64encode(f"plain:{KEY}".encode()).decode()}
    with Http(scene.broker.http) as http:
        assert http("POST", "/py/plain", b"by http", basic).status in (201, 202, 204)
        assert http("POST", "/py/closed", b"by http", basic).status == 403
        assert http("POST", "/!tokens", b"{}", basic).status == 403
        token = {"Authorization": signed(OTHER, "sb://broker/py/plain", "plain")}
        assert http("POST", "/py/plain", b"signed", token).status in (201, 202, 204)
        assert http("POST", "/py/closed", b"signed", token).status == 401


def test_a_link_ends_with_its_rule_by_whatever_it_came_and_the_other_rules_stay(scene: Scene) -> None:
    data = scene.broker.data
    rules = [rule("going", "Listen"), rule("staying", "Listen", primary="t" * 44)]
    with scene.admin() as client:
        client.create_topic("py/ending", authorization_rules=rules)
        client.create_subscription("py/ending", "one")
        plain: dict[str, Any] = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True, "timeout": 20}
        connections = {
            name: BlockingConnection(f"amqp://{scene.broker.amqp}", user=name, password=key, **plain)
            for name, key in (("going", KEY), ("staying", "t" * 44))
        }
        receivers = {
            name: each.create_receiver("py/ending/Subscriptions/one") for name, each in connections.items()
        }
        shown = [{"name": "py/ending", "rule": name, "rights": ["listen"]} for name in ("going", "staying")]
        assert json.loads(admin(data, "key", "rules", "py/ending", "--json")) == {"rules": shown}
        assert "py/ending\tgoing\tlisten\n" in admin(data, "key", "rules")
        assert "links that were open by it end" in admin(data, "key", "delete-rule", "py/ending", "going")
        with pytest.raises(AssertionError, match="has no authorization rule 'going'"):
            admin(data, "key", "delete-rule", "py/ending", "going")
        assert [each.key_name for each in rules_of(client.get_topic("py/ending"))] == ["staying"]
        with pytest.raises(LinkDetached, match="unauthorized-access"):
            receivers["going"].receive(20)
        with pytest.raises(LinkDetached, match="no right"):
            connections["going"].create_receiver("py/ending/Subscriptions/one")
        with client_for(scene.broker, scene.key) as bus, bus.get_topic_sender("py/ending") as sender:
            sender.send_messages(ServiceBusMessage("stays"))
        assert receivers["staying"].receive(20).body is not None
        for each in connections.values():
            each.close()


def test_no_key_is_in_the_clear_in_files_logs_definitions_or_policies(scene: Scene) -> None:
    secret = "clear0text0key0that0nobody0reads0in0files=="
    with scene.admin() as client:
        client.create_queue("py/hidden", authorization_rules=[rule("hidden", "Send", primary=secret)])
        assert rules_of(client.get_queue("py/hidden"))[0].primary_key == secret
    with (
        client_for(scene.broker, string("hidden", secret)) as bus,
        bus.get_queue_sender("py/hidden") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
    name, _, key = scene.key.removeprefix("SharedAccessKeyName=").partition(";SharedAccessKey=")
    basic = {"Authorization": "Basic " + base64.b64encode(f"{name}:{key}".encode()).decode()}
    with Http(scene.broker.http) as http:
        exported = http("GET", "/!definitions", headers=basic).body.decode()
        policy = http("GET", "/py/hidden/!policy", headers=basic).body.decode()
    assert '"py/hidden"' in exported
    assert "hidden" not in exported.replace("py/hidden", "") + policy
    for path in scene.broker.data.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    assert secret not in scene.broker.said()
