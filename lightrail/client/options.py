"""Options of a connection: address, credentials, and how to reconnect.

Events of a connection, for applications that watch it.
"""

import asyncio
import ipaddress
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a connection.

    Attributes:
        kind: connected, lost, failed (an attempt), closed, link-lost, link-attached, or lock-lost (locks
            that a receiver with renew_for could not renew in time, outcomes of one with resume that the
            broker may not have stored in time).
        where: the broker's address, or that of the link.
        reason: why, in words.
    """

    kind: str
    where: str
    reason: str = ""


class Reporter:
    """Calls an application's function with events; its exceptions are reported to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_event: Callable[[Event], None] | None) -> None:
        self._loop = loop
        self._on_event = on_event

    def report(self, kind: str, where: str, reason: str = "") -> None:
        """See Event."""
        if self._on_event is None:
            return
        try:
            self._on_event(Event(kind, where, reason))
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": f"on_event of a connection failed for {kind}", "exception": error}
            )


PORTS: Final = {"amqp": 5672, "amqps": 5671, "ws": 80, "wss": 443}
_TLS: Final = ("amqps", "wss")
_WEBSOCKET: Final = ("ws", "wss")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password; without a user, anonymous or the user of the TLS certificate."""

    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, {'***' if self.password else None})"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker: a URL such as amqps://user:password@host:5671, or wss://host:5671/path."""

    scheme: str
    host: str
    port: int
    credentials: Credentials
    path: str = ""
    """Of ws and wss, with the query: the target of the HTTP request."""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Raises ValueError, without any password in its text."""
        parts = urlsplit(url if "://" in url else f"amqp://{url}")
        if parts.scheme not in PORTS:
            raise ValueError(
                f"expected amqp://, amqps://, ws:// or wss:// and a host, found {parts.scheme}://"
            )
        if not parts.hostname:
            raise ValueError(f"expected a host in {parts.scheme}://HOST[:PORT], found none")
        is_websocket = parts.scheme in _WEBSOCKET
        if parts.fragment or (not is_websocket and (parts.path.strip("/") or parts.query)):
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
        path = _target(parts.path, parts.query) if is_websocket else ""
        return cls(parts.scheme, parts.hostname, port, Credentials(user, password), path)

    @property
    def is_tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self.scheme in _TLS

    @property
    def is_websocket(self) -> bool:
        """Whether AMQP is sent in the messages of a WebSocket."""
        return self.scheme in _WEBSOCKET

    @property
    def authority(self) -> str:
        """HOST:PORT, without the scheme's default port; an address of IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, so that passwords cross no network."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        # A query may have a secret, as a token; logs and errors have this text.
        return f"{self.scheme}://{host}:{self.port}{self.path.partition('?')[0]}"


def _target(path: str, query: str) -> str:
    """The target of the HTTP request. Raises ValueError for octets that a request may not have."""
    target = f"{path or '/'}{'?' if query else ''}{query}"
    if not target.isascii() or not target.isprintable() or " " in target:
        raise ValueError(f"expected a path of ASCII without spaces, others as %XX, found {path!r}")
    return target


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How to reconnect after a loss: seconds before the first attempt, growing up to the longest.

    Each pause is a random time between half of that and all of it, so that clients of a restarted broker do
    not connect all at once.
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
