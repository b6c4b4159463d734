"""The connection endpoint: bytes in, events out; commands in, bytes out (transport 2.2 to 2.4, security 5.3).

Theory of operation. The caller owns the socket and the clock. It gives what it read to `feed`, acts on the
events, gives commands to the connection, its sessions and links, and writes what is in `output`:

    for event in connection.feed(data, now_ms): ...
    data = b"".join(connection.output); connection.output.clear()
    if connection.closed: close the socket once `data` is written
    call connection.tick(now_ms) at the time that the last tick gave back; events of it come with feed(b"")

Phases. A server waits in HEADER for a protocol header; a SASL header leads to SASL and, when the caller has
given a good outcome, back to HEADER. After the AMQP header it is OPENING until the peer's open comes, which
is answered with ours at once, then OPEN. Our close makes it CLOSING: all that comes is dropped until the
peer's close (CLOSE_SENT and DISCARDING of 2.4.6 alike) or until time is up. Then it is CLOSED.

Who closes. A peer's close, end and detach are answered by the engine; the event says that it happened. A
peer's fault is answered with close, end or detach, whichever the specification asks for, and the event says
so with by_peer False. What the caller ends gives no event. `feed` never raises for what a peer sent.

After SaslInit and SaslResponse nothing more is read until the caller has answered; it then calls feed(b"").
A client that `uses_sasl` begins with the SASL header, and answers SaslOffered and SaslChallenged likewise;
SaslSucceeded says that its AMQP header is written, and that it may `open`.
"""

from typing import Any

from lightrail.amqp import frames
from lightrail.amqp.events import Closed, Event, Opened
from lightrail.amqp.faults import ConnectionFault, FramingFault, LocalError
from lightrail.amqp.headers import read_header
from lightrail.amqp.link import Link, make_error
from lightrail.amqp.performatives import AmqpError, Begin, Close, Open, encode_performative
from lightrail.amqp.phases import CLOSED, CLOSING, HEADER, OPEN, OPENING, SASL
from lightrail.amqp.reader import discard_frames, read_frames
from lightrail.amqp.receiver import ReceivingLink
from lightrail.amqp.security import AUTH, OK, SaslClient, SaslServer
from lightrail.amqp.session import Rest, Session
from lightrail.amqp.settings import ConnectionSettings as ConnectionSettings
from lightrail.amqp.shapes import Shape
from lightrail.amqp.values import Symbol
from lightrail.amqp.windows import BEGIN_SENT, END_SENT, MAPPED, Windows
from lightrail.model import conditions, limits


