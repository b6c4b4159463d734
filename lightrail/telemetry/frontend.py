"""Frontend: counters of a frontend, and its metrics, which are read from these counters.

Hot code adds to plain integers of FrontendCounts, once per batch. Counters never fall.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.model import limits
from lightrail.telemetry.metrics import AnyFamily, Family, counter, counters, gauge

OUTCOMES: Final = ("accepted", "rejected", "released", "modified")
"""Outcomes by their codes between frontend and shard (docs/formats/wire.md)."""


@dataclass(slots=True, eq=False, repr=False)
class FrontendCounts:
    """Counters of a frontend. Integers; only the loop that owns the sockets writes them."""

    authentications_failed: int = 0
    batches_repeated: int = 0
    connections: int = 0
    connections_failed: int = 0
    connections_opened: int = 0
    connections_refused: int = 0
    credit_held: int = 0
    frame_bytes_received: int = 0
    frame_bytes_sent: int = 0
    links_closed: int = 0
    links_opened: int = 0
    links_refused: int = 0
    message_bytes_delivered: int = 0
    message_bytes_received: int = 0
    messages_accepted: int = 0
    messages_delivered: int = 0
    messages_presettled: int = 0
    messages_received: int = 0
    messages_redelivered: int = 0
    messages_refused: int = 0
    messages_released: int = 0
    messages_routed: int = 0
    messages_too_large: int = 0
    messages_unroutable: int = 0
    scanner_compiled: int = 0
    sessions: int = 0
    shards_connected: int = 0
    transaction_bytes: int = 0
    transactions_committed: int = 0
    transactions_declared: int = 0
    transactions_rolled_back: int = 0
    unanswered_bytes: int = 0
    websockets: int = 0
    write_stalls: int = 0
    outcomes: list[int] = field(default_factory=lambda: [0] * len(OUTCOMES))
    """Settled deliveries by the codes of OUTCOMES."""

    def settled(self, outcome: int, count: int) -> None:
        """Receivers settled deliveries; ``outcome`` is an index in OUTCOMES."""
        self.outcomes[outcome] += count


FRONTEND_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    counter(
        "lightrail_messages_received", "Complete messages that arrived from senders, whatever their outcome."
    ),
    counter("lightrail_message_bytes_received", "Bytes of messages that arrived from senders."),
    counter(
        "lightrail_messages_accepted",
        "Messages that were answered with accepted, or arrived settled and were stored.",
    ),
    counters(
        "lightrail_messages_not_accepted",
        "Messages that were not accepted, by the outcome that was sent to their senders.",
        "outcome",
        {"rejected": "messages_refused", "released": "messages_released"},
    ),
    counter("lightrail_messages_routed", "Copies of messages that routers sent to queues."),
    counter(
        "lightrail_messages_too_large",
        "Messages above the max-message-size of a receiver, which were kept for other receivers.",
    ),
    counter(
        "lightrail_messages_unroutable",
        "Messages to routers without a matching subscriber: rejected or dropped, by policy.",
    ),
    gauge(
        "lightrail_transaction_bytes",
        "Memory of the messages and settlements of transactions that are not discharged.",
    ),
    counter("lightrail_transactions_declared", "Transactions that were declared."),
    counter("lightrail_transactions_committed", "Transactions that were committed."),
    counter(
        "lightrail_transactions_rolled_back",
        "Transactions that were rolled back, by their clients or by the broker.",
    ),
    counter("lightrail_messages_delivered", "Messages written to receivers."),
    counter("lightrail_messages_redelivered", "Deliveries of messages that had been delivered before."),
    counter("lightrail_message_bytes_delivered", "Bytes of messages written to receivers."),
    Family(
        "counter",
        "lightrail_messages_settled",
        "Deliveries that receivers settled, by outcome; presettled ones were sent settled.",
        ("outcome",),
        lambda counts: [
            *(((name,), count) for name, count in zip(OUTCOMES, counts.outcomes, strict=True)),
            (("presettled",), counts.messages_presettled),
        ],
    ),
    gauge("lightrail_connections", "AMQP connections that are open now."),
    gauge(
        "lightrail_connections_limit",
        "Largest number of connections of one frontend.",
        lambda _: limits.CONNECTIONS_MAX,
    ),
    gauge("lightrail_connections_websocket", "Open AMQP connections over WebSocket.", "websockets"),
    counter("lightrail_connections_opened", "AMQP connections that were opened."),
    counter("lightrail_connections_refused", "Sockets that were refused because a limit was reached."),
    counter(
        "lightrail_connections_failed",
        "Connections that ended with an error of the client: framing, decoding, silence.",
    ),
    counter("lightrail_authentications_failed", "SASL exchanges that did not succeed."),
    gauge("lightrail_sessions", "AMQP sessions that are open now."),
    gauge(
        "lightrail_links",
        "AMQP links that are attached now.",
        lambda counts: counts.links_opened - counts.links_closed,
    ),
    counter("lightrail_links_opened", "AMQP links that were attached."),
    counter("lightrail_links_closed", "AMQP links that were detached, or ended with their connection."),
    counter("lightrail_links_refused", "Attach frames that were refused."),
    counters(
        "lightrail_frame_bytes",
        "Bytes of AMQP frames, headers and SASL included, TLS not.",
        "direction",
        {"received": "frame_bytes_received", "sent": "frame_bytes_sent"},
    ),
    counter(
        "lightrail_write_stalls", "Times a connection got no more deliveries because its peer did not read."
    ),
    counter("lightrail_batches_repeated", "Batches sent again to a shard that had not answered them."),
    counter(
        "lightrail_credit_held",
        "Accepted messages whose credit was renewed only after consumers had caught up.",
    ),
    gauge(
        "lightrail_unanswered_bytes",
        "Bytes of received messages that no shard has answered yet, and 1 KiB for each batch.",
    ),
    gauge(
        "lightrail_scanner_compiled",
        "1 where transfers are read by compiled code, 0 where the installation could not compile it.",
    ),
    gauge("lightrail_shards_connected", "Shards that answer this frontend."),
)
