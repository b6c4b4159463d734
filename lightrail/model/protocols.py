"""Protocols: the name of the protocol that a client speaks, by its first bytes, for errors and logs."""

from typing import Final

BYTES: Final = 32
"""Bytes that are enough to recognise a protocol."""
PROXY: Final = "the PROXY protocol of a load balancer"
_BY_PREFIX: Final = (
    (b"AMQP\x00\x00\x09", "AMQP 0-9-1"),
    (b"AMQP\x01\x01\x00\x0a", "AMQP 0-10"),
    (b"AMQP\x01\x01\x00\x09", "AMQP 0-9"),
    (b"AMQP\x01\x01\x09", "AMQP 0-9"),
    (b"AMQP\x01\x01\x08", "AMQP 0-8"),
    (b"AMQP\x00\x01\x00\x00", "AMQP 1.0 without SASL"),
    (b"AMQP\x02\x01\x00\x00", "AMQP 1.0 with TLS after its header"),
    (b"AMQP\x03\x01\x00\x00", "AMQP 1.0 with SASL"),
    (b"AMQP", "another version of AMQP"),
    (b"\x16\x03", "TLS"),
    (b"\x16", "TLS"),
    (b"PROXY ", PROXY),
    (b"\r\n\r\n\x00\r\nQUIT\n", PROXY),
    (b"SSH-", "SSH"),
    (b"PRI * HTTP/2", "HTTP/2"),
    (b"CONNECT {", "NATS"),
    (b"STOMP\n", "STOMP"),
    (b"STOMP\r\n", "STOMP"),
    (b"CONNECT\n", "STOMP"),
    (b"CONNECT\r\n", "STOMP"),
)
_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ")
_MQTT: Final = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
"""In an MQTT CONNECT packet, behind the type 0x10 and one to four bytes of length."""
_OPENWIRE: Final = b"\x01ActiveMQ"
"""In an OpenWire packet, behind four bytes of length."""


def name_of(first: bytes) -> str | None:
    """The name of the protocol that begins with these bytes, or None."""
    for prefix, name in _BY_PREFIX:
        if first.startswith(prefix):
            return name
    if first.startswith(_METHODS):
        return "HTTP"
    if first[:1] == b"\x10" and any(first.startswith(_MQTT, at) for at in range(2, 6)):
        return "MQTT"
    return "OpenWire" if first.startswith(_OPENWIRE, 4) else None


def described(first: bytes) -> str:
    """The same for a log; the bytes themselves where the protocol is unknown."""
    return name_of(first) or f"no protocol known here, beginning with {first[:16]!r}"
