"""Settings that the connections of one listener share: names, limits, security, times."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.compiled import COMPILED
from lightrail.amqp.values import Symbol
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.amqp.performatives import Attach, Open

MAX_FRAME_SIZE: Final[int] = 65_536
"""Largest frame that we announce in open (spec 2.7.1); proton and rhea announce 32 KiB and 1 MiB."""
MAX_SASL_FRAME_SIZE: Final[int] = 16_384
"""Largest SASL frame. SCRAM and OAuth tokens outgrow the 512 bytes of the specification (5.3.2)."""
CHANNEL_MAX: Final[int] = 4_999
"""Highest channel number of a connection, that of Service Bus: Azure's client for .NET opens a session
for each link. A session without links takes 1,050 bytes."""
HANDLE_MAX: Final[int] = 4_095
"""Highest link handle of a session."""
LINKS_PER_CONNECTION_MAX: Final[int] = 4_096
"""Links of a connection over all of its sessions, as many as one session may have. More are refused; at twice
as many the connection is closed."""
ATTACH_BYTES_MAX: Final[int] = 2 * 1024 * 1024
"""Bytes that a connection's links may occupy: whole attaches until they are answered, then name and
addresses. Enforced like LINKS_PER_CONNECTION_MAX."""
SESSION_INCOMING_WINDOW: Final[int] = 8_192
"""Transfer frames a session may send us before we open its window again."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Sizes in bytes, times in milliseconds."""

    container_id: str = "lightrail"
    hostname: str | None = None
    max_frame_size: int = MAX_FRAME_SIZE
    channel_max: int = CHANNEL_MAX
    handle_max: int = HANDLE_MAX
    links_max: int = LINKS_PER_CONNECTION_MAX
    attach_bytes_max: int = ATTACH_BYTES_MAX
    session_incoming_window: int = SESSION_INCOMING_WINDOW
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
    max_sasl_frame_size: int = MAX_SASL_FRAME_SIZE
    offered_capabilities: tuple[str, ...] = ()
    open_deciding: frozenset[str] = frozenset()
    """Capabilities: where a client desires one of them, the caller decides on its open (event OpenAsked)."""
    properties: dict[Symbol, Any] = field(default_factory=dict)
    names_at_termini: "Callable[[Open | None, Attach], bool]" = lambda _open, _attach: False
    """Whether links of a peer that have one name at different addresses are different links. In the
    specification a name is that of one link between two containers (2.6.1)."""
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
