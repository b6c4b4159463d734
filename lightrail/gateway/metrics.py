"""Metrics of a gateway's HTTP side, read from its services at each scrape."""

from typing import Any, Final

from lightrail.gateway.services import Services
from lightrail.telemetry.metrics import AnyFamily, Family, counter, counters, gauge

CONNECTION_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    gauge("lightrail_http_connections", "Connections of HTTP clients.", len),
    counter(
        "lightrail_http_connections_refused",
        "Connections that were refused because too many are open, in all or from one source.",
        "refused",
    ),
    counters(
        "lightrail_http_connections_closed",
        "Connections that were closed: idle, for a new one (idle); without a complete head in time (head); "
        "because the client did not read its answer (write).",
        "reason",
        "closed",
    ),
)
"""Read from the `Connections` of HTTP clients."""

FAMILIES: Final[tuple[AnyFamily[Services], ...]] = (
    gauge(
        "lightrail_http_websockets", "WebSockets of AMQP that are forwarded to a frontend.", "websockets.open"
    ),
    Family(
        "counter",
        "lightrail_http_requests",
        "Requests that were answered, by method and status.",
        ("method", "status"),
        lambda services: list(services.counts.requests.items()),
    ),
    counter("lightrail_http_messages_sent", "Messages of HTTP requests that were stored.", "counts.sent"),
    counters(
        "lightrail_http_messages_handed_out",
        "Messages for HTTP requests: received, locked, or released because the client had disconnected.",
        "how",
        "counts.handed_out",
    ),
    counter(
        "lightrail_http_password_checks",
        "Passwords that were hashed; correct ones are cached.",
        "callers.hashes",
    ),
    gauge("lightrail_http_receivers_waiting", "HTTP requests that wait for a message.", "receivers.waiting"),
    gauge(
        "lightrail_http_body_bytes",
        "Bytes of messages that are being sent and have no answer yet.",
        "sender.bytes",
    ),
)
