"""Hosts, ports and URLs: where a process listens or connects, and what the gateway may push to.

Endpoints: hosts with ports, and the parsers of their texts.

Destinations: the URLs that the gateway may push to.

A manager of a router chooses URLs, and the gateway calls them from its own network: behind a firewall, beside
services that trust their neighbours, such as etcd's JSON gateway. So the operator lists allowed hosts in
`push_allow`; by default there are none.
"""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

LOCAL: Final = "this machine"
"""The source of clients that connect without a network."""


class Endpoint(NamedTuple):
    """A host and a port to listen at or connect to. Port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True when nobody outside of this machine can reach it."""
        return is_loopback(self.host)

    @property
    def reachable(self) -> "Endpoint":
        """The same for a client on this machine: the wildcard address becomes the loopback one."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self
        if not address.is_unspecified:
            return self
        return Endpoint("127.0.0.1" if address.version == 4 else "::1", self.port)


@lru_cache(maxsize=4_096)
def source_of(address: str | None) -> str:
    """The source of an address: the address itself, or for IPv6 the network of one customer."""
    if address is None:
        return LOCAL
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and addresses of the loopback network; any other name counts as outside."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and bool(mapped.is_loopback))


def endpoint(text: str) -> Endpoint:
    """``HOST:PORT`` or ``[IPV6]:PORT``."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # the end of an IPv6 address without brackets is ambiguous
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:5672 or [::1]:5672")
    return Endpoint(host, int(port))


def host_name(text: str) -> str:
    """An address or host name without a port."""
    if not text.strip() or text != text.strip() or "/" in text:
        raise ValueError("an address or host name without a port, such as 127.0.0.1")
    return text.strip("[]")


def endpoint_or_host(text: str) -> Endpoint:
    """``HOST``, whose port is the system's choice, or ``HOST:PORT``."""
    host = text.strip()
    if host.count(":") == 1 or "]:" in host:
        return endpoint(host)
    return Endpoint(host_name(host), 0)


def endpoints(text: str) -> tuple[Endpoint, ...]:
    """``HOST:PORT`` separated by commas; a URL's ``http://`` is no part of it."""
    found = tuple(endpoint(each) for each in text.split(",") if each.strip())
    if any(each.port == 0 or "/" in each.host for each in found):
        raise ValueError(
            "HOST:PORT separated by commas, without http://, such as 10.0.0.1:2379,10.0.0.2:2379"
        )
    return found


PUSH_URL_BYTES: Final[int] = 2_048
PUSH_ALLOW_MAX: Final[int] = 1_000
"""Patterns in the setting push_allow."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PATTERNS: Final = (
    "host names, *.DOMAIN, IP addresses, networks such as 10.0.0.0/8, or * for every public host, separated "
    "by commas"
)
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._")


def parse_patterns(text: str) -> tuple[str, ...]:
    """The patterns of a setting. Raises ValueError with what is allowed."""
    patterns = tuple(each.strip().lower().strip("[]") for each in text.split(",") if each.strip())
    if len(patterns) > PUSH_ALLOW_MAX or not all(_is_pattern(each) for each in patterns):
        raise ValueError(PATTERNS)
    return patterns


def _is_pattern(pattern: str) -> bool:
    if pattern == "*" or _network(pattern) is not None:
        return True
    return _is_name(pattern.removeprefix("*."))


class Destinations:
    """The hosts that `push_allow` allows; an empty list allows none."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = tuple(patterns)
        self._networks = [found for each in patterns if (found := _network(each)) is not None]
        self._names = frozenset(each for each in patterns if _network(each) is None and "*" not in each)
        self._domains = tuple(each[1:] for each in patterns if each.startswith("*."))
        self._public = "*" in patterns

    def problem(self, url: str) -> str | None:
        """Why a URL may not be called, or None."""
        shown = ascii(url[:120])
        if (
            len(url) > PUSH_URL_BYTES
            or not url.isascii()
            or not url.isprintable()
            or set(url) & set(' \\"<>')
        ):
            return (
                f"the URL {shown} has characters that need to be percent-encoded, or more than "
                f"{PUSH_URL_BYTES} of them"
            )
        try:
            parts = urlsplit(url)
            host, _port = parts.hostname, parts.port
        except ValueError as error:
            return f"the URL {shown} can't be read: {error}"
        if parts.scheme not in ("http", "https") or not host:
            return f"the URL {shown} has no host; expected http://HOST/PATH or https://HOST/PATH"
        if parts.username is not None or parts.password is not None:
            return "a URL to push to holds no user and password: all who see the subscription would see them"
        if not self.allows_host(host):
            return (
                f"{host} may not be called: push_allow, a setting of lightrail serve, allows "
                + (", ".join(self._patterns) if self._patterns else "no host (it is empty)")
                + f"; an operator adds {host} to it"
            )
        return None

    def allows_host(self, host: str) -> bool:
        """Whether a host may be called. A name that only a wildcard allows also needs `allows_address`."""
        host = host.lower()
        address = _address(host)
        if address is not None:
            return self._allows_address(address)
        if not _is_name(host):
            return False
        return host in self._names or self._is_wild(host)

    def allows(self, host: str, address: str) -> bool:
        """Whether an allowed name may be called at the address that it resolves to.

        A name in the list may have any address. A name that only a wildcard allows needs a public address, or
        one of a listed network, because its owner decides where it points.
        """
        found = _address(address)
        if found is None:
            return False
        if host.lower() in self._names:
            return True
        return found.is_global or any(found in network for network in self._networks)

    def _allows_address(self, address: Address) -> bool:
        return (self._public and address.is_global) or any(address in network for network in self._networks)

    def _is_wild(self, host: str) -> bool:
        return self._public or host.endswith(self._domains)


NOWHERE: Final = Destinations()


def _network(pattern: str) -> Network | None:
    try:
        return ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None


def _address(host: str) -> Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped if mapped is not None else found


def _is_name(host: str) -> bool:
    """Whether a text is a host name, and no address in another spelling such as 127.1, 0x7f.1 or
    2130706433."""
    if not host or len(host) > 253 or not set(host) <= _LETTERS or host[0] in ".-":
        return False
    last = host.rstrip(".").rpartition(".")[2]
    return bool(last) and not last[0].isdigit()
