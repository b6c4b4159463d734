"""Protocols: named by their first bytes."""

import pytest

from lightrail.model.protocols import described, name_of


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"AMQP\x00\x00\x09\x01", "AMQP 0-9-1"),
        (b"AMQP\x01\x01\x00\x0a", "AMQP 0-10"),
        (b"AMQP\x00\x01\x00\x00", "AMQP 1.0 without SASL"),
        (b"AMQP\x02\x01\x00\x00", "AMQP 1.0 with TLS after its header"),
        (b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd", "MQTT"),
        (b"\x10\x90\x01\x00\x04MQTT\x05\x02", "MQTT"),
        (b"\x10\x0f\x00\x06MQIsdp\x03\x02", "MQTT"),
        (b"GET / HTTP/1.1\r\nHost: h\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP/2"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x16", "TLS"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "the PROXY protocol of a load balancer"),
        (b"CONNECT\naccept-version:1.2\n", "STOMP"),
        (b'CONNECT {"verbose":false}', "NATS"),
        (b"\x00\x00\x01\x2f\x01ActiveMQ\x00", "OpenWire"),
        (b"hello", None),
        (b"", None),
    ],
)
def test_a_protocol_is_known_by_how_it_begins(first: bytes, name: str | None) -> None:
    assert name_of(first) == name


def test_what_is_unknown_is_shown_as_it_came() -> None:
    assert described(b"hello\n\x1b[2J" + bytes(100)) == (
        "no protocol known here, beginning with b'hello\\n\\x1b[2J\\x00\\x00\\x00\\x00\\x00\\x00'"
    )
