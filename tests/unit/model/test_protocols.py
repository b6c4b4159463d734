"""Protocols: named by their first bytes."""

import pytest

from lightrail.model import limits
from lightrail.model.protocols import (
    LOCAL,
    V2_SIGNATURE,
    Balancers,
    ProxyHeader,
    ProxyHeaderError,
    begins,
    described,
    name_of,
    parse,
)


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


V4 = bytes([203, 0, 113, 7, 10, 0, 0, 1]) + (40_000).to_bytes(2) + (5_672).to_bytes(2)
V6 = bytes.fromhex("20010db8000000000000000000000007") * 2 + V4[8:]
MAPPED = bytes(10) + b"\xff\xff" + V4[:4] + bytes(16) + V4[8:]
UNIX = b"/run/client".ljust(216, b"\x00")
FIELDS = b"\x04\x00\x05\x00\x00\x00\x00\x00"
"""PP2_TYPE_NOOP, one of the fields behind the addresses."""


def binary(command: int, family: int, body: bytes, length: int | None = None) -> bytes:
    """A header of version 2."""
    size = len(body) if length is None else length
    return V2_SIGNATURE + bytes([0x20 | command, family]) + size.to_bytes(2) + body


HEADERS = [
    (b"PROXY TCP4 203.0.113.7 10.0.0.1 40000 5672\r\n", ("203.0.113.7", 40_000)),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 65535 0\r\n", ("2001:db8::7", 65_535)),
    (b"PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2\r\n", ("203.0.113.7", 1)),
    (b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n", None),
    (LOCAL, None),
    (binary(1, 0x11, V4), ("203.0.113.7", 40_000)),
    (binary(1, 0x11, V4 + FIELDS), ("203.0.113.7", 40_000)),
    (binary(1, 0x21, V6), ("2001:db8::7", 40_000)),
    (binary(1, 0x21, MAPPED), ("203.0.113.7", 40_000)),
    (binary(0, 0x00, b""), None),
    (binary(0, 0x11, V4), None),
    (binary(1, 0x00, FIELDS), None),
    (binary(1, 0x12, V4), None),
    (binary(1, 0x31, UNIX), None),
    (binary(1, 0xFF, b""), None),
    (binary(1, 0x11, V4.ljust(limits.PROXY_HEADER_BYTES - 16, b"\x00")), ("203.0.113.7", 40_000)),
]


@pytest.mark.parametrize(("header", "source"), HEADERS)
def test_every_cut_of_a_header_waits_for_its_end(header: bytes, source: tuple[str, int] | None) -> None:
    for end in range(len(header)):
        assert parse(header[:end]) is None
        assert begins(header[:end])
    assert parse(header) == ProxyHeader(len(header), source)
    for behind in (b"AMQP\x03\x01\x00\x00", b"\x16\x03\x01", header):
        assert parse(header + behind) == ProxyHeader(len(header), source)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"AMQP\x03\x01\x00\x00", "expected a signature"),
        (b"PROXZ", "expected a signature"),
        (b"\r\n\r\n\r\n", "expected a signature"),
        (b"PROXY " + b"x" * 101, "a line of at most 107 bytes"),
        (b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n", "a line of at most 107 bytes"),
        (b"PROXY \r\n", "expected PROXY, TCP4 or TCP6"),
        (b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n", "expected PROXY, TCP4 or TCP6"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "two ports"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n", "two ports"),
        (b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n", "two ports"),
        (b"PROXY TCP4 ::1 ::1 1 2\r\n", "two addresses"),
        (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "two addresses"),
        (b"PROXY TCP6 fe80::1%x fe80::2 1 2\r\n", "two addresses"),
        (b"PROXY TCP4 1.2.3.4 name 1 2\r\n", "two addresses"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n", "two ports"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n", "two ports"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 000001 2\r\n", "two ports"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 \xb2 2\r\n", "two ports"),
        (V2_SIGNATURE + b"\x11\x11\x00\x0c", "expected version 2"),
        (binary(2, 0x11, V4), "command 0 or 1, found 2 with 2"),
        (binary(1, 0x11, V4[:-1]), "at least 28 bytes for two addresses, found 27"),
        (binary(1, 0x21, V4), "at least 52 bytes"),
        (binary(1, 0x11, b"", limits.PROXY_HEADER_BYTES - 15), "at most 4096 bytes, found 4097"),
        (binary(0, 0x00, b"", 65_535), "at most 4096 bytes, found 65551"),
    ],
)
def test_what_is_no_header_is_refused_as_soon_as_it_is_known(data: bytes, why: str) -> None:
    with pytest.raises(ProxyHeaderError, match=why):
        parse(data)


def test_balancers_are_found_in_every_form_of_their_address() -> None:
    balancers = Balancers(("10.0.0.0/8", "2001:db8::/32", "192.0.2.1/32"))
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "192.0.2.1"):
        assert host in balancers
    for host in ("11.0.0.1", "::1", "192.0.2.2", "fe80::1%eth0"):
        assert host not in balancers
    assert balancers
    assert not Balancers(())
