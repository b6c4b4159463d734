"""Options of a connection: address, credentials, and how to reconnect."""

import ipaddress
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password; without a user, anonymous or the user of the TLS certificate."""

    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, {'***' if self.password else None})"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker: a URL such as amqps://user:password@host:5671."""

    scheme: str
    host: str
    port: int
    credentials: Credentials

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Raises ValueError, without any password in its text."""
        parts = urlsplit(url if "://" in url else f"amqp://{url}")
        if parts.scheme not in PORTS:
            raise ValueError(f"expected amqp:// or amqps:// and a host, found {parts.scheme}://")
        if not parts.hostname:
            raise ValueError(f"expected a host in {parts.scheme}://HOST[:PORT], found none")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(
                f"expected nothing behind the port of {parts.scheme}://{parts.hostname}, found "
                f"{parts.path or '?'!r}: queues are named where senders and receivers are opened"
            )
        try:
            port = parts.port or PORTS[parts.scheme]
        except ValueError:
            raise ValueError(f"expected a port of 1 to 65535 behind {parts.hostname}") from None
        user = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password else None
        return cls(parts.scheme, parts.hostname, port, Credentials(user, password))

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, so that passwords cross no network."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How to reconnect after a loss: seconds before the first attempt, growing up to the longest.

    Each pause is drawn between half of that and all of it, so that clients of a restarted broker do not
    connect all at once.
    """

    first: float = 0.05
    factor: float = 2.0
    longest: float = 1.5
    connect: float = 10.0
    """Seconds of one attempt for TCP, TLS, SASL and open together."""
    attempts: int | None = None
    """Failed attempts in a row, each at all addresses, that end the connection; None: never."""


def pause_s(policy: ReconnectPolicy, attempt: int, draw: Callable[[], float] = random.random) -> float:
    """Seconds before an attempt, the first one being 0; `draw` gives numbers from 0 to 1."""
    longest = min(policy.longest, policy.first * policy.factor ** min(attempt, 64))
    return longest * (0.5 + 0.5 * draw())


TlsContext = ssl.SSLContext
