"""Metrics of a gateway's HTTP side, read from its services at each scrape."""

from collections.abc import Callable
from typing import Any, Final, Literal

from lightrail.gateway.services import Services
from lightrail.telemetry.metrics import AnyFamily, Family, counter

Read = Callable[[Services], float]


def _one(kind: Literal["counter", "gauge"], name: str, help: str, read: Read) -> Family[Services]:
    """A family without labels."""
    return Family(kind, name, help, (), lambda services: [((), float(read(services)))])


CONNECTION_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    Family(
        "gauge",
        "lightrail_http_connections",
        "Connections of HTTP clients.",
        (),
        lambda connections: [((), float(len(connections)))],
    ),
    counter(
        "lightrail_http_connections_refused",
        "Connections that were refused because too many are open, in all or from one source.",
        "refused",
    ),
    Family(
        "counter",
        "lightrail_http_connections_closed",
        "Connections that were closed: idle, for a new one (idle); without a complete head in time (head); "
        "because the client did not read its answer (write).",
        ("reason",),
        lambda connections: [((reason,), count) for reason, count in connections.closed.items()],
    ),
)
"""Read from the `Connections` of HTTP clients."""

FAMILIES: Final[tuple[AnyFamily[Services], ...]] = (
    _one(
        "gauge",
        "lightrail_http_websockets",
        "WebSockets of AMQP that are forwarded to a frontend.",
        lambda services: services.websockets.open,
    ),
    Family(
        "counter",
        "lightrail_http_requests",
        "Requests that were answered, by method and status.",
        ("method", "status"),
        lambda services: list(services.counts.requests.items()),
    ),
    _one(
        "counter",
        "lightrail_http_messages_sent",
        "Messages of HTTP requests that were stored.",
        lambda services: services.counts.sent,
    ),
    Family(
        "counter",
        "lightrail_http_messages_handed_out",
        "Messages for HTTP requests: received, locked, or released because the client had disconnected.",
        ("how",),
        lambda services: [((how,), count) for how, count in services.counts.handed_out.items()],
    ),
    _one(
        "counter",
        "lightrail_http_password_checks",
        "Passwords that were hashed; correct ones are cached.",
        lambda services: services.callers.hashes,
    ),
    _one(
        "gauge",
        "lightrail_http_receivers_waiting",
        "HTTP requests that wait for a message.",
        lambda services: services.receivers.waiting,
    ),
    _one(
        "gauge",
        "lightrail_http_body_bytes",
        "Bytes of messages that are being sent and have no answer yet.",
        lambda services: services.sender.bytes,
    ),
)