class Connection:
    """One connection. `context` is the caller's own; `user` is who sasl_outcome said."""

    __slots__ = (
        "_channels",
        "_close_at_ms",
        "_created_ms",
        "_heard_ms",
        "_now_ms",
        "_open_sent",
        "_peer_idle_ms",
        "_pending",
        "_refresh",
        "_said_ms",
        "_views",
        "context",
        "events",
        "has_large_output",
        "names",
        "needed",
        "output",
        "peer_channel_max",
        "peer_max_frame_size",
        "peer_open",
        "phase",
        "rest",
        "sasl",
        "sasl_done",
        "sessions",
        "settings",
        "shape",
        "unfinished_bytes",
        "user",
        "work",
    )

    def __init__(self, settings: ConnectionSettings, now_ms: int) -> None:
        self.settings = settings
        self.phase = HEADER
        self.output: list[bytes | memoryview] = []
        """Pieces to write, in order; the caller joins and clears it."""
        self.has_large_output = False
        """Some pieces of the output are written uncopied; who writes the output clears this."""
        self.events: list[Event] = []
        """What the next feed gives, or the one at work will give."""
        self.sessions: dict[int, Session] = {}
        """By the peer's channel."""
        self._channels: dict[int, Session] = {}
        self.names: dict[tuple[str, bool], Link] = {}
        self.peer_open: Open | None = None
        self.peer_max_frame_size = limits.MIN_MAX_FRAME_SIZE
        self.peer_channel_max = 0
        self.context: Any = None
        self.user: str | None = None
        self.sasl_done = False
        self.sasl: SaslServer | SaslClient | None = None
        self._open_sent = False
        self.shape: Shape | None = None
        self._refresh: list[Windows] | None = None
        self._views: list[ReceivingLink] = []
        """Links of which the delivery under way has parts that are views of what is being read."""
        self._pending: bytearray | None = None
        self.needed = 0
        self.work = limits.FRAMES_OF_A_TURN
        """Frames that this turn still reads."""
        self.rest: Rest | None = None
        """Of the disposition that was read last: it comes before any other frame."""
        self.unfinished_bytes = 0
        """What the messages take whose last frame has not come yet, of all links."""
        self._now_ms = now_ms
        self._created_ms = now_ms
        self._heard_ms = now_ms
        self._said_ms = now_ms
        self._peer_idle_ms = 0
        self._close_at_ms = 0
        if not settings.is_server:
            self.output.append(frames.SASL_HEADER if settings.uses_sasl else frames.AMQP_HEADER)

    @property
    def closed(self) -> bool:
        """Nothing more will be read or produced: write the output and close the socket."""
        return self.phase == CLOSED

    @property
    def has_more(self) -> bool:
        """What was fed is more than one turn may cost: the next one should feed b"", before anything else."""
        return self.phase != CLOSED and (
            self.rest is not None or (self.work <= 0 and self._pending is not None)
        )

    @property
    def opened(self) -> bool:
        """Both opens have been exchanged and neither close."""
        return self.phase == OPEN

    # --- commands ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Write our open now, as a client does; a server's goes out by itself when the peer's has come."""
        if self.phase not in (HEADER, OPENING) or (self.phase == HEADER and not self._header_sent):
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
                    idle_time_out=settings.idle_time_out_ms // 2 or None,
                    offered_capabilities=[Symbol(name) for name in settings.offered_capabilities] or None,
                    properties=settings.properties or None,
                )
            ),
        )

    def begin(self) -> Session:
        """Begin a session from our side; the event Begun comes with the peer's answer."""
        if not self._open_sent or self.phase > OPEN:
            raise LocalError("begin can only be sent between open and close")
        if len(self._channels) > self.peer_channel_max:
            raise LocalError(f"the peer takes {self.peer_channel_max + 1} sessions at a time")
        session = self._new_session()
        session.write_begin(None)
        return session

    def close(
        self, condition: str | None = None, description: str = "", info: dict[Symbol, Any] | None = None
    ) -> None:
        """Close the connection, its sessions and links; no event follows."""
        self._close(make_error(condition, description, info))

    def sasl_challenge(self, challenge: bytes) -> None:
        """Answer SaslInit or SaslResponse with a challenge; feed(b"") reads on."""
        self._sasl_layer().challenge(challenge)

    def sasl_outcome(
        self, ok: bool, user: str | None = None, additional_data: bytes | None = None, code: int | None = None
    ) -> None:
        """Answer SaslInit or SaslResponse for good; feed(b"") reads on.

        `code` is a sasl-code when it is to be another than ok (0) and auth (1); `additional_data` goes with
        success only (5.3.3.5).
        """
        layer = self._sasl_layer()
        if ok:
            layer.outcome(OK, additional_data)
            self.user = user
            self.sasl_over()
        else:
            layer.outcome(AUTH if code is None else code, None)
            self._go()

    def sasl_init(self, mechanism: str, response: bytes | None = None, hostname: str | None = None) -> None:
        """Answer SaslOffered with a mechanism and its initial response; feed(b"") reads on."""
        self._sasl_client().init(mechanism, response, hostname)

    def sasl_respond(self, response: bytes) -> None:
        """Answer SaslChallenged; feed(b"") reads on."""
        self._sasl_client().respond(response)

    def sasl_over(self) -> None:
        """The negotiation has succeeded: a protocol header comes next, as on a new connection (5.3.2)."""
        self.sasl_done = True
        self.sasl = None
        self.phase = HEADER
        if not self.settings.is_server:
            self.output.append(frames.AMQP_HEADER)

    def sasl_refused(self) -> None:
        """The server does not let us in, and closes the socket."""
        self._go()

    def _sasl_layer(self) -> SaslServer:
        if not isinstance(self.sasl, SaslServer) or self.phase != SASL:
            raise LocalError("a SASL answer is due after SaslInit and SaslResponse only, and once")
        return self.sasl

    def _sasl_client(self) -> SaslClient:
        if not isinstance(self.sasl, SaslClient) or self.phase != SASL:
            raise LocalError("a SASL answer is due after SaslOffered and SaslChallenged only, and once")
        return self.sasl

    @property
    def _header_sent(self) -> bool:
        """Of a client: whether the AMQP header is in the output, so that open may follow."""
        return not self.settings.is_server and (self.sasl_done or not self.settings.uses_sasl)

    # --- time --------------------------------------------------------------------------------------------

    def excuse(self, until_ms: int) -> None:
        """Silence of the peer up to this time does not count: it was the caller who did not listen."""
        self._heard_ms = max(self._heard_ms, until_ms)
        self._created_ms = max(self._created_ms, until_ms)

    def tick(self, now_ms: int) -> int | None:
        """Act on what is due at `now_ms`; gives the time of the next tick, None when there is none.

        A connection that did not open in time is closed. A silent peer gets a close with a condition, and is
        gone when it does not answer that (2.4.5). An empty frame goes out at half of the peer's time-out.
        """
        self._now_ms = now_ms
        phase = self.phase
        if phase == CLOSED:
            return None
        if phase < OPEN:
            due = self._created_ms + self.settings.opening_time_ms
            if now_ms < due:
                return due
            self.fail(
                ConnectionFault(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    f"expected open within {self.settings.opening_time_ms} ms, found none",
                )
            )
            return self._tick_closing(now_ms)
        if phase == CLOSING:
            return self._tick_closing(now_ms)
        due_next: int | None = None
        silence = self.settings.idle_time_out_ms
        if silence:
            due_next = self._heard_ms + silence
            if now_ms >= due_next:
                self.fail(
                    ConnectionFault(
                        conditions.RESOURCE_LIMIT_EXCEEDED,
                        f"expected frames within idle-time-out, found none for {now_ms - self._heard_ms} ms",
                    )
                )
                return self._tick_closing(now_ms)
        if self._peer_idle_ms:
            interval = self._peer_idle_ms // 2
            due = self._said_ms + interval
            if now_ms >= due:
                self.output.append(frames.EMPTY_FRAME)
                self._said_ms = now_ms
                due = now_ms + interval
            due_next = due if due_next is None else min(due, due_next)
        return due_next

    def _tick_closing(self, now_ms: int) -> int | None:
        if self.phase != CLOSING:
            return None
        if now_ms >= self._close_at_ms:
            self.gone()
            return None
        return self._close_at_ms

    def heard(self, now_ms: int) -> None:
        """The caller does not read what the peer may be saying: its silence up to now is none."""
        self._heard_ms = now_ms

    @property
    def _waiting_bytes_max(self) -> int:
        """Bytes that may wait for the rest of their frame, or for the answer to a SASL frame."""
        if self.phase == SASL:
            return max(self.settings.max_sasl_frame_size, limits.PIPELINED_BYTES_MAX)
        return self.settings.max_frame_size

    # --- input -------------------------------------------------------------------------------------------

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Event]:
        """What the bytes read from the socket mean, in order; first, what commands and ticks led to since.

        One call reads limits.FRAMES_OF_A_TURN; where there is more than that, it `has_more`.
        """
        self._now_ms = now_ms
        self.work = limits.FRAMES_OF_A_TURN
        self._go_on_settling()
        if self.phase != CLOSED:
            self._feed(data)
        events = self.events
        self.events = []
        return events

    def _go_on_settling(self) -> None:
        """The disposition that was read last goes on."""
        rest, self.rest = self.rest, None
        if rest is not None and rest.session.state == MAPPED:
            self._heard_ms = self._now_ms
            rest.session.settle_range(*rest[1:])

    def _feed(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes:
            data = bytes(data)
        start = 0
        pending = self._pending
        if pending is not None:
            if len(pending) + len(data) < self.needed:
                pending += data
                return
            self._pending = None
            if self.needed >= limits.LARGE_PIECE_BYTES and self.phase == OPEN and self.rest is None:
                # A large frame is completed by itself: what follows it is read where it is.
                start = self.needed - len(pending)
                self._read_until(b"".join((pending, memoryview(data)[:start])), 0)
            else:
                data = b"".join((pending, data))
        if self.rest is not None or (start and self.work <= 0):
            self.needed = 0
            self._pending = bytearray(memoryview(data)[start:]) if len(data) > start else None
        elif self.phase != CLOSED:
            self._read_rest(data, start)
        if self._views:
            for link in self._views:
                link.copy_views()
            self._views.clear()
        if self._refresh is not None:
            self._refresh_windows()

    def _read_rest(self, data: bytes, position: int) -> None:
        """Read what came, from `position` on; what is no whole frame waits for the next bytes."""
        position = self._read_until(data, position)
        if position < len(data) and self.phase != CLOSED:
            if self.work > 0 and len(data) - position > self._waiting_bytes_max:
                # Only a peer that pipelines behind an unanswered SASL frame gets here.
                self.gone(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    f"expected to be waited for with the SASL outcome, found {len(data) - position} bytes",
                )
            else:
                self._pending = bytearray(memoryview(data)[position:])

    def _read_until(self, data: bytes, position: int) -> int:
        """Read from `position` on; gives how far it came, which is the end after a fault of framing."""
        self.needed = 0
        try:
            return self._read(data, position, len(data))
        except FramingFault as fault:
            self.fail(fault)
            return len(data)

    def _read(self, data: bytes, position: int, end: int) -> int:
        """Read until the bytes are used up, or are too few, or wait for the caller; gives how far it came."""
        while True:
            phase = self.phase
            before = position
            if phase == OPEN:
                position = read_frames(self, data, position, end)
            elif phase == HEADER:
                position = read_header(self, data, position, end)
            elif phase == SASL:
                assert self.sasl is not None
                position = self.sasl.read(data, position, end)
            elif phase == OPENING:
                position = read_frames(self, data, position, end)
            elif phase == CLOSING:
                position = discard_frames(self, data, position, end)
            else:
                return end
            if position > before:
                self._heard_ms = self._now_ms
            if self.phase == phase and (phase >= OPENING or position in (before, end)):
                return position

    # --- connection frames -------------------------------------------------------------------------------

    def on_open(self, channel: int, peer: Open) -> None:
        if self.phase != OPENING:
            raise ConnectionFault(conditions.NOT_ALLOWED, "expected one open, found a second")
        if channel:
            raise ConnectionFault(
                conditions.FRAMING_ERROR, f"expected open on channel 0, found it on channel {channel}"
            )
        if peer.max_frame_size < limits.MIN_MAX_FRAME_SIZE:
            raise ConnectionFault(
                conditions.INVALID_FIELD,
                f"expected max-frame-size >= {limits.MIN_MAX_FRAME_SIZE}, found {peer.max_frame_size}",
            )
        idle = peer.idle_time_out or 0
        if 0 < idle < self.settings.peer_idle_time_out_ms_min:
            raise ConnectionFault(
                conditions.INVALID_FIELD,
                f"expected idle-time-out >= {self.settings.peer_idle_time_out_ms_min} ms, found {idle}",
            )
        self.peer_open = peer
        # No peer is sent frames larger than those that we take: other links get their turn between them.
        self.peer_max_frame_size = min(peer.max_frame_size, self.settings.max_frame_size)
        self.peer_channel_max = peer.channel_max
        self._peer_idle_ms = idle
        self._said_ms = self._now_ms
        self.open()
        self.phase = OPEN
        self.events.append(Opened(peer))

    def on_begin(self, channel: int, begin: Begin) -> None:
        if channel in self.sessions:
            raise ConnectionFault(
                conditions.NOT_ALLOWED,
                f"expected begin on a channel that is free, found it on channel {channel}",
            )
        if begin.remote_channel is None:
            if len(self._channels) > self.peer_channel_max:
                raise ConnectionFault(
                    conditions.NOT_ALLOWED,
                    f"expected at most {self.peer_channel_max + 1} sessions by your channel-max, found more",
                )
            session = self._new_session()
        else:
            found = self._channels.get(begin.remote_channel)
            if found is None or found.state not in (BEGIN_SENT, END_SENT) or found.remote_channel >= 0:
                raise ConnectionFault(
                    conditions.NOT_ALLOWED,
                    f"expected remote-channel of a session that we began, found {begin.remote_channel}",
                )
            session = found
        self.sessions[channel] = session
        session.on_begin(channel, begin)

    def on_close(self, close: Close) -> None:
        error = close.error
        if not self._open_sent:
            self.open()
        self._write(0, encode_performative(Close()))
        self.gone(error=error, by_peer=True)

    # --- the way out -------------------------------------------------------------------------------------

    def fail(self, fault: ConnectionFault) -> None:
        """The peer's fault: close with its condition, and tell the caller."""
        if self.phase >= CLOSING:
            return
        error = make_error(fault.condition, fault.description)
        if self.phase in (HEADER, SASL):
            self.gone(error=error)
            return
        self._close(error)
        self.events.append(Closed(error, False))
        if isinstance(fault, FramingFault):
            self.phase = CLOSED

    def _close(self, error: AmqpError | None) -> None:
        if self.phase >= CLOSING:
            return
        if self.phase in (HEADER, SASL):
            self._go()
            return
        if not self._open_sent:
            self.open()
        self._write(0, encode_performative(Close(error=error)))
        self.phase = CLOSING
        self._close_at_ms = self._now_ms + self.settings.closing_time_ms
        self._forget()

    def gone(
        self,
        condition: str | None = None,
        description: str = "",
        error: AmqpError | None = None,
        by_peer: bool = False,
    ) -> None:
        """No more frames in either direction; the caller is told unless our close went before."""
        announced = self.phase == CLOSING
        self._go()
        if not announced:
            self.events.append(Closed(error or make_error(condition, description), by_peer))

    def _go(self) -> None:
        self.phase = CLOSED
        self._pending = None
        self._forget()

    def _forget(self) -> None:
        """Let go of everything under way; the sessions stay listed for the caller to look at."""
        for session in list(self._channels.values()):
            session.state = END_SENT
            session.forget()
        self.names.clear()
        self.shape = None
        self._refresh = None

    def _write(self, channel: int, body: bytes) -> None:
        self.output.append(frames.frame(channel, body))

    # --- what sessions and links ask of their connection ---------------------------------------------------

    def _new_session(self) -> Session:
        channel = 0
        while channel in self._channels:
            channel += 1
        session = Session(self, channel)
        self._channels[channel] = session
        return session

    def unmap_channel(self, session: Session) -> None:
        """Our end is written: our channel is free."""
        if self._channels.get(session.channel) is session:
            del self._channels[session.channel]

    def unmap_remote_channel(self, session: Session) -> None:
        """The peer's end has come: its channel is free."""
        if self.sessions.get(session.remote_channel) is session:
            del self.sessions[session.remote_channel]

    def use_shape(self, shape: Shape | None) -> None:
        """What the next frames are compared with first."""
        self.shape = shape

    def admit(self, size: int) -> str | None:
        """Whether one more link may be attached, by an attach of so many bytes; else why not.

        Raises ConnectionFault: refusing does not help any more.
        """
        sessions = self.sessions.values()
        for found, most, what in (
            (sum(len(session.inputs) for session in sessions) + 1, self.settings.links_max, "links"),
            (
                sum(session.attach_bytes for session in sessions) + size,
                self.settings.attach_bytes_max,
                "bytes of names, addresses and unanswered attaches",
            ),
        ):
            if found <= most:
                continue
            text = f"expected at most {most} {what} on a connection, found {found}; use another connection"
            if found > 2 * most:
                raise ConnectionFault(conditions.RESOURCE_LIMIT_EXCEEDED, text)
            return text
        return None

    def forget_shape(self, link: Link) -> None:
        """The link takes no more transfers."""
        if self.shape is not None and self.shape.link is link:
            self.shape = None

    def forget_name(self, link: Link) -> None:
        """The link's name is free."""
        key = (link.name, link.is_sender)
        if self.names.get(key) is link:
            del self.names[key]

    def steal(self, key: tuple[str, bool]) -> None:
        """A link is attached again by the name of one that still is (2.6.1): the earlier one goes."""
        link = self.names.get(key)
        if link is not None:
            link.steal()

    def holds_views(self, link: ReceivingLink) -> None:
        """The link has parts of a message that are views of what is being read: see `copy_views`."""
        self._views.append(link)

    def refresh_windows(self, session: Windows) -> None:
        """Half of the session's window is used: a flow goes out after this feed, unless one has by then."""
        if self._refresh is None:
            self._refresh = []
        self._refresh.append(session)

    def _refresh_windows(self) -> None:
        due = self._refresh or []
        self._refresh = None
        for session in due:
            session.refresh_due = False
            if session.state == MAPPED and session.incoming_left <= session.incoming_window >> 1:
                session.write_flow()
