"""Settings that the connections of one listener share: names, limits, security, times."""

from dataclasses import dataclass, field
from typing import Any

from lightrail.amqp.compiled import COMPILED
from lightrail.amqp.values import Symbol
from lightrail.model import limits


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Sizes in bytes, times in milliseconds."""

    container_id: str = "lightrail"
    hostname: str | None = None
    max_frame_size: int = limits.MAX_FRAME_SIZE
    channel_max: int = limits.CHANNEL_MAX
    handle_max: int = limits.HANDLE_MAX
    links_max: int = limits.LINKS_PER_CONNECTION_MAX
    attach_bytes_max: int = limits.ATTACH_BYTES_MAX
    session_incoming_window: int = limits.SESSION_INCOMING_WINDOW
    max_message_size: int = limits.MAX_MESSAGE_BYTES
    unfinished_bytes_max: int = limits.UNFINISHED_MESSAGES_MAX * limits.MAX_MESSAGE_BYTES
    """Memory of incomplete messages over all links."""
    beyond_credit_max: int = 0
    """Transfers beyond its credit that a receiving link accepts before it is detached."""
    idle_time_out_ms: int = limits.IDLE_TIME_OUT_MS
    """Silence of the peer after which we close; 0 for never. We announce half of it."""
    peer_idle_time_out_ms_min: int = 20
    """Shortest idle-time-out of a peer that we accept (2.4.5)."""
    opening_time_ms: int = limits.OPENING_TIME_MS
    closing_time_ms: int = limits.CLOSING_TIME_MS
    is_server: bool = True
    sasl_mechanisms: tuple[str, ...] = ()
    """Offered in this order; without any there is no SASL layer."""
    uses_sasl: bool = False
    """Whether a client begins with the SASL header."""
    allow_plain_header: bool = True
    """Whether a peer may connect without SASL."""
    max_sasl_frame_size: int = limits.MAX_SASL_FRAME_SIZE
    offered_capabilities: tuple[str, ...] = ()
    open_deciding: frozenset[str] = frozenset()
    """Capabilities: where a client desires one of them, the caller decides on its open (event OpenAsked)."""
    properties: dict[Symbol, Any] = field(default_factory=dict)
    transactions: bool = False
    """Whether transfers and outcomes within transactions become events; else their links are detached."""
    initial_outgoing_id: int = 0
    initial_delivery_id: int = 0
    initial_delivery_count: int = 0
    scans: bool = True
    """Whether runs of transfers are read by the scanner."""
    learn_shapes: bool = not COMPILED
    """Whether transfers are compared with learned shapes first, which is faster than an interpreted scanner.

    With neither, every transfer goes through the complete decoder: for the tests that compare them.
    """
