"""The first bytes of a connection: the protocol that a client speaks, and the header of a load balancer.

Protocols: the name of the protocol that a client speaks, by its first bytes, for errors and logs.

The header of the PROXY protocol, versions 1 and 2: the address of a client that a load balancer passes on.

Source: haproxy.org, doc/proxy-protocol.txt (2.1 for the text of version 1, 2.2 for the binary version 2). The
header has no authentication, so it is read only from the sources that the setting proxy_protocol_from lists.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from lightrail.model import limits

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


Address = tuple[str, int]
"""Host and port of a client."""

V1_SIGNATURE: Final = b"PROXY "
V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
LOCAL: Final = b"PROXY UNKNOWN\r\n"
"""The header of a connection that a program opens for itself."""
_V1_END: Final = b"\r\n"
_V1_BYTES: Final = 107
"""Most bytes of a line of version 1, its end included."""
_V1_PARTS: Final = 6
_V2_HEAD_BYTES: Final = 16
"""Signature, version and command, family, and the length of what follows."""
_V2_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""Bytes of an address of TCP over IPv4 and over IPv6."""
_PORTS: Final = 65_536


class ProxyHeaderError(ValueError):
    """Bytes that are no header; the message says what was expected and found."""


class ProxyHeader(NamedTuple):
    """A complete header.

    Attributes:
        size: its bytes; what the client sent begins behind them.
        source: the client's address; None if the connection is the balancer's own (LOCAL, UNKNOWN), or of a
            family without such addresses (Unix sockets, UDP).
    """

    size: int
    source: Address | None


def begins(data: bytes) -> bool:
    """Whether bytes may be the beginning of a header."""
    return any(data.startswith(each) or each.startswith(data) for each in (V1_SIGNATURE, V2_SIGNATURE))


def parse(data: bytes) -> ProxyHeader | None:
    """The header at the beginning of `data`; None while its end is missing. Raises ProxyHeaderError."""
    if data.startswith(V1_SIGNATURE):
        return _text(data)
    if data.startswith(V2_SIGNATURE):
        return _binary(data)
    if not begins(data):
        raise ProxyHeaderError(f"expected a signature of version 1 or 2, found {data[:16]!r}")
    return None


def _text(data: bytes) -> ProxyHeader | None:
    end = data.find(_V1_END, 0, _V1_BYTES)
    if end < 0:
        if len(data) >= _V1_BYTES:
            raise ProxyHeaderError(f"expected a line of at most {_V1_BYTES} bytes, found no end of it")
        return None
    line = data[:end].decode("latin-1")
    parts = line.split(" ")
    size = end + len(_V1_END)
    if parts[1] == "UNKNOWN":
        return ProxyHeader(size, None)
    try:
        if parts[1] not in ("TCP4", "TCP6") or len(parts) != _V1_PARTS:
            raise ValueError
        version = int(parts[1][-1])
        _address(parts[3], version)
        _port(parts[5])
        return ProxyHeader(size, (_address(parts[2], version), _port(parts[4])))
    except ValueError:
        raise ProxyHeaderError(
            f"expected PROXY, TCP4 or TCP6, two addresses of it and two ports, found {line!a}"
        ) from None


def _address(text: str, version: int) -> str:
    found = ip_address(text)
    if found.version != version or "%" in text:
        raise ValueError
    return _plain(found)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) >= _PORTS:
        raise ValueError
    return int(text)


def _binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD_BYTES:
        return None
    version, command = data[12] >> 4, data[12] & 0x0F
    if version != 2 or command > 1:
        raise ProxyHeaderError(f"expected version 2 with command 0 or 1, found {version} with {command}")
    size = _V2_HEAD_BYTES + int.from_bytes(data[14:16])
    if size > limits.PROXY_HEADER_BYTES:
        raise ProxyHeaderError(f"expected at most {limits.PROXY_HEADER_BYTES} bytes, found {size}")
    length = _V2_ADDRESS_BYTES.get(data[13]) if command else None
    needed = _V2_HEAD_BYTES + (0 if length is None else 2 * length + 4)
    if size < needed:
        raise ProxyHeaderError(f"expected at least {needed} bytes for two addresses, found {size}")
    if len(data) < size:
        return None
    if length is None:
        return ProxyHeader(size, None)
    ports = _V2_HEAD_BYTES + 2 * length
    host = ip_address(data[_V2_HEAD_BYTES : _V2_HEAD_BYTES + length])
    return ProxyHeader(size, (_plain(host), int.from_bytes(data[ports : ports + 2])))


def _plain(address: IPv4Address | IPv6Address) -> str:
    """An address as text; one of IPv4 in the form of IPv6 without that form."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Balancers:
    """The sources whose connections begin with a header.

    Args:
        networks: of the setting proxy_protocol_from.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(each) for each in networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: object) -> bool:
        if not self._networks:
            return False
        found = ip_address(str(host).partition("%")[0])
        address = ip_address(_plain(found))
        return any(address in each for each in self._networks)
