"""Counts: what this gateway did for HTTP clients, and all of it as /metrics shows it.

The families read from a Gateway (app.py), which has these counts and those that are kept elsewhere.
"""

from typing import Any, Final

from lightrail.telemetry.http_connections import Connections
from lightrail.telemetry.metrics import AnyFamily, Family

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
"""A stranger's method is no label: there would be no end to them."""


class Counts:
    """Counts that have no better place; the others are read from where they are kept."""

    __slots__ = ("handed_out", "requests", "sent")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        """Answers by method and status."""
        self.sent = 0
        """Messages of requests that were stored."""
        self.handed_out = {"received": 0, "locked": 0, "released": 0}
        """Deliveries by what became of them: taken, locked, or given back because the client had gone."""

    def answered(self, method: str, status: int) -> None:
        key = (method if method in METHODS else "other", str(status))
        self.requests[key] = self.requests.get(key, 0) + 1


def _gauge(name: str, help: str, read: Any) -> Family[Any]:
    return Family("gauge", name, help, (), lambda gateway: [((), float(read(gateway)))])


CONNECTION_FAMILIES: Final[tuple[AnyFamily[Connections], ...]] = (
    Family(
        "gauge",
        "lightrail_http_connections",
        "Connections of HTTP clients.",
        (),
        lambda connections: [((), float(len(connections)))],
    ),
    Family(
        "counter",
        "lightrail_http_connections_refused",
        "Connections that were not admitted, since too many are open, in all or from one source.",
        (),
        lambda connections: [((), connections.refused)],
    ),
    Family(
        "counter",
        "lightrail_http_connections_closed",
        "Connections that were closed: idle, in favour of others; without the head of a request in time; "
        "while the client did not read its answer.",
        ("reason",),
        lambda connections: [((reason,), count) for reason, count in connections.closed.items()],
    ),
)
"""What `Connections` of a gateway show."""

FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    Family(
        "counter",
        "lightrail_http_requests",
        "Requests that were answered, by method and status.",
        ("method", "status"),
        lambda gateway: list(gateway.counts.requests.items()),
    ),
    Family(
        "counter",
        "lightrail_http_messages_sent",
        "Messages of HTTP requests that were stored.",
        (),
        lambda gateway: [((), gateway.counts.sent)],
    ),
    Family(
        "counter",
        "lightrail_http_messages_handed_out",
        "Messages for HTTP requests: received, locked, or released because the client had gone.",
        ("how",),
        lambda gateway: [((how,), count) for how, count in gateway.counts.handed_out.items()],
    ),
    Family(
        "counter",
        "lightrail_http_password_checks",
        "Passwords that were hashed; good ones are remembered.",
        (),
        lambda gateway: [((), gateway.callers.hashes)],
    ),
    _gauge(
        "lightrail_http_receivers_waiting",
        "HTTP requests that wait for a message.",
        lambda gateway: gateway.receivers.waiting,
    ),
    _gauge(
        "lightrail_http_body_bytes",
        "Bytes of messages that are being sent and have no answer.",
        lambda gateway: gateway.sender.bytes,
    ),
)
