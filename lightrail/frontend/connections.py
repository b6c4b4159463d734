"""All connections of a frontend, and the interface of the frontend for its connections."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from lightrail.frontend.auth import Authentication
from lightrail.frontend.client import Client
from lightrail.frontend.deadlines import Deadlines, Ticking
from lightrail.frontend.links.context import LinkFrontend
from lightrail.frontend.nodes.nodes import Nodes
from lightrail.frontend.sole_connections import SoleConnections
from lightrail.model import limits
from lightrail.model.proxy_header import Address
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.telemetry.open_files import OpenFiles
from lightrail.telemetry.strangers import Strangers
from lightrail.wire.forwarded import Forwarded

if TYPE_CHECKING:
    from lightrail.amqp.connection import Connection

log = logging.getLogger("lightrail.frontend.connections")

VHOST: Final = "vhost:"


class Accepted(Ticking, Protocol):
    """A connection whose socket was accepted."""

    number: int
    since_ms: int
    """Time at which the socket was accepted, in milliseconds since 1970."""
    opened: bool
    """Whether the client's open has arrived."""
    client: Client
    amqp: "Connection | None"

    @property
    def id(self) -> str:
        """The id of the connection."""

    def flush(self) -> None:
        """Writes output."""

    def close(self, condition: str, description: str) -> None:
        """Ends the connection with a close."""


class Connections:
    """The open connections, in the order in which they were accepted; bounds their number."""

    def __init__(self, counts: FrontendCounts) -> None:
        self._counts = counts
        self.by_number: dict[int, Accepted] = {}
        self._numbers = itertools.count(1)
        self._vhosts: set[str] = set()
        """Virtual hosts that clients expect, and that the log names already."""
        self.half_open = 0
        """Connections whose client has not sent its open."""

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> Iterator[Accepted]:
        return iter(self.by_number.values())

    def __contains__(self, connection: object) -> bool:
        return self.by_number.get(getattr(connection, "number", 0)) is connection

    def next_number(self) -> int:
        """A rising number for a connection, unique in the lifetime of this process."""
        return next(self._numbers)

    def add(self, connection: Accepted) -> None:
        """Adds a connection whose socket was accepted, or closes it if there are too many."""
        self.by_number[connection.number] = connection
        self.half_open += 1
        self._counts.connections_opened += 1
        self._counts.connections += 1
        if self.half_open > limits.HALF_OPEN_MAX or len(self) > limits.CONNECTIONS_MAX:
            self._counts.connections_refused += 1
            connection.abort()

    def opened(self, hostname: str | None, client: Client) -> None:
        """Counts a connection whose client's open has arrived.

        Args:
            hostname: of the open. Clients of RabbitMQ select a virtual host by it, as `vhost:NAME`. Here all
                names are in one space, so that a client which relies on another one has to be found.
        """
        self.half_open -= 1
        vhost = hostname.removeprefix(VHOST) if hostname and hostname.startswith(VHOST) else ""
        if vhost in ("", "/") or vhost in self._vhosts or len(self._vhosts) >= limits.VHOSTS_LOGGED_MAX:
            return
        self._vhosts.add(vhost)
        log.warning(
            "a client at %s expects the virtual host %.80r: there are none, and its names are those of all "
            "clients; put a prefix before them, and give each user rights to one prefix",
            client.peer,
            vhost,
        )

    def remove(self, connection: Accepted) -> None:
        """Removes a connection whose socket is closed."""
        if connection in self:
            del self.by_number[connection.number]
            self._counts.connections -= 1
            if not connection.opened:
                self.half_open -= 1


class ConnectionFrontend(LinkFrontend, Protocol):
    """The interface of the frontend for its connections."""

    name: str
    connections: Connections
    nodes: Nodes
    strangers: Strangers
    open_files: OpenFiles
    deadlines: Deadlines
    sole_connections: SoleConnections
    dirty: list[Accepted]
    """Connections with output, flushed at the end of this turn."""
    websocket_origins: tuple[str, ...]
    """Origins of pages that may connect by WebSocket."""

    def authentication(self, transport: asyncio.Transport, source: Address | None) -> Authentication:
        """The authentication of a new connection, whose client is at `source`; None: for a socket without."""

    def forwarded_authentication(self, client: Forwarded) -> Authentication:
        """The authentication of a client that a gateway forwards."""

    def forwarded(self, value: str, nonce: bytes) -> Forwarded:
        """Reads the header field of a forwarded client. Raises ValueError: no gateway wrote it."""

    def new_amqp(self, mechanisms: tuple[str, ...], anonymous: bool) -> "Connection":
        """The engine of a new connection."""

    def schedule_flush(self) -> None:
        """Requests a flush at the end of this turn."""

    def soon(self, call: Callable[[], None]) -> None:
        """Makes a call in the next turn of the loop, after other sockets were read."""
