"""Endpoints: hosts with ports, and the parsers of their texts."""

import ipaddress
from typing import NamedTuple


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
