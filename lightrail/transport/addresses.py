"""Addresses: the transport for each kind of URL."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit, urlunsplit

from lightrail.transport.loopback import Loopback
from lightrail.transport.memory import MemoryBroker
from lightrail.transport.protocol import Transport
from lightrail.transport.store_forward import StoreForwardTransport

STORE_FORWARD: Final = "store-forward+"
_LOOPBACK: Final = Loopback()
_BROKERS: Final[dict[str, MemoryBroker]] = {}


def memory_broker(name: str) -> MemoryBroker:
    """The broker of this process for the URLs `memory://NAME/…`."""
    return _BROKERS.setdefault(name, MemoryBroker())


async def open_transport(url: str) -> Transport:
    """Opens the transport of a URL.

    | URL | |
    |---|---|
    | `amqp://HOST[:PORT]/NAME`, `amqps://…` | a queue or router of a broker |
    | `ws://HOST[:PORT][/PATH]#NAME`, `wss://…` | the same over WebSocket (extra `websocket`) |
    | `memory://BROKER/NAME` | a queue or router of a broker in this process |
    | `loopback://NAME` | a list in this process, at most once |
    | `udp://GROUP:PORT[?interface=ADDRESS&ttl=1]` | multicast, at most once |
    | `store-forward+URL?outbox=FILE` | a durable outbox in front of any other transport |

    Raises:
        ValueError: the URL is none of these.
        TransportError: the transport could not be opened.
    """
    transport = transport_of(url)
    try:
        await transport.open()
    except BaseException:
        await transport.close()
        raise
    return transport


def transport_of(url: str) -> Transport:
    """The transport of a URL, which is opened at its first use. Raises ValueError."""
    scheme, colon, rest = url.partition("://")
    if scheme.startswith(STORE_FORWARD):
        return _store_forward(f"{scheme.removeprefix(STORE_FORWARD)}://{rest}")
    make = _SCHEMES.get(scheme)
    if make is None or not colon:
        known = ", ".join(sorted(_SCHEMES))
        raise ValueError(
            f"expected the URL of a transport ({known}, or such a URL behind {STORE_FORWARD}), found {url}"
        )
    return make(urlsplit(url))


def _store_forward(url: str) -> Transport:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    files = query.pop("outbox", [])
    if len(files) != 1:
        raise ValueError(f"expected ?outbox=FILE in the URL of a store-forward transport, found {url}")
    left = "&".join(f"{name}={value}" for name, values in query.items() for value in values)
    return StoreForwardTransport(transport_of(urlunsplit(parts._replace(query=left))), files[0])


def _amqp(parts: SplitResult) -> Transport:
    from lightrail.transport.amqp import AmqpBroker, OwnedTransport

    name = _name(parts)
    return OwnedTransport(AmqpBroker(urlunsplit(parts._replace(path="", query="", fragment=""))), name)


def _websocket(parts: SplitResult) -> Transport:
    from lightrail.transport.amqp import AmqpBroker, OwnedTransport

    name = unquote(parts.fragment)
    if not name:
        # The path belongs to the WebSocket, and no server receives a fragment.
        raise ValueError(
            f"expected the name of a queue behind # in the URL, as {parts.scheme}://{parts.hostname}/#orders"
        )
    return OwnedTransport(AmqpBroker(urlunsplit(parts._replace(fragment=""))), name)


def _memory(parts: SplitResult) -> Transport:
    return memory_broker(parts.netloc).transport(_name(parts))


def _loopback(parts: SplitResult) -> Transport:
    return _LOOPBACK.transport(unquote(parts.netloc + parts.path))


def _udp(parts: SplitResult) -> Transport:
    from lightrail.transport.udp import TTL_DEFAULT, UdpTransport

    query = parse_qs(parts.query)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"expected udp://GROUP:PORT, as udp://239.255.7.1:5670, found {parts.geturl()}")
    interface = query.get("interface", ["127.0.0.1"])[0]
    ttl = int(query.get("ttl", [str(TTL_DEFAULT)])[0])
    return UdpTransport(parts.hostname, parts.port, interface=interface, ttl=ttl)


def _name(parts: SplitResult) -> str:
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        raise ValueError(
            f"expected the name of a queue in the URL, as {parts.scheme}://{parts.netloc}/orders"
        )
    return name


_SCHEMES: Final[Mapping[str, Callable[[SplitResult], Transport]]] = {
    "amqp": _amqp,
    "amqps": _amqp,
    "memory": _memory,
    "loopback": _loopback,
    "udp": _udp,
    "ws": _websocket,
    "wss": _websocket,
}
