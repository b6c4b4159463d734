"""The connection endpoint: open and close, and the sessions in between (transport 2.4).

Phases. A server waits in HEADER for a protocol header; a SASL header leads to SASL and, once the caller has
accepted the user, back to HEADER. After the AMQP header it is OPENING until the peer's open arrives, which is
answered with our open at once, then OPEN. Our close makes it CLOSING: everything is dropped until the peer's
close (CLOSE_SENT and DISCARDING of 2.4.6 alike) or until time is up. Then it is CLOSED.

Who closes. The engine answers a peer's close, end and detach, and the event reports them. It answers an error
of the peer with close, end or detach, whichever the specification asks for, and the event has by_peer False.
What the caller ends has no event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.amqp import frames
from lightrail.amqp.errors import ConnectionProtocolError, EndedError, FramingError, LocalError
from lightrail.amqp.events import Closed, Event, OpenAsked, Opened
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import AmqpError, Begin, Close, Open, encode_performative, make_error
from lightrail.amqp.phases import CLOSED, CLOSING, DECIDING, HEADER, OPEN, OPENING, SASL
from lightrail.amqp.receiver import ReceivingLink
from lightrail.amqp.security import SaslClient, SaslServer
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.settlement import DispositionRest
from lightrail.amqp.shapes import Shape
from lightrail.amqp.values import Symbol
from lightrail.amqp.windows import BEGIN_SENT, END_SENT, Windows
from lightrail.model import conditions, limits

MIN_MAX_FRAME_SIZE: Final[int] = 512
"""No peer may ask for less (spec 2.4.1)."""
ESTABLISHMENT_FAILED: Final = Symbol("amqp:connection-establishment-failed")
"""Property of an open that a close with the reason follows."""


@dataclass(slots=True, eq=False, repr=False)
class ConnectionEndpoint:
    """The state of a connection that its frames, sessions and links read and change; see connection.py."""

    settings: ConnectionSettings
    _now_ms: int
    phase: int = HEADER
    output: list[bytes | memoryview] = field(default_factory=list)
    """Pieces to write, in order; the caller joins and clears it."""
    has_large_output: bool = False
    """Some pieces of the output are to be written uncopied; the caller clears this with the output."""
    events: list[Event] = field(default_factory=list)
    """Events that the next feed returns, or the current one will return."""
    sessions: dict[int, Session] = field(default_factory=dict)
    """By the peer's channel."""
    ended: set[int] = field(default_factory=set)
    """The peer's channels whose session the peer has ended, without those that have another one."""
    _channels: dict[int, Session] = field(default_factory=dict)
    _free_from: int = 0
    """No channel below is free."""
    names: dict[tuple[str, bool, str], LinkEndpoint] = field(default_factory=dict)
    peer_open: Open | None = None
    peer_max_frame_size: int = MIN_MAX_FRAME_SIZE
    peer_channel_max: int = 0
    sasl_done: bool = False
    sasl: SaslServer | SaslClient | None = None
    _open_sent: bool = False
    shape: Shape[ReceivingLink] | None = None
    _refresh: list[Windows] | None = None
    _views: list[ReceivingLink] = field(default_factory=list)
    """Links whose assembly has views of the bytes that are being read: see Assembly.copy_views."""
    _pending: bytearray | None = None
    needed: int = 0
    work: int = limits.FRAMES_OF_A_TURN
    """Frames that may still be read in this turn."""
    rest: DispositionRest | None = None
    """DispositionRest of the disposition that was read last; it is applied before any other frame."""
    unfinished_bytes: int = 0
    """Memory of incomplete messages of all links."""
    _links_seen: int = 0
    """Links of all sessions, at most: the peer may have ended some since they were counted."""
    _attach_bytes_seen: int = 0
    """`attach_bytes` of all sessions, at most."""
    _sent_ms: int = field(init=False)
    _peer_idle_ms: int = 0
    _close_at_ms: int = 0

    def __post_init__(self) -> None:
        self._sent_ms = self._now_ms
        if not self.settings.is_server:
            self.output.append(frames.SASL_HEADER if self.settings.uses_sasl else frames.AMQP_HEADER)

    @property
    def closed(self) -> bool:
        """Nothing more will be read or written: write the output and close the socket."""
        return self.phase == CLOSED

    @property
    def opened(self) -> bool:
        """Both opens have been exchanged and neither close."""
        return self.phase == OPEN

    # --- commands ----------------------------------------------------------------------------------------

    def open(self, properties: Mapping[Symbol, Any] | None = None) -> None:
        """Write our open, as a client does; a server's open follows the peer's by itself.

        Args:
            properties: of this open, beside those of the settings.
        """
        if self.phase not in (HEADER, OPENING, DECIDING) or (self.phase == HEADER and not self._header_sent):
            raise LocalError("open can only be sent after the protocol header and before close")
        if self._open_sent:
            return
        self._open_sent = True
        settings = self.settings
        self._write(
            0,
            encode_performative(
                Open(
                    container_id=settings.container_id,
                    hostname=settings.hostname,
                    max_frame_size=settings.max_frame_size,
                    channel_max=settings.channel_max,
                    # Half of what is waited for, as the specification recommends: a peer that sends just in
                    # time is not taken for dead (2.4.5).
                    idle_time_out=settings.idle_time_out_ms // 2 or None,
                    offered_capabilities=[Symbol(name) for name in settings.offered_capabilities] or None,
                    properties={**settings.properties, **(properties or {})} or None,
                )
            ),
        )

    def begin(self) -> Session:
        """Begin a session from our side; the event Begun follows the peer's answer.

        Raises EndedError when the connection has ended.
        """
        if self.phase > OPEN:
            raise EndedError("begin can only be sent before close")
        if not self._open_sent:
            raise LocalError("begin can only be sent after open")
        # channel-max is the highest number, so that there is one session more (2.7.1).
        if len(self._channels) > self.peer_channel_max:
            raise LocalError(f"the peer takes {self.peer_channel_max + 1} sessions at a time")
        session = self._new_session()
        session.write_begin(None)
        return session

    def close(
        self, condition: str | None = None, description: str = "", info: dict[Symbol, Any] | None = None
    ) -> None:
        """Close the connection and all in it, without an event; Azure's client for Python needs an info."""
        self._close(make_error(condition, description, info or {}))

    def sasl_succeeded(self) -> None:
        """After the negotiation a protocol header follows, as on a new connection (5.3.2)."""
        self.sasl_done = True
        self.sasl = None
        self.phase = HEADER
        if not self.settings.is_server:
            self.output.append(frames.AMQP_HEADER)

    def sasl_failed(self) -> None:
        """The server refused the credentials, and closes the socket."""
        self._stop()

    @property
    def _header_sent(self) -> bool:
        """Whether a client's AMQP header is written, so that open may follow."""
        return not self.settings.is_server and (self.sasl_done or not self.settings.uses_sasl)

    # --- connection frames -------------------------------------------------------------------------------

    def on_open(self, channel: int, peer: Open) -> None:
        if self.phase != OPENING:
            raise ConnectionProtocolError(conditions.NOT_ALLOWED, "expected one open, found a second")
        if channel:
            raise ConnectionProtocolError(
                conditions.FRAMING_ERROR, f"expected open on channel 0, found it on channel {channel}"
            )
        if peer.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ConnectionProtocolError(
                conditions.INVALID_FIELD,
                f"expected max-frame-size >= {MIN_MAX_FRAME_SIZE}, found {peer.max_frame_size}",
            )
        idle = peer.idle_time_out or 0
        if 0 < idle < self.settings.peer_idle_time_out_ms_min:
            raise ConnectionProtocolError(
                conditions.INVALID_FIELD,
                f"expected idle-time-out >= {self.settings.peer_idle_time_out_ms_min} ms, found {idle}",
            )
        self.peer_open = peer
        # Frames that we send are no larger than those that we accept: links take turns between frames.
        self.peer_max_frame_size = min(peer.max_frame_size, self.settings.max_frame_size)
        self.peer_channel_max = peer.channel_max
        self._peer_idle_ms = idle
        # The peer's idle-time-out is known from here on, and counts from now (2.4.5).
        self._sent_ms = self._now_ms
        deciding = self.settings.open_deciding
        if deciding and not deciding.isdisjoint(peer.desired_capabilities or ()):
            self.phase = DECIDING
            self.events.append(OpenAsked(peer))
        else:
            self._accept(peer, None)

    def accept_open(self, properties: Mapping[Symbol, Any] | None = None) -> None:
        """Answer OpenAsked; feed(b"") reads on."""
        if self.phase != DECIDING or self.peer_open is None:
            raise LocalError("an open can be accepted after OpenAsked only, and once")
        self._accept(self.peer_open, properties)

    def refuse_open(self, condition: str, description: str, info: dict[Symbol, Any] | None = None) -> None:
        """Answer OpenAsked with an open that says that it failed, and a close (soleconn 3.2.1)."""
        if self.phase != DECIDING:
            raise LocalError("an open can be refused after OpenAsked only, and once")
        self.open({ESTABLISHMENT_FAILED: True})
        self.close(condition, description, info)

    def _accept(self, peer: Open, properties: Mapping[Symbol, Any] | None) -> None:
        self.open(properties)
        self.phase = OPEN
        self.events.append(Opened(peer))

    def on_begin(self, channel: int, begin: Begin) -> None:
        if channel in self.sessions:
            raise ConnectionProtocolError(
                conditions.NOT_ALLOWED,
                f"expected begin on a channel that is free, found it on channel {channel}",
            )
        if begin.remote_channel is None:
            if len(self._channels) > self.peer_channel_max:
                raise ConnectionProtocolError(
                    conditions.NOT_ALLOWED,
                    f"expected at most {self.peer_channel_max + 1} sessions by your channel-max, found more",
                )
            session = self._new_session()
        else:
            found = self._channels.get(begin.remote_channel)
            if found is None or found.state not in (BEGIN_SENT, END_SENT) or found.remote_channel >= 0:
                raise ConnectionProtocolError(
                    conditions.NOT_ALLOWED,
                    f"expected remote-channel of a session that we began, found {begin.remote_channel}",
                )
            session = found
        self.sessions[channel] = session
        self.ended.discard(channel)
        session.on_begin(channel, begin)

    def on_close(self, close: Close) -> None:
        error = close.error
        # Each end sends open before close (2.4.3).
        if not self._open_sent:
            self.open()
        self._answer_ends()
        self._write(0, encode_performative(Close()))
        self.terminate(error=error, by_peer=True)

    # --- close -------------------------------------------------------------------------------------------

    def fail(self, fault: ConnectionProtocolError) -> None:
        """Close with the condition of the peer's error, with an event."""
        if self.phase >= CLOSING:
            return
        error = make_error(fault.condition, fault.description, {})
        # No frame can be sent before both protocol headers are exchanged (2.2): the socket is closed.
        if self.phase in (HEADER, SASL):
            self.terminate(error=error)
            return
        self._close(error)
        self.events.append(Closed(error, False))
        # Where the next frame begins is not known any more, so that the peer's close could not be found.
        if isinstance(fault, FramingError):
            self.phase = CLOSED

    def _close(self, error: AmqpError | None) -> None:
        if self.phase >= CLOSING:
            return
        if self.phase in (HEADER, SASL):
            self._stop()
            return
        if not self._open_sent:
            self.open()
        self._answer_ends()
        self._write(0, encode_performative(Close(error=error)))
        self.phase = CLOSING
        # A peer that never answers must not keep the socket.
        self._close_at_ms = self._now_ms + self.settings.closing_time_ms
        self._forget()

    def _answer_ends(self) -> None:
        """Answer ends that wait for the caller: nothing follows a close."""
        for session in list(self._channels.values()):
            session.answer_end()

    def terminate(
        self,
        condition: str | None = None,
        description: str = "",
        error: AmqpError | None = None,
        by_peer: bool = False,
    ) -> None:
        """Stop reading and writing, with a Closed event unless our close is written."""
        announced = self.phase == CLOSING
        self._stop()
        if not announced:
            self.events.append(Closed(error or make_error(condition, description), by_peer))

    def _stop(self) -> None:
        self.phase = CLOSED
        self._pending = None
        self._forget()

    def _forget(self) -> None:
        """Abandon all sessions; `sessions` still lists them for the caller."""
        for session in list(self._channels.values()):
            # From here on commands of their callers have no effect: nothing follows a close.
            session.state = END_SENT
            session.forget()
        self.names.clear()
        self.shape = None
        self._refresh = None

    def _write(self, channel: int, body: bytes) -> None:
        self.output.append(frames.frame(channel, body))

    # --- for sessions and links ----------------------------------------------------------------------------

    def _new_session(self) -> Session:
        # The lowest number that is free, as channel-max bounds the number and not the count (2.7.1).
        channel = self._free_from
        while channel in self._channels:
            channel += 1
        self._free_from = channel + 1
        session = Session(self, channel)
        self._channels[channel] = session
        return session

    def unmap_channel(self, session: Session) -> None:
        """Our end is written: our channel is free."""
        if self._channels.get(session.channel) is session:
            del self._channels[session.channel]
            self._free_from = min(self._free_from, session.channel)

    def unmap_remote_channel(self, session: Session) -> None:
        """The peer's end has arrived: its channel is free."""
        if self.sessions.get(session.remote_channel) is session:
            del self.sessions[session.remote_channel]
            self.ended.add(session.remote_channel)

    def admit(self, size: int) -> str | None:
        """Why one more link, with an attach of so many bytes, may not be attached; None where it may.

        Raises ConnectionProtocolError for a peer that continues to attach after many refusals.
        """
        settings = self.settings
        self._links_seen += 1
        self._attach_bytes_seen += size
        # Both are upper bounds: what ends or becomes smaller is subtracted here, when it may matter. So an
        # attach does not look at thousands of sessions.
        if self._links_seen > settings.links_max or self._attach_bytes_seen > settings.attach_bytes_max:
            sessions = self.sessions.values()
            self._links_seen = sum(len(session.inputs) for session in sessions) + 1
            self._attach_bytes_seen = sum(session.attach_bytes for session in sessions) + size
        for found, most, what in (
            (self._links_seen, settings.links_max, "links"),
            (
                self._attach_bytes_seen,
                settings.attach_bytes_max,
                "bytes of names, addresses and unanswered attaches",
            ),
        ):
            if found <= most:
                continue
            text = f"expected at most {most} {what} on a connection, found {found}; use another connection"
            # A refusal costs an attach and a detach: a peer that goes on like this is not answered forever.
            if found > 2 * most:
                raise ConnectionProtocolError(conditions.RESOURCE_LIMIT_EXCEEDED, text)
            return text
        return None

    def forget_name(self, link: LinkEndpoint) -> None:
        """The link's name is free."""
        key = (link.name, link.is_sender, link.scope)
        if self.names.get(key) is link:
            del self.names[key]

    def steal(self, key: tuple[str, bool, str]) -> None:
        """Detach the attached link whose name and role the peer attaches again (2.6.1)."""
        link = self.names.get(key)
        if link is not None:
            link.steal()

    def keep_views(self, link: ReceivingLink) -> None:
        """Copy the link's views of the bytes that are being read, where it pays, after this feed."""
        self._views.append(link)

    def refresh_windows(self, session: Windows) -> None:
        """Write a flow after this feed, unless one is written by then: half of the window is used."""
        if self._refresh is None:
            self._refresh = []
        self._refresh.append(session)
