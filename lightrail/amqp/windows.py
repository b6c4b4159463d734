"""The windows of a session: how many transfer frames may come, and how many may leave (transport 2.5.6).

Windows count transfer frames. Every flow that we write opens the incoming window to its full size; when half
of it is used, a flow is written for that. Link credit decides how much a peer may send, the window only
bounds what one session can make us buffer. The outgoing window is the peer's: no transfer leaves beyond it;
what does not fit waits in its link (`waiting`) until the peer's flow arrives.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp import frames
from lightrail.amqp.errors import SessionProtocolError
from lightrail.amqp.performatives import Flow, encode_performative
from lightrail.amqp.unsettled import WIRE, signed
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint

BEGIN_SENT: Final = 0
MAPPED: Final = 1
END_SENT: Final = 2
ENDED: Final = 3

OUTGOING_WINDOW: Final = 0x7FFFFFFF
"""The window that we announce: the receivers' credit and the peer's incoming window bound what we send."""


@dataclass(slots=True, eq=False, repr=False)
class Windows:
    """The part of a session that counts transfers; `state` is that of the session."""

    connection: "ConnectionEndpoint"
    channel: int
    """Our (outgoing) channel."""
    state: int = BEGIN_SENT
    next_incoming_id: int = 0
    incoming_window: int = field(init=False)
    incoming_left: int = field(init=False)
    remote_outgoing_window: int = 0
    next_outgoing_id: int = field(init=False)
    remote_incoming_window: int = 0
    refresh_due: bool = False

    def __post_init__(self) -> None:
        settings = self.connection.settings
        self.incoming_window = self.incoming_left = settings.session_incoming_window
        self.next_outgoing_id = settings.initial_outgoing_id

    def take_windows(
        self, next_incoming_id: int | None, incoming_window: int, next_outgoing_id: int, outgoing_window: int
    ) -> None:
        """Apply the session's part of the peer's flow; ids as on the wire."""
        # next-outgoing-id of the peer replaces the id that this end has counted (2.5.6).
        self.next_incoming_id = next_outgoing_id
        self.remote_outgoing_window = outgoing_window
        # A peer that has not received our begin sends null: it is our initial outgoing id (2.7.4).
        if next_incoming_id is None:
            next_incoming_id = self.connection.settings.initial_outgoing_id
        # In flight are transfers that the peer had not received; they use up the beginning of its window.
        in_flight = signed(self.next_outgoing_id - next_incoming_id)
        self.remote_incoming_window = max(0, incoming_window - in_flight)

    def write_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        link_credit: int | None = None,
        available: int | None = None,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        """Write our flow, which opens the incoming window to its full size."""
        if self.state != MAPPED and self.state != BEGIN_SENT:
            return
        # Each flow opens the window, whatever it is written for: so credit that is granted often spares flows
        # of the window's own.
        self.incoming_left = self.incoming_window
        self.connection.output.append(
            frames.flow(
                self.channel,
                # Not before the peer's begin, which names it (2.7.4).
                self.next_incoming_id & WIRE if self.state == MAPPED else None,
                self.incoming_window,
                self.next_outgoing_id & WIRE,
                OUTGOING_WINDOW,
                handle,
                delivery_count,
                link_credit,
                available,
                drain,
                echo,
            )
        )

    def write_flow_with(self, flow: Flow) -> None:
        """Write a flow with the fields of a link and properties; those of the session are set here."""
        if self.state != MAPPED:
            return
        self.incoming_left = flow.incoming_window = self.incoming_window
        flow.next_incoming_id = self.next_incoming_id & WIRE
        flow.next_outgoing_id = self.next_outgoing_id & WIRE
        flow.outgoing_window = OUTGOING_WINDOW
        self.connection.output.append(frames.frame(self.channel, encode_performative(flow)))

    def count_incoming(self, count: int) -> None:
        """Count received transfer frames; the window is opened again at the end of the feed."""
        self.next_incoming_id += count
        left = self.incoming_left = self.incoming_left - count
        if left < 0:
            raise SessionProtocolError(
                conditions.WINDOW_VIOLATION,
                f"expected at most {self.incoming_window} transfers in the incoming window, found more",
            )
        # At half, not at zero: a peer that has to wait for our flow would stand still for a round trip. At
        # the end of the feed, because a grant of credit in it opens the window already.
        if left <= self.incoming_window >> 1 and not self.refresh_due:
            self.refresh_due = True
            self.connection.refresh_windows(self)

    def sent_transfers(self, count: int) -> None:
        """Count written transfer frames."""
        self.next_outgoing_id += count
        self.remote_incoming_window -= count

    def write(self, body: bytes) -> None:
        """Write one frame on this session's channel."""
        if self.state == MAPPED or self.state == BEGIN_SENT:
            self.connection.output.append(frames.frame(self.channel, body))

    def write_part(self, body: bytes, payload: memoryview) -> None:
        """Write one frame with a part of a large message, which is not copied here."""
        if self.state == MAPPED or self.state == BEGIN_SENT:
            self.connection.output += (frames.head(self.channel, body, len(payload)), payload)
