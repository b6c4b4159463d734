"""Metrics of a bus for Prometheus; they need prometheus-client: pip install 'lightrail[metrics]'."""

from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest

from lightrail.bus.bus import Bus
from lightrail.bus.consumer import Handled
from lightrail.bus.messages import Sending

__all__ = ["Metrics"]

BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)
"""Seconds that handlers take."""


class Metrics:
    """Counts the messages that a bus handles and sends.

    | metric | labels | |
    |---|---|---|
    | `lightrail_bus_handled_total` | bus, queue, type, outcome | messages that the bus has settled |
    | `lightrail_bus_handler_seconds` | bus, queue | from receipt to settlement, with immediate retries |
    | `lightrail_bus_sent_total` | bus, type | messages that were sent |

    Outcomes: handled, retried, failed, skipped, not-readable, deferred.

    Args:
        bus: whose messages are counted from now on.
        registry: of prometheus_client.
    """

    def __init__(self, bus: Bus, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._bus = bus.name
        self._handled = Counter(
            "lightrail_bus_handled",
            "Messages that the bus has settled.",
            ("bus", "queue", "type", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "lightrail_bus_handler_seconds",
            "Seconds from the receipt of a message to its settlement.",
            ("bus", "queue"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._sent = Counter(
            "lightrail_bus_sent", "Messages that were sent.", ("bus", "type"), registry=registry
        )
        self._children: dict[Any, Any] = {}
        bus.on_handled(self._on_handled)
        bus.on_sent(self._on_sent)

    def text(self) -> bytes:
        """All metrics of the registry, as Prometheus reads them."""
        return generate_latest(self._registry)

    def _on_handled(self, handled: Handled) -> None:
        key = (handled.queue, handled.outcome)
        found = self._children.get(key)
        if found is None:
            labels = (self._bus, handled.queue, handled.type.wire_name, handled.outcome.value)
            found = self._children[key] = (
                self._handled.labels(*labels),
                self._seconds.labels(self._bus, handled.queue),
            )
        found[0].inc()
        found[1].observe(handled.seconds)

    def _on_sent(self, sending: Sending) -> None:
        name = "" if sending.type is None else sending.type.wire_name
        found = self._children.get(name)
        if found is None:
            found = self._children[name] = self._sent.labels(self._bus, name)
        found.inc()
