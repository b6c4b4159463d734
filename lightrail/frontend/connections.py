"""All connections of a frontend, and what a connection uses of its frontend."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from lightrail.frontend.auth import Authentication
from lightrail.frontend.client import Client
from lightrail.frontend.deadlines import Deadlines, Ticking
from lightrail.frontend.links.context import LinkFrontend
from lightrail.frontend.nodes.nodes import Nodes
from lightrail.frontend.sole_connections import SoleConnections
from lightrail.model import limits
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.telemetry.strangers import Strangers
from lightrail.wire.forwarded import Forwarded

if TYPE_CHECKING:
    from lightrail.amqp.connection import Connection


class Accepted(Ticking, Protocol):
    """A connection whose socket was accepted."""

    number: int
    since_ms: int
    """When the socket was accepted, in milliseconds since 1970."""
    opened: bool
    """The client's open has come."""
    client: Client
    amqp: "Connection | None"

    @property
    def id(self) -> str:
        """Names the connection to people."""

    def flush(self) -> None:
        """Writes output."""

    def close(self, condition: str, description: str) -> None:
        """Ends the connection in order."""


class Connections:
    """The open connections, in the order in which they were accepted; bounds how many there are."""

    def __init__(self, counts: FrontendCounts) -> None:
        self._counts = counts
        self.by_number: dict[int, Accepted] = {}
        self._numbers = itertools.count(1)
        self.half_open = 0
        """Connections whose client has not sent its open."""

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> Iterator[Accepted]:
        return iter(self.by_number.values())

    def __contains__(self, connection: object) -> bool:
        return self.by_number.get(getattr(connection, "number", 0)) is connection

    def next_number(self) -> int:
        """A number for a connection, rising, unique over the life of this process."""
        return next(self._numbers)

    def add(self, connection: Accepted) -> None:
        """A socket was accepted; it is closed where there are too many."""
        self.by_number[connection.number] = connection
        self.half_open += 1
        self._counts.connections_opened += 1
        self._counts.connections += 1
        if self.half_open > limits.HALF_OPEN_MAX or len(self) > limits.CONNECTIONS_MAX:
            self._counts.connections_refused += 1
            connection.abort()

    def opened(self) -> None:
        """A client's open has come."""
        self.half_open -= 1

    def remove(self, connection: Accepted) -> None:
        """A socket is closed."""
        if connection in self:
            del self.by_number[connection.number]
            self._counts.connections -= 1
            if not connection.opened:
                self.half_open -= 1


class ConnectionFrontend(LinkFrontend, Protocol):
    """The frontend, as its connections use it."""

    name: str
    connections: Connections
    nodes: Nodes
    strangers: Strangers
    deadlines: Deadlines
    sole_connections: SoleConnections
    dirty: list[Accepted]
    """Connections with output, flushed at the end of this turn."""
    websocket_origins: tuple[str, ...]
    """Of pages that may connect by WebSocket."""

    def authentication(self, transport: asyncio.Transport) -> Authentication:
        """The authentication of a new connection."""

    def forwarded_authentication(self, client: Forwarded) -> Authentication:
        """The authentication of a client that a gateway passes on."""

    def forwarded(self, value: str, nonce: bytes) -> Forwarded:
        """Reads the field by which a gateway passes a client on. Raises ValueError: no gateway wrote it."""

    def new_amqp(self, mechanisms: tuple[str, ...], anonymous: bool) -> "Connection":
        """The engine of a new connection."""

    def schedule_flush(self) -> None:
        """Asks for a flush at the end of this turn."""

    def soon(self, call: Callable[[], None]) -> None:
        """Calls back in the next turn of the loop, after other sockets were read."""
