"""All connections of a frontend: their number is bounded, and one timer serves their deadlines.

Gateways show connections, and close one, by requests at the frontend's control socket (`operations`). All
shown values are read from the engine on request, so that they cost a connection nothing otherwise. Answers
are bounded (limits.CONTROL_*), and contain the number of the next page.
"""

import asyncio
import heapq
import itertools
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.link import ATTACHED, ATTACHING, DETACHED, DETACHING, REQUESTED, Link
from lightrail.amqp.phases import CLOSED, CLOSING, DECIDING, HEADER, OPEN, OPENING, SASL
from lightrail.amqp.sender import SendingLink
from lightrail.amqp.session import Session
from lightrail.frontend.auth import FIRST_USER
from lightrail.frontend.client import Client
from lightrail.model import conditions, limits
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.control import ControlRefusedError, Operation

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

STANDSTILL_MS: Final[int] = 500
"""A timer this late means that the process was suspended, or the clock was set. Silence of clients until
then, and for as long again, does not count."""
VHOSTS_LOGGED_MAX: Final[int] = 64
"""Virtual hosts that clients expect and that the log of a process names."""

REFUSED_LOGGED_EVERY_MS: Final[int] = 1_000
"""Least time between two lines of the log about clients that were refused at a bound."""

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
        self._refused_ms = -REFUSED_LOGGED_EVERY_MS
        """Time of the last line about a client that was refused at a bound."""
        self._refused = 0
        """Clients that were refused since then."""
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

    def refused(self, client: Client, condition: str, description: str, now_ms: int) -> None:
        """Logs why a link or request is refused if a bound is the reason; once for a connection."""
        if condition != conditions.RESOURCE_LIMIT_EXCEEDED or client.was_refused:
            return
        client.was_refused = True
        if 0 <= now_ms - self._refused_ms < REFUSED_LOGGED_EVERY_MS:
            self._refused += 1
            return
        others = f" (and {self._refused} other clients since the last such line)" if self._refused else ""
        self._refused_ms, self._refused = now_ms, 0
        log.warning("the client %s has reached a bound%s: %s", client.peer, others, description)

    def end_unchecked(self) -> None:
        """Closes connections with all rights, which they had while no user was defined."""
        unchecked = [each for each in self if each.client.caller.everything]
        if unchecked:
            log.warning("%d connections without a user are closed: a user is defined by now", len(unchecked))
        for each in unchecked:
            each.close(conditions.CONNECTION_FORCED, FIRST_USER)

    def remove(self, connection: "ClientConnection") -> None:
        """Removes a connection whose socket is closed."""
        if connection in self:
            del self.by_number[connection.number]
            self._counts.connections -= 1
            if not connection.opened:
                self.half_open -= 1


@dataclass(eq=False, repr=False)
class ConnectionDeadlines:
    """Keeps one valid entry per connection in a heap: that of its `deadline_ms`.

    A deadline that becomes later is noticed when the earlier one has passed; before a deadline may become
    sooner, `deadline_ms` is set to None.

    Args:
        connections: the open connections.
    """

    _loop: asyncio.AbstractEventLoop
    _now_ms: Callable[[], int]
    _connections: "Collection[ClientConnection]"
    _heap: "list[tuple[int, int, ClientConnection]]" = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    _timer: asyncio.TimerHandle | None = None
    _timer_ms: int = 0

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
                if connection.amqp is not None:
                    connection.amqp.excuse(now_ms + late_ms)
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


CONTROL_SCAN_MAX: Final[int] = 4_096
"""Connections that a frontend examines for one answer with a filter."""
CONTROL_LINKS_SHOWN: Final[int] = 16
"""Links of each connection in a list of connections; a request for one connection returns all of them."""
CONTROL_LINKS_MAX: Final[int] = 4_000
"""Links in the answer about one connection."""
LINK_STATES: Final = {
    REQUESTED: "requested",
    ATTACHING: "attaching",
    ATTACHED: "attached",
    DETACHING: "detaching",
    DETACHED: "detached",
}
PHASES: Final = {
    HEADER: "header",
    SASL: "sasl",
    OPENING: "opening",
    DECIDING: "opening",
    OPEN: "open",
    CLOSING: "closing",
    CLOSED: "closed",
}


def operations(frontend: "Frontend") -> Mapping[str, Operation]:
    """The operations of this frontend's control socket, by name."""
    return {
        "connections": lambda fields: connections(frontend, fields),
        "connection": lambda fields: connection(frontend, fields),
        "close": lambda fields: close(frontend, fields),
    }


