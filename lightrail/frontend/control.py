"""Requests of gateways at a frontend's control socket: to show connections, and to close one.

All shown values are read from the engine on request, so that they cost a connection nothing otherwise.
Answers are bounded (limits.CONTROL_*), and contain the id of the next page.
"""

from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.events import CLOSED, CLOSING, DECIDING, HEADER, OPEN, OPENING, SASL
from lightrail.amqp.link import ATTACHED, ATTACHING, DETACHED, DETACHING, REQUESTED, Link
from lightrail.amqp.sender import SendingLink
from lightrail.amqp.session import Session
from lightrail.model import conditions, limits
from lightrail.wire.control import ControlRefusedError, Operation

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

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
