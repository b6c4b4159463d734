"""Frontend: counters of a frontend, and its metrics, which are read from these counters.

Hot code adds to plain integers of FrontendCounts, once per batch. Counters never fall.
"""

from typing import Any, Final

from lightrail.model import limits
from lightrail.telemetry.metrics import AnyFamily, Family, counter, counters, gauge

OUTCOMES: Final = ("accepted", "rejected", "released", "modified")
"""Outcomes by their codes between frontend and shard (docs/formats/wire.md)."""


class FrontendCounts:
    """Counters of a frontend. Integers; only the loop that owns the sockets writes them."""

    __slots__ = (
        "authentications_failed",
        "batches_repeated",
        "connections",
        "connections_failed",
        "connections_opened",
        "connections_refused",
        "credit_held",
        "frame_bytes_received",
        "frame_bytes_sent",
        "links_closed",
        "links_opened",
        "links_refused",
        "message_bytes_delivered",
        "message_bytes_received",
        "messages_accepted",
        "messages_delivered",
        "messages_presettled",
        "messages_received",
        "messages_redelivered",
        "messages_refused",
        "messages_released",
        "messages_routed",
        "messages_too_large",
        "messages_unroutable",
        "outcomes",
        "scanner_compiled",
        "sessions",
        "shards_connected",
        "transaction_bytes",
        "transactions_committed",
        "transactions_declared",
        "transactions_rolled_back",
        "unanswered_bytes",
        "websockets",
        "write_stalls",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)
        self.outcomes = [0] * len(OUTCOMES)
        """Settled deliveries by the codes of OUTCOMES."""

    authentications_failed: int
    batches_repeated: int
    connections: int
    connections_failed: int
    connections_opened: int
    connections_refused: int
    credit_held: int
    frame_bytes_received: int
    frame_bytes_sent: int
    links_closed: int
    links_opened: int
    links_refused: int
    message_bytes_delivered: int
    message_bytes_received: int
    messages_accepted: int
    messages_delivered: int
    messages_presettled: int
    messages_received: int
    messages_redelivered: int
    messages_refused: int
    messages_released: int
    messages_routed: int
    messages_too_large: int
    messages_unroutable: int
    scanner_compiled: int
    sessions: int
    shards_connected: int
    transaction_bytes: int
    transactions_committed: int
    transactions_declared: int
    transactions_rolled_back: int
    unanswered_bytes: int
    websockets: int
    write_stalls: int

    def settled(self, outcome: int, count: int) -> None:
        """Receivers settled deliveries; ``outcome`` is an index in OUTCOMES."""
        self.outcomes[outcome] += count


FRONTEND_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    counter(
        "lightrail_messages_received",
        "Complete messages that arrived from senders, whatever their outcome.",
        "messages_received",
    ),
    counter(
        "lightrail_message_bytes_received",
        "Bytes of messages that arrived from senders.",
        "message_bytes_received",
    ),
    counter(
        "lightrail_messages_accepted",
        "Messages that were answered with accepted, or arrived settled and were stored.",
        "messages_accepted",
    ),
    counters(
        "lightrail_messages_not_accepted",
        "Messages that were not accepted, by the outcome that was sent to their senders.",
        "outcome",
        {"rejected": "messages_refused", "released": "messages_released"},
    ),
    counter(
        "lightrail_messages_routed", "Copies of messages that routers sent to queues.", "messages_routed"
    ),
    counter(
        "lightrail_messages_too_large",
        "Messages above the max-message-size of a receiver, which were kept for other receivers.",
        "messages_too_large",
    ),
    counter(
        "lightrail_messages_unroutable",
        "Messages to routers without a matching subscriber: rejected or dropped, by policy.",
        "messages_unroutable",
    ),
    gauge(
        "lightrail_transaction_bytes",
        "Memory of the messages and settlements of transactions that are not discharged.",
        "transaction_bytes",
    ),
    counter("lightrail_transactions_declared", "Transactions that were declared.", "transactions_declared"),
    counter(
        "lightrail_transactions_committed", "Transactions that were committed.", "transactions_committed"
    ),
    counter(
        "lightrail_transactions_rolled_back",
        "Transactions that were rolled back, by their clients or by the broker.",
        "transactions_rolled_back",
    ),
    counter("lightrail_messages_delivered", "Messages written to receivers.", "messages_delivered"),
    counter(
        "lightrail_messages_redelivered",
        "Deliveries of messages that had been delivered before.",
        "messages_redelivered",
    ),
    counter(
        "lightrail_message_bytes_delivered",
        "Bytes of messages written to receivers.",
        "message_bytes_delivered",
    ),
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
    gauge("lightrail_connections", "AMQP connections that are open now.", "connections"),
    Family(
        "gauge",
        "lightrail_connections_limit",
        "Largest number of connections of one frontend.",
        (),
        lambda _: [((), limits.CONNECTIONS_MAX)],
    ),
    gauge("lightrail_connections_websocket", "Open AMQP connections over WebSocket.", "websockets"),
    counter("lightrail_connections_opened", "AMQP connections that were opened.", "connections_opened"),
    counter(
        "lightrail_connections_refused",
        "Sockets that were refused because a limit was reached.",
        "connections_refused",
    ),
    counter(
        "lightrail_connections_failed",
        "Connections that ended with an error of the client: framing, decoding, silence.",
        "connections_failed",
    ),
    counter(
        "lightrail_authentications_failed", "SASL exchanges that did not succeed.", "authentications_failed"
    ),
    gauge("lightrail_sessions", "AMQP sessions that are open now.", "sessions"),
    Family(
        "gauge",
        "lightrail_links",
        "AMQP links that are attached now.",
        (),
        lambda counts: [((), counts.links_opened - counts.links_closed)],
    ),
    counter("lightrail_links_opened", "AMQP links that were attached.", "links_opened"),
    counter(
        "lightrail_links_closed",
        "AMQP links that were detached, or ended with their connection.",
        "links_closed",
    ),
    counter("lightrail_links_refused", "Attach frames that were refused.", "links_refused"),
    counters(
        "lightrail_frame_bytes",
        "Bytes of AMQP frames, headers and SASL included, TLS not.",
        "direction",
        {"received": "frame_bytes_received", "sent": "frame_bytes_sent"},
    ),
    counter(
        "lightrail_write_stalls",
        "Times a connection got no more deliveries because its peer did not read.",
        "write_stalls",
    ),
    counter(
        "lightrail_batches_repeated",
        "Batches sent again to a shard that had not answered them.",
        "batches_repeated",
    ),
    counter(
        "lightrail_credit_held",
        "Accepted messages whose credit was renewed only after consumers had caught up.",
        "credit_held",
    ),
    gauge(
        "lightrail_unanswered_bytes",
        "Bytes of received messages that no shard has answered yet, and 1 KiB for each batch.",
        "unanswered_bytes",
    ),
    gauge(
        "lightrail_scanner_compiled",
        "1 where transfers are read by compiled code, 0 where the installation could not compile it.",
        "scanner_compiled",
    ),
    gauge("lightrail_shards_connected", "Shards that answer this frontend.", "shards_connected"),
)
