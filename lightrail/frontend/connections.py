"""All connections of a frontend, and one timer for the next of their deadlines."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

from lightrail.frontend.client import Client
from lightrail.model import limits
from lightrail.telemetry.frontend import FrontendCounts

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

STANDSTILL_MS: Final[int] = 500
"""A timer this late means that the process was suspended, or the clock was set. Silence of clients until
then, and for as long again, does not count."""
VHOSTS_LOGGED_MAX: Final[int] = 64
"""Virtual hosts that clients expect and that the log of a process names."""

log = logging.getLogger("lightrail.frontend.connections")

VHOST: Final = "vhost:"


class Connections:
    """The open connections, in the order in which they were accepted; bounds their number."""

    def __init__(self, counts: FrontendCounts) -> None:
        self._counts = counts
        self.by_number: dict[int, ClientConnection] = {}
        self._numbers = itertools.count(1)
        self._vhosts: set[str] = set()
        """Virtual hosts that clients expect, and that the log names already."""
        self.half_open = 0
        """Connections whose client has not sent its open."""

    def __len__(self) -> int:
        return len(self.by_number)

    def __iter__(self) -> "Iterator[ClientConnection]":
        return iter(self.by_number.values())

    def __contains__(self, connection: object) -> bool:
        return self.by_number.get(getattr(connection, "number", 0)) is connection

    def next_number(self) -> int:
        """A rising number for a connection, unique in the lifetime of this process."""
        return next(self._numbers)

    def add(self, connection: "ClientConnection") -> None:
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
        if vhost in ("", "/") or vhost in self._vhosts or len(self._vhosts) >= VHOSTS_LOGGED_MAX:
            return
        self._vhosts.add(vhost)
        log.warning(
            "a client at %s expects the virtual host %.80r: there are none, and its names are those of all "
            "clients; put a prefix before them, and give each user rights to one prefix",
            client.peer,
            vhost,
        )

    def remove(self, connection: "ClientConnection") -> None:
        """Removes a connection whose socket is closed."""
        if connection in self:
            del self.by_number[connection.number]
            self._counts.connections -= 1
            if not connection.opened:
                self.half_open -= 1


class Deadlines:
    """Keeps one valid entry per connection in a heap: that of its `deadline_ms`.

    A deadline that becomes later is noticed when the earlier one has passed; before a deadline may become
    sooner, `deadline_ms` is set to None.

    Args:
        connections: the open connections.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        connections: "Collection[ClientConnection]",
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._connections = connections
        self._heap: list[tuple[int, int, ClientConnection]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, connection: "ClientConnection") -> None:
        """Enters the deadline of a connection that has no valid entry."""
        if connection.deadline_ms is None and connection.is_open:
            deadline = connection.next_tick(self._now_ms())
            if deadline is not None:
                connection.deadline_ms = deadline
                heapq.heappush(self._heap, (deadline, next(self._order), connection))
                self._arm()

    def forget_ended(self) -> None:
        """Removes entries of closed connections, which would stay until their time."""
        if len(self._heap) > 2 * len(self._connections) + limits.STALE_ENTRIES_MIN:
            self._heap[:] = [
                each for each in self._heap if each[0] == each[2].deadline_ms and each[2] in self._connections
            ]
            heapq.heapify(self._heap)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._heap and (self._timer is None or self._heap[0][0] < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = self._heap[0][0]
            wait = max(0, self._timer_ms - self._now_ms()) / 1000
            self._timer = self._loop.call_later(wait, self.ring)

    def ring(self) -> None:
        """The timer fires: ticks the connections that are due."""
        self._timer = None
        now_ms = self._now_ms()
        late_ms = now_ms - self._timer_ms
        if late_ms > STANDSTILL_MS:
            # This process was stopped, not its clients. The bytes that they sent wait in their sockets, or in
            # their systems: TCP retransmits after a time about as long as it has failed before.
            for connection in self._connections:
                connection.excuse(now_ms + late_ms)
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            deadline, _, connection = heapq.heappop(heap)
            if deadline != connection.deadline_ms:
                continue
            try:
                connection.tick(now_ms)
            except Exception:
                log.exception("a deadline of a connection failed; the connection is closed")
                connection.abort()
            if connection.deadline_ms is not None:
                deadline = connection.deadline_ms = max(connection.deadline_ms, now_ms + 1)
                heapq.heappush(heap, (deadline, next(self._order), connection))
        self._arm()
