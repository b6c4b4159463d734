"""Kombu's messages as AMQP messages, and back: nothing of them is lost, and AMQP's own fields are used."""

from datetime import UTC, datetime
from typing import Any

import pytest
from kombu.exceptions import ChannelError

from lightrail.client import Message
from lightrail.kombu import letters
from lightrail.kombu.names import Names, binding_filter, binding_id, exchange_policy, queue_policy
from lightrail.kombu.transport import tls_context

NAMES = Names.of("/")
DUE = datetime(2030, 1, 31, 12, tzinfo=UTC)


def letter(headers: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "body": "[[1], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers or {},
        "properties": properties,
    }


def there_and_back(sent: dict[str, Any]) -> dict[str, Any]:
    message = letters.encode(sent, "shop", "orders.new", NAMES)
    return letters.decode(Message.decode(message.encode()), NAMES)


@pytest.mark.parametrize(
    "headers",
    [
        {"id": "a", "retries": 0, "eta": None, "ignore_result": False},
        {"timelimit": [None, 5], "stamps": {"a": ["b"]}, "big": 1 << 70},
    ],
)
def test_headers_of_every_type_come_back(headers: dict[str, Any]) -> None:
    assert there_and_back(letter(headers))["headers"] == headers


def test_properties_come_back() -> None:
    properties: dict[str, Any] = {
        "message_id": "m",
        "correlation_id": "c",
        "reply_to": "answers",
        "priority": 7,
        "delivery_mode": 1,
        "expiration": "1500",
        "app_id": "shop",
        "timestamp": 17,
    }
    found = there_and_back(letter(**properties))
    assert found["properties"] == properties
    assert found["body"] == b"[[1], {}, {}]"
    assert (found["content_type"], found["content_encoding"]) == ("application/json", "utf-8")
    assert found["delivery_info"] == {
        "exchange": "shop",
        "routing_key": "orders.new",
        "priority": 7,
        "redelivered": False,
    }


def test_what_amqp_has_a_field_for_is_there() -> None:
    sent = letter({"id": "a"}, reply_to="r", priority=12, delivery_mode=1, expiration="1500")
    message = letters.encode(sent, "shop", "orders.new", NAMES)
    assert (message.to, message.subject) == ("kombu/exchange/shop", "orders.new")
    assert (message.reply_to, message.priority, message.durable, message.ttl) == (
        "kombu/queue/r",
        9,
        False,
        1.5,
    )
    assert message.properties == {"id": "a"}
    direct = letters.encode(letter(), "", "orders", Names.of("shop"))
    assert (direct.to, direct.durable, direct.priority) == ("shop/queue/orders", True, 0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"eta": DUE.isoformat()}, {letters.DELIVERY_TIME: int(DUE.timestamp() * 1000)}),
        ({"eta": DUE}, {letters.DELIVERY_TIME: int(DUE.timestamp() * 1000)}),
        ({"eta": "2030-01-31T12:00:00"}, {}),
        ({"eta": "tomorrow"}, {}),
        ({"x-delay": 250}, {letters.DELIVERY_DELAY: 250}),
        ({}, {}),
    ],
)
def test_the_broker_keeps_what_has_a_time_that_means_one_moment(
    headers: dict[str, Any], expected: dict[str, int]
) -> None:
    assert letters.delays(headers) == expected


def test_delays_can_be_left_to_the_worker() -> None:
    message = letters.encode(letter({"eta": DUE.isoformat()}), "", "q", NAMES, delay=False)
    assert letters.DELIVERY_TIME not in message.annotations


def test_messages_of_other_clients_are_read() -> None:
    found = letters.decode(Message.decode(Message("text", subject="s").encode()), NAMES)
    assert (found["body"], found["headers"]) == ("text", {})
    assert found["delivery_info"]["exchange"] == ""


def test_arguments_of_queues_are_fields_of_their_policy() -> None:
    plain: dict[str, Any] = {"durable": True, "exclusive": False, "auto_delete": False, "delay": True}
    assert queue_policy(**plain, arguments={}, more={}) == {"max_delivery_count": 0, "delay": True}
    limits = {"x-message-ttl": 1500, "x-max-length": 5, "x-max-length-bytes": 99, "x-max-priority": 3}
    assert queue_policy(**plain, arguments=limits, more={"max_delivery_count": 7}) == {
        "max_delivery_count": 7,
        "delay": True,
        "max_age": 1.5,
        "max_length": 5,
        "max_bytes": 99,
        "priorities": 10,
    }
    temporary = {"durable": False, "exclusive": True, "auto_delete": True, "delay": True}
    assert queue_policy(**temporary, arguments={}, more={}) == {
        "max_delivery_count": 0,
        "durable": "never",
        "exclusive": True,
        "lifetime": "last_consumer",
    }


def test_exchanges_refuse_tasks_without_a_queue_and_other_types() -> None:
    assert exchange_policy("direct", True) == {"unroutable": "reject"}
    assert exchange_policy("fanout", True) == exchange_policy("direct", False) == {"unroutable": "drop"}
    with pytest.raises(ChannelError, match="headers"):
        exchange_policy("headers", True)


def test_a_binding_has_one_id_and_a_filter_by_its_type() -> None:
    assert binding_id("q", "k") == binding_id("q", "k") != binding_id("qk", "")
    assert binding_filter("fanout", "k") is None
    assert binding_filter("topic", "a.*") == {"subject": "a.*"}
    assert binding_filter("direct", "a.*") == {"properties": {"subject": "a.*"}}


def test_tls_options_that_are_not_known_are_refused() -> None:
    assert tls_context(False) is None
    assert tls_context(True) is not None
    with pytest.raises(ValueError, match="ciphers"):
        tls_context({"ciphers": "x"})
