"""Azure's administration clients: queues, topics, subscriptions and rules, as azure.md says."""

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from lightrail.namespace.service import Service
from lightrail.service_bus.administration.call import ADMINISTRATION_PAGE_MAX
from tests.interop.azure_scene import client_for, key_of, received
from tests.support import wait
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.namespace import give, give_all, subscribe, with_service

HERE = Path(__file__).parent


class Scene:
    """A broker with https, and a key that manages everything."""

    def __init__(self, broker: Broker, authority: Authority) -> None:
        self.broker = broker
        self.authority = authority
        self.key = key_of(broker.data, "manager")

    def connection_string(self, key: str = "") -> str:
        return f"Endpoint=sb://{self.broker.ready['https']};{key or self.key}"

    def admin(self, key: str = "") -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.connection_string(key), connection_verify=self.authority.path, retry_total=0
        )

    def policies(self, prefix: str) -> dict[str, Any]:
        """The policies of names that are below a prefix, or are the prefix."""

        async def read(service: Service) -> dict[str, Any]:
            return {each.name: each.policy.to_json() for each in service.directory.below(prefix)}

        return with_service(self.broker.data, read)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("administration")
    authority = Authority(folder / "ca")
    server = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    flags = ("--https", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    with Broker(folder / "data", *flags) as broker:
        yield Scene(broker, authority)


@pytest.fixture
def client(scene: Scene) -> Iterator[ServiceBusAdministrationClient]:
    with scene.admin() as made:
        yield made


def test_a_new_queue_has_the_defaults_of_service_bus(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    made = client.create_queue(queue)
    assert (made.lock_duration, made.max_delivery_count) == (timedelta(minutes=1), 10)
    assert (made.max_size_in_megabytes, made.requires_session, made.status) == (1024, False, "Active")
    assert (made.requires_duplicate_detection, made.dead_lettering_on_message_expiration) == (False, False)
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with messages.get_queue_receiver(queue) as receiver:
            assert list(map(str, received(receiver, 1))) == ["one"]


def test_properties_are_the_fields_of_a_policy(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    give(scene.broker.data, f"{queue}/failed", role="queue")
    client.create_queue(
        queue,
        lock_duration=timedelta(seconds=30),
        max_delivery_count=3,
        max_size_in_megabytes=2048,
        default_message_time_to_live="PT1H",
        dead_lettering_on_message_expiration=True,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=5),
        requires_session=True,
        user_metadata="for people",
        forward_dead_lettered_messages_to=f"{queue}/failed",
        max_message_size_in_kilobytes=2048,
    )
    assert scene.policies(queue)[queue] == {
        "role": "queue",
        "lock_duration": 30,
        "max_delivery_count": 3,
        "max_bytes": 2048 * 1024 * 1024,
        "max_age": 3600,
        "duplicate_window": 300,
        "groups": True,
        "delay": True,
        "description": "for people",
        "dead_letter": f"{queue}/failed",
        "max_message_bytes": 2048 * 1024,
    }
    found = client.get_queue(queue)
    assert str(found.forward_dead_lettered_messages_to).endswith(f"/{queue}/failed")
    found.lock_duration = timedelta(minutes=2)
    found.default_message_time_to_live = timedelta(days=1)
    client.update_queue(found, dead_lettering_on_message_expiration=False)
    again = client.get_queue(queue)
    assert (again.lock_duration, again.default_message_time_to_live) == (
        timedelta(minutes=2),
        timedelta(days=1),
    )
    assert again.requires_session
    assert not again.dead_lettering_on_message_expiration


def test_the_time_of_unused_entities_is_shown_as_it_was_sent(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    """As MassTransit creates its entities."""
    days = timedelta(days=427)
    topic = f"{queue}/topic"
    made = client.create_queue(queue, auto_delete_on_idle=days)
    client.create_topic(topic, auto_delete_on_idle=days)
    subscription = client.create_subscription(topic, "s", auto_delete_on_idle="PT5M")
    assert made.auto_delete_on_idle == client.get_topic(topic).auto_delete_on_idle == days
    assert subscription.auto_delete_on_idle == timedelta(minutes=5)
    policies = scene.policies(queue)
    assert policies[queue]["max_idle"] == 427 * 86_400
    assert policies[f"{topic}/Subscriptions/s"]["max_idle"] == 300
    client.update_queue(made, auto_delete_on_idle="PT10M")
    client.update_subscription(topic, subscription, auto_delete_on_idle="PT1H")
    assert client.get_queue(queue).auto_delete_on_idle == timedelta(minutes=10)
    assert client.get_subscription(topic, "s").auto_delete_on_idle == timedelta(hours=1)
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with messages.get_subscription_receiver(topic, "s") as receiver:
            assert list(map(str, received(receiver, 1))) == ["one"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"auto_delete_on_idle": "PT4M"}, "AutoDeleteOnIdle"),
        ({"forward_to": "elsewhere"}, "ForwardTo"),
        ({"lock_duration": timedelta(0)}, "LockDuration"),
        ({"max_delivery_count": 2_000_000}, "MaxDeliveryCount"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(
    client: ServiceBusAdministrationClient, queue: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(HttpResponseError, match=named) as refused:
        client.create_queue(queue, **options)
    assert refused.value.status_code == 400
    with pytest.raises(ResourceNotFoundError):
        client.get_queue(queue)


def test_names_that_are_there_or_not_are_told_apart(
    client: ServiceBusAdministrationClient, queue: str
) -> None:
    for missing in (client.get_queue, client.get_topic, client.delete_queue, client.delete_topic):
        with pytest.raises(ResourceNotFoundError):
            missing(queue)
    made = client.create_queue(queue)
    with pytest.raises(ResourceExistsError):
        client.create_queue(queue)
    with pytest.raises(ResourceExistsError):
        client.create_topic(queue)
    client.delete_queue(queue)
    with pytest.raises(ResourceNotFoundError):
        client.update_queue(made)


def test_lists_come_in_pages(client: ServiceBusAdministrationClient, scene: Scene) -> None:
    names = [f"pages/q{number:03}" for number in range(ADMINISTRATION_PAGE_MAX + 20)]
    give_all(scene.broker.data, names, role="queue")
    found = [each.name for each in client.list_queues()]
    assert [name for name in found if name.startswith("pages/")] == names
    counted = [each for each in client.list_queues_runtime_properties() if each.name in names]
    assert {each.total_message_count for each in counted} == {0}


def test_runtime_properties_count_messages(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    client.create_queue(queue)
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=1))
        with messages.get_queue_receiver(queue) as receiver:
            (first,) = received(receiver, 1)
            receiver.dead_letter_message(first)

    def counted() -> bool:
        found = client.get_queue_runtime_properties(queue)
        counts = (found.active_message_count, found.dead_letter_message_count, found.scheduled_message_count)
        return counts == (1, 1, 1) and found.total_message_count == 3 and bool(found.size_in_bytes)

    wait.until(counted, "the messages are counted")
    with client_for(scene.broker, scene.key) as messages, messages.get_queue_receiver(queue) as receiver:
        receiver.defer_message(received(receiver, 1)[0])
        wait.until(counted, "a deferred message is an active one")
    found = client.get_queue_runtime_properties(queue)
    assert found.created_at_utc == found.updated_at_utc == found.accessed_at_utc
    assert (found.transfer_message_count, found.transfer_dead_letter_message_count) == (0, 0)


def test_what_means_nothing_here_is_shown_as_it_was_sent(
    client: ServiceBusAdministrationClient, queue: str
) -> None:
    sent: dict[str, Any] = {
        "enable_partitioning": True,
        "enable_express": True,
        "enable_batched_operations": False,
    }
    client.create_queue(queue, **sent)
    client.create_topic(f"{queue}/topic", **sent, support_ordering=False, max_size_in_megabytes=5120)
    for _ in range(2):
        found, topic = client.get_queue(queue), client.get_topic(f"{queue}/topic")
        for each in (found, topic):
            assert {name: getattr(each, name) for name in sent} == sent
        assert (topic.support_ordering, topic.max_size_in_megabytes) == (False, 5120)
        client.update_queue(found, max_delivery_count=3)
        client.update_topic(topic, user_metadata="x")


def test_a_topic_finds_duplicates_and_bounds_the_bytes_of_each_subscription(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    topic = client.create_topic(queue, requires_duplicate_detection=True, max_size_in_megabytes=2)
    for name in "ab":
        client.create_subscription(queue, name)
    own = f"{queue}/Subscriptions/a"
    policy = scene.policies(own)[own]
    assert (policy["duplicate_window"], policy["max_bytes"]) == (600, 2 << 20)
    with client_for(scene.broker, scene.key) as messages, messages.get_topic_sender(queue) as sender:
        for text in ("first", "again"):
            sender.send_messages(ServiceBusMessage(text, message_id="one"))
        sender.send_messages(ServiceBusMessage("other", message_id="two"))
        for name in "ab":
            with messages.get_subscription_receiver(queue, name) as receiver:
                for each in received(receiver, 2):
                    assert str(each) in ("first", "other")
                    receiver.complete_message(each)
                assert receiver.peek_messages(1, sequence_number=1) == []
    topic.max_size_in_megabytes = 4
    client.update_topic(topic)
    assert client.get_topic(queue).requires_duplicate_detection
    assert scene.policies(own)[own]["max_bytes"] == 4 << 20


def test_a_topic_counts_its_scheduled_messages(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    client.create_topic(queue)
    assert client.get_topic_runtime_properties(queue).scheduled_message_count == 0
    with client_for(scene.broker, scene.key) as messages, messages.get_topic_sender(queue) as sender:
        numbers = sender.schedule_messages(
            [ServiceBusMessage("one"), ServiceBusMessage("two")], datetime.now(UTC) + timedelta(days=1)
        )
        assert client.get_topic_runtime_properties(queue).scheduled_message_count == 2
        sender.cancel_scheduled_messages(numbers[0])
    assert client.get_topic_runtime_properties(queue).scheduled_message_count == 1
    assert {each.name: each.scheduled_message_count for each in client.list_topics_runtime_properties()}[
        queue
    ] == 1


def test_a_topic_and_its_subscriptions(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    topic = f"{queue}/topic"
    client.create_topic(topic, user_metadata="orders")
    client.create_subscription(topic, "billing", lock_duration="PT30S")
    client.create_subscription(topic, "audit")
    with pytest.raises(ResourceExistsError):
        client.create_subscription(topic, "audit")
    assert [each.name for each in client.list_subscriptions(topic)] == ["audit", "billing"]
    assert client.get_topic_runtime_properties(topic).subscription_count == 2
    assert topic in [each.name for each in client.list_topics()]
    assert not [each for each in client.list_queues() if each.name.startswith(topic)]
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(topic) as sender:
            sender.send_messages(ServiceBusMessage("for both"))
        with messages.get_subscription_receiver(topic, "billing") as receiver:
            assert list(map(str, received(receiver, 1))) == ["for both"]
    assert client.get_subscription_runtime_properties(topic, "audit").active_message_count == 1
    changed = client.get_subscription(topic, "billing")
    assert changed.lock_duration == timedelta(seconds=30)
    changed.max_delivery_count = 7
    client.update_subscription(topic, changed)
    assert scene.policies(topic)[f"{topic}/Subscriptions/billing"]["max_delivery_count"] == 7
    client.delete_subscription(topic, "audit")
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription(topic, "audit")
    client.delete_topic(topic)
    assert scene.policies(queue) == {}


def test_the_time_to_live_of_a_topic_bounds_those_of_messages_and_subscriptions(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    made = client.create_topic(queue, default_message_time_to_live=hour)
    assert made.default_message_time_to_live == hour
    assert scene.policies(queue)[queue] == {"role": "router", "unroutable": "drop", "max_age": 3600}
    client.create_subscription(queue, "long", default_message_time_to_live="P10D")
    client.create_subscription(queue, "short", default_message_time_to_live="PT10M")
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage("none"), ServiceBusMessage("own", time_to_live=minute)])
        for id, life in (("long", hour), ("short", 10 * minute)):
            with messages.get_subscription_receiver(queue, id) as receiver:
                lives = {str(each): each.time_to_live for each in received(receiver, 2)}
                assert abs(lives["none"] - life) < timedelta(seconds=1)
                assert abs(lives["own"] - minute) < timedelta(seconds=1)
    made.default_message_time_to_live = "P10675199DT2H48M5.4775807S"
    client.update_topic(made)
    longest = client.get_topic(queue).default_message_time_to_live
    assert isinstance(longest, timedelta)
    assert longest > timedelta(days=10_000_000)
    assert scene.policies(queue)[queue] == {"role": "router", "unroutable": "drop"}
    client.update_topic(client.get_topic(queue), default_message_time_to_live=minute)
    assert client.get_topic(queue).default_message_time_to_live == minute


def test_subscriptions_to_other_queues_are_shown_as_well(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    topic = f"{queue}/topic"
    give(scene.broker.data, topic, role="router")
    give(scene.broker.data, f"{queue}/target", role="queue", max_delivery_count=4)
    subscribe(scene.broker.data, topic, f"{queue}/target", id="mine", filter={"subject": "a.*"})
    assert client.get_subscription(topic, "mine").max_delivery_count == 4
    (rule,) = client.list_rules(topic, "mine")
    assert isinstance(rule.filter, SqlRuleFilter)
    assert json.loads(str(rule.filter.sql_expression)) == {"subject": "a.*"}
    client.update_rule(topic, "mine", rule)
    client.delete_subscription(topic, "mine")
    assert client.get_queue(f"{queue}/target").max_delivery_count == 4


def test_rules(client: ServiceBusAdministrationClient, scene: Scene, queue: str) -> None:
    topic = f"{queue}/topic"
    client.create_topic(topic)
    client.create_subscription(topic, "all")
    client.create_subscription(topic, "some")
    (default,) = client.list_rules(topic, "some")
    assert (default.name, type(default.filter)) == ("$Default", TrueRuleFilter)
    client.create_rule(topic, "some", "dear", filter=SqlRuleFilter("price > 100"))
    client.create_rule(
        topic,
        "some",
        "red",
        filter=CorrelationRuleFilter(label="order", properties={"colour": "red", "number": 1, "is": True}),
        action=SqlRuleAction("SET sys.Label = 'red order'; REMOVE price"),
    )
    client.create_rule(topic, "some", "never", filter=FalseRuleFilter())
    with pytest.raises(ResourceExistsError):
        client.create_rule(topic, "some", "red", filter=TrueRuleFilter())
    client.delete_rule(topic, "some", "$Default")
    with pytest.raises(ResourceNotFoundError):
        client.get_rule(topic, "some", "$Default")
    assert [each.name for each in client.list_rules(topic, "some")] == ["dear", "red", "never"]
    red = client.get_rule(topic, "some", "red")
    assert isinstance(red.filter, CorrelationRuleFilter)
    assert isinstance(red.action, SqlRuleAction)
    assert (red.filter.label, red.filter.properties) == ("order", {"colour": "red", "number": 1, "is": True})
    assert red.action.sql_expression == "SET sys.Label = 'red order'; REMOVE price"
    assert type(client.get_rule(topic, "some", "never").filter) is FalseRuleFilter
    properties: dict[str | bytes, Any] = {"price": 200, "colour": "red", "number": 1, "is": True}
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(topic) as sender:
            sender.send_messages(
                [
                    ServiceBusMessage("cheap", application_properties={"price": 1}),
                    ServiceBusMessage("dear", application_properties={"price": 101}),
                    ServiceBusMessage("both", subject="order", application_properties=properties),
                ]
            )
        with messages.get_subscription_receiver(topic, "some") as receiver:
            found = [(str(each), each.subject) for each in received(receiver, 3)]
            assert sorted(found, key=str) == [("both", "order"), ("both", "red order"), ("dear", None)]
            assert receiver.receive_messages(max_wait_time=1) == []
    red.filter = SqlRuleFilter("colour = 'red'")
    client.update_rule(topic, "some", red)
    changed = client.get_rule(topic, "some", "red").filter
    assert isinstance(changed, SqlRuleFilter)
    assert changed.sql_expression == "colour = 'red'"
    red.filter = SqlRuleFilter("colour = @colour AND price < @most", {"@colour": "red", "@most": 7})
    client.update_rule(topic, "some", red)
    changed = client.get_rule(topic, "some", "red").filter
    assert isinstance(changed, SqlRuleFilter)
    assert changed.sql_expression == "colour = @colour AND price < @most"
    assert changed.parameters == {"@colour": "red", "@most": 7}


EXPRESSIONS: tuple[tuple[str, dict[str, Any], dict[str, Any] | None], ...] = (
    ("COLOR = 'yellow'", {"Color": "yellow"}, {"color": "Yellow"}),
    ("Quantity * 2 - 1 > 100", {"quantity": 51}, {"quantity": 50}),
    ("property('co' + 'lor') IN ('a' + 'b', size)", {"color": "ab"}, {"color": "a"}),
    (r"[order id] LIKE 'A\_%' ESCAPE '\'", {"Order ID": "A_1"}, {"Order ID": "AB1"}),
    ("EXISTS(color) AND NOT (color = 'red')", {"color": "blue"}, {"size": 1}),
    ("sys.Label = 'l' AND sys.TimeToLive > '00:00:01'", {"a": 1}, None),
    ("1 = 1", {"a": 1}, None),
)
"""Expressions, the properties of a message that matches, and of one that does not."""


def test_rules_have_the_language_of_service_bus(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    client.create_topic(queue)
    for number, (expression, _, _) in enumerate(EXPRESSIONS):
        client.create_subscription(queue, f"s{number}")
        client.delete_rule(queue, f"s{number}", "$Default")
        action = SqlRuleAction("SET Number = number / 2 SET [made by] = newid(); REMOVE gone")
        client.create_rule(queue, f"s{number}", "it", filter=SqlRuleFilter(expression), action=action)
        client.create_rule(queue, f"s{number}", "end", filter=CorrelationRuleFilter(label="end"))
        found = client.get_rule(queue, f"s{number}", "it")
        assert isinstance(found.filter, SqlRuleFilter)
        assert isinstance(found.action, SqlRuleAction)
        assert found.filter.sql_expression == expression
        assert found.action.sql_expression == action.sql_expression
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(queue) as sender:
            for number, (_, matching, other) in enumerate(EXPRESSIONS):
                for body, properties in (("yes", matching), ("no", other)):
                    if properties is not None:
                        own: dict[Any, Any] = {"for": number, "NUMBER": 7, "gone": 1, **properties}
                        sender.send_messages(
                            ServiceBusMessage(
                                body, subject="l", application_properties=own, time_to_live=timedelta(hours=1)
                            )
                        )
            sender.send_messages(ServiceBusMessage("end", subject="end", application_properties={"for": -1}))
        for number in range(len(EXPRESSIONS)):
            with messages.get_subscription_receiver(queue, f"s{number}") as receiver:
                pairs: list[tuple[str, dict[Any, Any]]] = []
                while not pairs or pairs[-1][0] != "end":
                    some = receiver.receive_messages(100, max_wait_time=10)
                    assert some, f"s{number} has no last message after {pairs}"
                    pairs += [(str(each), each.application_properties or {}) for each in some]
            mine = [(body, properties) for body, properties in pairs if properties[b"for"] == number]
            ((body, changed),) = mine
            assert body == "yes"
            assert changed[b"NUMBER"] == 3
            assert isinstance(changed[b"made by"], UUID)
            assert b"gone" not in changed
            assert changed[b"RuleName"] == b"it"


def test_a_message_for_which_a_filter_fails_is_a_dead_letter_unless_the_subscription_says_otherwise(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    client.create_topic(queue)
    for name, dead_letters in (("default", None), ("dropped", False), ("updated", False)):
        made = client.create_subscription(
            queue,
            name,
            default_message_time_to_live=timedelta(hours=1),
            dead_lettering_on_filter_evaluation_exceptions=dead_letters,
        )
        assert made.dead_lettering_on_filter_evaluation_exceptions is (dead_letters is None)
        client.delete_rule(queue, name, "$Default")
        client.create_rule(queue, name, "share", filter=SqlRuleFilter("10 / parts = 5"))
    updated = client.get_subscription(queue, "updated")
    updated.dead_lettering_on_filter_evaluation_exceptions = True
    client.update_subscription(queue, updated)
    assert client.get_subscription(queue, "updated").dead_lettering_on_filter_evaluation_exceptions is True
    assert client.get_subscription(queue, "dropped").dead_lettering_on_filter_evaluation_exceptions is False
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(queue) as sender:
            for parts in (0, 2):
                sender.send_messages(ServiceBusMessage(str(parts), application_properties={"parts": parts}))
        for name, dead in (("default", ["0"]), ("dropped", []), ("updated", ["0"])):
            with messages.get_subscription_receiver(queue, name) as receiver:
                assert [str(each) for each in received(receiver, 1)] == ["2"]
            with messages.get_subscription_receiver(queue, name, sub_queue="deadletter") as receiver:
                found = receiver.receive_messages(2, max_wait_time=3)
                assert [str(each) for each in found] == dead
                for each in found:
                    assert each.dead_letter_reason == "FilterException"
                    assert "division by zero" in str(each.dead_letter_error_description)
                    assert each.dead_letter_source == f"{queue}/Subscriptions/{name}"
                    assert each.time_to_live is None
                    receiver.complete_message(each)


def test_a_filter_is_updated_by_keyword_with_the_parameters_that_the_rule_has(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    """The client sends the values of the former parameters with the new filter."""
    client.create_topic(queue)
    client.create_subscription(queue, "some")
    client.create_rule(
        queue,
        "some",
        "dear",
        filter=SqlRuleFilter("price > @least", parameters={"@least": 100}),
        action=SqlRuleAction("SET colour = @colour", parameters={"@colour": "red"}),
    )
    client.delete_rule(queue, "some", "$Default")
    rule = client.get_rule(queue, "some", "dear")
    assert isinstance(rule.action, SqlRuleAction)
    assert (rule.action.sql_expression, rule.action.parameters) == (
        "SET colour = @colour",
        {"@colour": "red"},
    )
    client.update_rule(
        queue, "some", rule, filter=SqlRuleFilter("price >= @least", parameters={"@least": 100})
    )
    changed = client.get_rule(queue, "some", "dear").filter
    assert isinstance(changed, SqlRuleFilter)
    assert (changed.sql_expression, changed.parameters) == ("price >= @least", {"@least": 100})
    with client_for(scene.broker, scene.key) as messages:
        with messages.get_topic_sender(queue) as sender:
            sender.send_messages(
                [ServiceBusMessage(str(n), application_properties={"price": n}) for n in (99, 100)]
            )
        with messages.get_subscription_receiver(queue, "some") as receiver:
            (found,) = received(receiver, 1)
            assert (str(found), found.application_properties[b"colour"]) == ("100", b"red")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"filter": SqlRuleFilter("price >")}, "expected"),
        (
            {"filter": SqlRuleFilter("price > @least", parameters={"@most": 1})},
            "a value for every parameter",
        ),
        ({"filter": SqlRuleFilter("price / 2 = = 3")}, "at character 13"),
        ({"filter": TrueRuleFilter(), "action": SqlRuleAction("SET a = b + ")}, "at character 13"),
        ({"filter": TrueRuleFilter(), "action": SqlRuleAction("SET sys.Size = 'x'")}, "one of sys."),
        ({"filter": CorrelationRuleFilter()}, "at least one field"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(
    client: ServiceBusAdministrationClient, queue: str, options: dict[str, Any], said: str
) -> None:
    client.create_topic(queue)
    client.create_subscription(queue, "some")
    with pytest.raises(HttpResponseError, match=said) as refused:
        client.create_rule(queue, "some", "bad", **options)
    assert refused.value.status_code == 400
    assert [each.name for each in client.list_rules(queue, "some")] == ["$Default"]


def test_who_does_not_manage_a_name_is_refused(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    client.create_queue(queue)
    key = key_of(scene.broker.data, "sender", "--rights", "send", "--prefix", queue)
    with scene.admin(key) as other:
        for refused in (other.get_queue, other.delete_queue, other.create_topic):
            with pytest.raises(ClientAuthenticationError):
                refused(queue)
        with pytest.raises(ClientAuthenticationError):
            other.get_namespace_properties()
        assert list(other.list_queues()) == []
    wrong = scene.key[:-3] + ("A" if scene.key[-3] != "A" else "B") + scene.key[-2:]
    with scene.admin(wrong) as other, pytest.raises(ClientAuthenticationError):
        other.get_queue(queue)


class Narrow(ServiceBusSharedKeyCredential):
    """Signs for one name, and for those to which the client forwards messages unless `only` is set."""

    def __init__(self, scene: Scene, name: str, *, only: bool) -> None:
        user, key = (each.partition("=")[2] for each in scene.key.split(";"))
        super().__init__(user, key)
        self.resource = f"sb://{scene.broker.ready['https']}/{name}"
        self.only = only

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        """The token of the request, whose scope is the host, or of a name that it forwards to."""
        is_request = scopes[0].startswith("https://")
        return super().get_token(self.resource if is_request or self.only else scopes[0])


@pytest.mark.parametrize("only", [True, False])
def test_dead_letters_go_to_a_name_for_which_the_client_signs_as_well(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str, only: bool
) -> None:
    client.create_queue(f"{queue}/failed")
    credential: Any = Narrow(scene, f"{queue}/one", only=only)
    with ServiceBusAdministrationClient(
        scene.broker.ready["https"], credential, connection_verify=scene.authority.path, retry_total=0
    ) as narrow:
        narrow.create_queue(f"{queue}/one")
        found = narrow.get_queue(f"{queue}/one")
        found.forward_dead_lettered_messages_to = f"{queue}/failed"
        if only:
            with pytest.raises(ClientAuthenticationError):
                narrow.update_queue(found)
            with pytest.raises(ClientAuthenticationError):
                narrow.create_topic(f"{queue}/topic")
        else:
            narrow.update_queue(found)
    target = scene.policies(f"{queue}/one")[f"{queue}/one"].get("dead_letter")
    assert target == (None if only else f"{queue}/failed")


def test_a_target_that_is_not_there_and_a_name_that_nothing_has_are_not_found(
    client: ServiceBusAdministrationClient, queue: str
) -> None:
    missing: dict[str, Any] = {"forward_dead_lettered_messages_to": f"{queue}/missing"}
    with pytest.raises(HttpResponseError, match=f"{queue}/missing' does not exist") as refused:
        client.create_queue(f"{queue}/one", **missing)
    assert refused.value.status_code == 400
    client.create_queue(f"{queue}/one")
    found = client.get_queue(f"{queue}/one")
    found.forward_dead_lettered_messages_to = f"{queue}/missing"
    with pytest.raises(HttpResponseError, match="does not exist"):
        client.update_queue(found)
    client.create_topic(f"{queue}/topic")
    with pytest.raises(HttpResponseError, match="does not exist"):
        client.create_subscription(f"{queue}/topic", "s", **missing)
    assert list(client.list_subscriptions(f"{queue}/topic")) == []
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("$nservicebus-verification-queue")


def test_dead_letters_go_to_the_name_that_exists_whatever_its_case(
    client: ServiceBusAdministrationClient, scene: Scene, queue: str
) -> None:
    target, other = f"{queue}/Failed", f"{queue}/FAILED"
    client.create_queue(target)
    client.create_queue(f"{queue}/one", forward_dead_lettered_messages_to=other)
    client.create_queue(f"{queue}/two")
    found = client.get_queue(f"{queue}/two")
    found.forward_dead_lettered_messages_to = other
    client.update_queue(found)
    client.create_topic(f"{queue}/topic")
    made = client.create_subscription(f"{queue}/topic", "s", forward_dead_lettered_messages_to=other)
    assert str(made.forward_dead_lettered_messages_to).endswith(f"/{target}")
    for name in ("one", "two"):
        assert scene.policies(f"{queue}/{name}")[f"{queue}/{name}"]["dead_letter"] == target


def test_the_namespace_has_a_name(client: ServiceBusAdministrationClient, scene: Scene, queue: str) -> None:
    client.create_queue(queue)
    found = client.get_namespace_properties()
    assert (found.name, found.messaging_sku, found.namespace_type) == (
        scene.broker.ready["https"],
        "Standard",
        "Messaging",
    )


def test_the_client_for_javascript_does_the_same(scene: Scene, queue: str) -> None:
    assert (HERE / "node_modules" / "@azure" / "service-bus").is_dir(), "run scripts/setup.sh test"
    amqp = f"Endpoint=sb://{scene.broker.amqp};{scene.key}"
    done = subprocess.run(
        ["node", str(HERE / "azure" / "administration.mjs"), scene.connection_string(), amqp, queue],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"NODE_EXTRA_CA_CERTS": scene.authority.path},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "made": [f"{queue}/js", "PT30S", 10, "Active", False],
        "again": ["MessageEntityAlreadyExistsError", 409],
        "missing": [False, "MessageEntityNotFoundError", 404],
        "refused": ["ServiceError", 400, True],
        "updated": [4, "PT30S"],
        "counts": [0, 0, 0],
        "queues": [f"{queue}/js"],
        "subscription": ["first", f"{queue}/topic", "only"],
        "subscriptions": ["first", "second"],
        "rules": [
            ["only", "a = 1", "SET sys.Label = 'x'"],
            ["equal", {"colour": "red", "number": 1.5, "at": "2000-01-01T00:00:00.000Z"}, None],
        ],
        "updatedRule": ["order", None],
        "topic": [f"{queue}/topic", 2],
        "namespace": scene.broker.ready["https"],
        "left": [False, False],
        "already": "MessagingEntityAlreadyExists",
        "managed": [
            ["red", {"applicationProperties": {"colour": "red"}}, {"sqlExpression": "SET sys.Label = 'r'"}],
            ["dear", {"sqlExpression": "price > 100"}, {}],
        ],
        "unreadable": True,
        "copies": [["red", None], ["red", "r"]],
        "authorized": [["own", "p" * 44, "s" * 44, ["Manage", "Send", "Listen"]]],
        "owned": ["First", 401],
        "disowned": [401, None],
    }