def connections(frontend: "Frontend", fields: Mapping[str, Any]) -> dict[str, Any]:
    """A page of the connections in the order in which they were accepted.

    Fields: `after` (number of the connection before the page, 0 for the first one), `count`, and as filters
    `user` and `container`. The answer's `next` is the `after` of the next page, or None where it ends. A page
    may be short, even empty, and have a next one.
    """
    after = _whole(fields, "after", 0, 1 << 62, 0)
    count = _whole(fields, "count", 1, limits.CONTROL_PAGE_MAX, limits.CONTROL_PAGE_MAX)
    user, container = fields.get("user"), fields.get("container")
    numbers = list(frontend.connections.by_number)
    start = bisect_right(numbers, after)
    found: list[dict[str, Any]] = []
    seen = 0
    for number in islice(numbers, start, start + CONTROL_SCAN_MAX):
        each = frontend.connections.by_number[number]
        seen += 1
        if user in (None, each.client.user_name) and container in (None, _container(each)):
            found.append(shown(each, CONTROL_LINKS_SHOWN))
            if len(found) == count:
                break
    more = start + seen < len(numbers)
    return {"connections": found, "next": numbers[start + seen - 1] if more else None}


def connection(frontend: "Frontend", fields: Mapping[str, Any]) -> dict[str, Any]:
    """One connection with all of its sessions and links. Field: `id`."""
    return {"connection": shown(_find(frontend, fields), CONTROL_LINKS_MAX)}


def close(frontend: "Frontend", fields: Mapping[str, Any]) -> dict[str, Any]:
    """Ends a connection with amqp:connection:forced. Fields: `id`, and `text` for the client to read."""
    found = _find(frontend, fields)
    text = fields.get("text")
    found.close(
        conditions.CONNECTION_FORCED,
        text if isinstance(text, str) and text else "closed by the operator of the broker",
    )
    return {}


def shown(connection: "ClientConnection", links_max: int) -> dict[str, Any]:
    """One connection as JSON; `links_left_out` counts the links beyond `links_max`."""
    amqp = connection.amqp
    sessions: list[dict[str, Any]] = []
    total = 0
    for session in () if amqp is None else amqp.sessions.values():
        links = session.inputs
        room = max(0, links_max - total)
        total += len(links)
        if room:
            unsettled = _unsettled(session)
            listed = [_link(each, unsettled) for each in islice(links.values(), room)]
            sessions.append({"channel": session.channel, "links": listed})
    since = datetime.fromtimestamp(connection.since_ms / 1000, UTC)
    return {
        "id": connection.id,
        "user": connection.client.user_name,
        "peer": connection.client.peer,
        "container": _container(connection),
        "hostname": None if amqp is None or amqp.peer_open is None else amqp.peer_open.hostname,
        "since_ms": connection.since_ms,
        "since": since.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "tls": connection.client.tls,
        "transport": "websocket" if connection.client.websocket else "tcp",
        "forwarded": connection.client.forwarded,
        "state": "closed" if amqp is None else PHASES[amqp.phase],
        "sessions": 0 if amqp is None else len(amqp.sessions),
        "session_list": sessions,
        "links": total,
        "links_left_out": total - sum(len(each["links"]) for each in sessions),
    }


def _link(link: Link, unsettled: Mapping[Link, int]) -> dict[str, Any]:
    """A link as JSON; its role is that of the client: on a sender the client sends."""
    terminus = link.source if link.is_sender else link.target
    moved = link.transmitted if isinstance(link, SendingLink) else link.delivery_count - link.initial_count
    return {
        "name": link.name,
        "role": "receiver" if link.is_sender else "sender",
        "address": _text(getattr(terminus, "address", None)),
        "state": LINK_STATES[link.state],
        "credit": link.credit,
        "unsettled": unsettled.get(link, 0),
        "delivered" if link.is_sender else "received": moved,
        "waiting": link.backlog,
    }


def _unsettled(session: Session) -> dict[Link, int]:
    found: dict[Link, int] = {}
    for ranges in (session.incoming.ranges, session.outgoing.ranges):
        for each in ranges:
            found[each.link] = found.get(each.link, 0) + each.last - each.first + 1
    return found


def _container(connection: "ClientConnection") -> str | None:
    amqp = connection.amqp
    return None if amqp is None or amqp.peer_open is None else amqp.peer_open.container_id


def _text(address: object) -> str | None:
    return None if address is None else str(address)


def _find(frontend: "Frontend", fields: Mapping[str, Any]) -> "ClientConnection":
    id = fields.get("id")
    boot, _, number = str(id).removeprefix(frontend.name + ".").partition(".")
    found = None
    if boot == f"{frontend.boot:08x}" and number.isdecimal() and len(number) < 20:
        found = frontend.connections.by_number.get(int(number))
    if found is None:
        raise ControlRefusedError(conditions.NOT_FOUND, f"there is no connection {id!a} (any more)")
    return found


def _whole(fields: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise ControlRefusedError(
            conditions.INVALID_FIELD,
            f"{name} is {value!r:.80}; expected a whole number from {low} to {high}",
        )
    return value
