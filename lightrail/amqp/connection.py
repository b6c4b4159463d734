"""The connection endpoint: bytes in, events out; commands in, bytes out (transport 2.2 to 2.4, security 5.3).

Theory of operation. The caller owns the socket and the clock. It gives what it read to `feed`, acts on the
events, gives commands to the connection, its sessions and links, and writes what is in `output`:

    for event in connection.feed(data, now_ms): ...
    data = b"".join(connection.output); connection.output.clear()
    if connection.closed: close the socket once `data` is written
    call connection.tick(now_ms) at the time that the last tick gave back

Phases. A server waits in HEADER for a protocol header; a SASL header leads to SASL and, when the caller has
given a good outcome, back to HEADER. After the AMQP header it is OPENING until the peer's open comes, which is
answered with ours at once, then OPEN. Our close makes it CLOSING: all that comes is dropped until the peer's
close (CLOSE_SENT and DISCARDING of 2.4.6 alike) or until time is up. Then it is CLOSED.

Who closes. A peer's close, end and detach are answered by the engine; the event says that it happened. A
peer's fault is answered with close, end or detach, whichever the specification asks for, and the event says
so with by_peer False. What the caller ends gives no event. `feed` never raises for what a peer sent.

After SaslInit and SaslResponse nothing more is read until the caller has answered; it then calls feed(b"").
"""

from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.amqp import frames
from lightrail.amqp.delivery import WIRE
from lightrail.amqp.events import ACCEPTED, RELEASED, Closed, Event, HeaderRejected, Opened
from lightrail.amqp.events import SaslInit as SaslInitEvent
from lightrail.amqp.events import SaslResponse as SaslResponseEvent
from lightrail.amqp.faults import ConnectionFault, FramingFault, LocalError, SessionFault
from lightrail.amqp.link import Link, make_error
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.session import BEGIN_SENT, END_SENT, MAPPED, Session
from lightrail.amqp.shapes import Shape, take
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.model import conditions, limits

HEADER: Final = 0
SASL: Final = 1
OPENING: Final = 2
OPEN: Final = 3
CLOSING: Final = 4
CLOSED: Final = 5

_SASL_INIT: Final = 0
_SASL_RESPONSE: Final = 1
_SASL_DECISION: Final = 2

_UNPACK = frames.FRAME_HEADER.unpack_from


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What one listener's connections have in common; sizes in bytes, times in milliseconds."""

    container_id: str = "lightrail"
    hostname: str | None = None
    max_frame_size: int = limits.MAX_FRAME_SIZE
    channel_max: int = limits.CHANNEL_MAX
    handle_max: int = limits.HANDLE_MAX
    session_incoming_window: int = limits.SESSION_INCOMING_WINDOW
    max_message_size: int = limits.MAX_MESSAGE_BYTES
    idle_time_out_ms: int = limits.IDLE_TIME_OUT_MS
    """Silence after which we close; 0 for never. Half of it is announced."""
    peer_idle_time_out_ms_min: int = 20
    """A peer that wants to hear from us more often than this is refused (2.4.5)."""
    opening_time_ms: int = limits.OPENING_TIME_MS
    closing_time_ms: int = limits.CLOSING_TIME_MS
    is_server: bool = True
    sasl_mechanisms: tuple[str, ...] = ()
    """Offered in this order; none means that there is no SASL layer."""
    allow_plain_header: bool = True
    """Whether a peer may come without SASL."""
    max_sasl_frame_size: int = limits.MAX_SASL_FRAME_SIZE
    offered_capabilities: tuple[str, ...] = ()
    properties: dict[Symbol, Any] = field(default_factory=dict)
    initial_outgoing_id: int = 0
    initial_delivery_id: int = 0
    initial_delivery_count: int = 0
    learn_shapes: bool = True
    """Off, every transfer goes through the complete decoder: for the tests that compare the two."""


class Connection:
    """One connection. `context` is the caller's own; `user` is who sasl_outcome said."""

    __slots__ = (
        "_channels",
        "_close_at_ms",
        "_created_ms",
        "_heard_ms",
        "_needed",
        "_now_ms",
        "_open_sent",
        "_peer_idle_ms",
        "_pending",
        "_refresh",
        "_said_ms",
        "_sasl_step",
        "_shape",
        "context",
        "events",
        "names",
        "output",
        "peer_channel_max",
        "peer_max_frame_size",
        "peer_open",
        "phase",
        "sasl_done",
        "sessions",
        "settings",
        "user",
    )

    def __init__(self, settings: ConnectionSettings, now_ms: int) -> None:
        self.settings = settings
        self.phase = HEADER
        self.output: list[bytes] = []
        """Pieces to write, in order; the caller joins and clears it."""
        self.events: list[Event] = []
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
        self._sasl_step = _SASL_INIT
        self._open_sent = False
        self._shape: Shape | None = None
        self._refresh: list[Session] | None = None
        self._pending: bytearray | None = None
        self._needed = 0
        self._now_ms = now_ms
        self._created_ms = now_ms
        self._heard_ms = now_ms
        self._said_ms = now_ms
        self._peer_idle_ms = 0
        self._close_at_ms = 0
        if not settings.is_server:
            self.output.append(frames.AMQP_HEADER)

    @property
    def closed(self) -> bool:
        """Nothing more will be read or produced: write the output and close the socket."""
        return self.phase == CLOSED

    @property
    def opened(self) -> bool:
        """Both opens have been exchanged and neither close."""
        return self.phase == OPEN

    # --- commands ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Write our open now, as a client does; a server's goes out by itself when the peer's has come."""
        if self.phase not in (HEADER, OPENING) or (self.settings.is_server and self.phase == HEADER):
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
        self._decide()
        self._sasl_step = _SASL_RESPONSE
        self.output.append(frames.sasl_frame(encode_performative(SaslChallenge(challenge=challenge))))

    def sasl_outcome(
        self, ok: bool, user: str | None = None, additional_data: bytes | None = None, code: int | None = None
    ) -> None:
        """Answer SaslInit or SaslResponse for good; feed(b"") reads on. `code` is sasl-code, 0 or 1 by default."""
        self._decide()
        if code is None:
            code = 0 if ok else 1
        outcome = SaslOutcome(code=code, additional_data=additional_data if ok else None)
        self.output.append(frames.sasl_frame(encode_performative(outcome)))
        if ok:
            self.user = user
            self.sasl_done = True
            self.phase = HEADER
        else:
            self._gone()

    def _decide(self) -> None:
        if self.phase != SASL or self._sasl_step != _SASL_DECISION:
            raise LocalError("a SASL answer is due after SaslInit and SaslResponse only, and once")

    # --- time --------------------------------------------------------------------------------------------

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
            self._fail(
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
                self._fail(
                    ConnectionFault(
                        conditions.RESOURCE_LIMIT_EXCEEDED,
                        f"expected a frame within the idle-time-out, found {now_ms - self._heard_ms} ms of silence",
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
            self._gone()
            return None
        return self._close_at_ms

    # --- input -------------------------------------------------------------------------------------------

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Event]:
        """What the bytes read from the socket mean, in order. Commands may be given to the objects in it."""
        self._now_ms = now_ms
        events = self.events = []
        if self.phase == CLOSED:
            return events
        if type(data) is not bytes:
            data = bytes(data)
        pending = self._pending
        if pending is not None:
            pending += data
            if len(pending) < self._needed:
                return events
            data = bytes(pending)
            self._pending = None
        self._needed = 0
        try:
            position = self._read(data, len(data))
        except ConnectionFault as fault:
            self._fail(fault)
            position = len(data)
        if self._refresh is not None:
            self._refresh_windows()
        if position < len(data) and self.phase != CLOSED:
            if len(data) - position > self.settings.max_frame_size * 4:
                # Only a peer that pipelines behind an unanswered SASL frame gets here.
                self._gone(self._error(conditions.RESOURCE_LIMIT_EXCEEDED, "too much data before the SASL outcome"))
            else:
                self._pending = bytearray(data[position:] if position else data)
        return events

    def _read(self, data: bytes, end: int) -> int:
        """Read until the bytes are used up, or are too few, or wait for the caller; gives how far it came."""
        position = 0
        while True:
            phase = self.phase
            before = position
            if phase == OPEN:
                position = self._read_frames(data, position, end)
            elif phase == HEADER:
                position = self._read_header(data, position, end)
            elif phase == SASL:
                position = self._read_sasl(data, position, end)
            elif phase == OPENING:
                position = self._read_frames(data, position, end)
            elif phase == CLOSING:
                position = self._discard_frames(data, position, end)
            else:
                return end
            if self.phase == phase and (position == before or position == end):
                return position
            if position > before:
                self._heard_ms = self._now_ms

    def _read_header(self, data: bytes, position: int, end: int) -> int:
        header = data[position : position + frames.HEADER_BYTES]
        settings = self.settings
        if len(header) < frames.HEADER_BYTES:
            if header and not header.startswith(b"AMQP"[: len(header)]):
                self._reject_header()
                return end
            return position
        if not settings.is_server:
            if header != frames.AMQP_HEADER:
                self._gone(
                    self._error(conditions.FRAMING_ERROR, f"expected {frames.AMQP_HEADER!r}, found {header!r}")
                )
                return end
            self.phase = OPENING
            return position + frames.HEADER_BYTES
        plain_allowed = settings.allow_plain_header or not settings.sasl_mechanisms
        if header == frames.AMQP_HEADER and (self.sasl_done or plain_allowed):
            self.output.append(frames.AMQP_HEADER)
            self.phase = OPENING
            return position + frames.HEADER_BYTES
        if header == frames.SASL_HEADER and settings.sasl_mechanisms and not self.sasl_done:
            mechanisms = SaslMechanisms(
                sasl_server_mechanisms=[Symbol(mechanism) for mechanism in settings.sasl_mechanisms]
            )
            self.output.append(frames.SASL_HEADER)
            self.output.append(frames.sasl_frame(encode_performative(mechanisms)))
            self.phase = SASL
            return position + frames.HEADER_BYTES
        self._reject_header()
        return end

    def _reject_header(self) -> None:
        """Write a header that would have been accepted, and close (2.2)."""
        settings = self.settings
        wanted = frames.AMQP_HEADER
        if settings.sasl_mechanisms and not settings.allow_plain_header and not self.sasl_done:
            wanted = frames.SASL_HEADER
        if settings.is_server:
            self.output.append(wanted)
        self.events.append(HeaderRejected(wanted))
        self.phase = CLOSED

    def _read_sasl(self, data: bytes, position: int, end: int) -> int:
        """One SASL frame; a fault closes the socket, as there is no close performative yet (5.3.2)."""
        if self._sasl_step == _SASL_DECISION or end - position < frames.FRAME_HEADER_BYTES:
            return position
        size, offset, kind, _ = _UNPACK(data, position)
        most = self.settings.max_sasl_frame_size
        if kind != frames.SASL_FRAME or offset < 2 or size < offset * 4 or size > most:
            self._gone(
                self._error(
                    conditions.FRAMING_ERROR,
                    f"expected a SASL frame (type 1) of at most {most} bytes, found type {kind}, data offset"
                    f" {offset}, {size} bytes",
                )
            )
            return end
        stop = position + size
        if stop > end:
            self._needed = size
            return position
        try:
            body, after = decode_performative(data, position + offset * 4, stop)
        except DecodeError as error:
            self._gone(self._error(conditions.DECODE_ERROR, str(error)))
            return end
        if after != stop:
            self._gone(self._error(conditions.DECODE_ERROR, "expected one value in a SASL frame, found more"))
            return end
        if self._sasl_step == _SASL_INIT and type(body) is SaslInit:
            if body.mechanism not in self.settings.sasl_mechanisms:
                self.output.append(frames.sasl_frame(encode_performative(SaslOutcome(code=1))))
                self._gone(
                    self._error(
                        conditions.UNAUTHORIZED_ACCESS,
                        f"expected a mechanism of {self.settings.sasl_mechanisms}, found {body.mechanism!r}",
                    )
                )
                return end
            self._sasl_step = _SASL_DECISION
            self.events.append(SaslInitEvent(str(body.mechanism), body.initial_response, body.hostname))
        elif self._sasl_step == _SASL_RESPONSE and type(body) is SaslResponse:
            self._sasl_step = _SASL_DECISION
            self.events.append(SaslResponseEvent(body.response))
        else:
            expected = "sasl-init" if self._sasl_step == _SASL_INIT else "sasl-response"
            self._gone(
                self._error(conditions.NOT_ALLOWED, f"expected {expected}, found {type(body).__name__}")
            )
            return end
        return stop

    def _read_frames(self, data: bytes, position: int, end: int) -> int:
        """Frames while the phase stays; the hot path of the broker."""
        most = self.settings.max_frame_size
        phase = self.phase
        while end - position >= 8:
            shape = self._shape
            if shape is not None:
                position = self._take(shape, data, position, end)
                if end - position < 8:
                    break
            size, offset, kind, channel = _UNPACK(data, position)
            if size > most or size < 8:
                raise FramingFault(f"expected a frame of 8 to {most} bytes, found size {size}")
            stop = position + size
            if stop > end:
                self._needed = size
                break
            if kind == 0 and offset == 2:
                if data[position + 8 : position + 11] == b"\x00S\x14":
                    other = self._other_shape(data, position, channel)
                    if other is not None and other is not shape:
                        self._shape = other
                        after = self._take(other, data, position, end)
                        if after != position:
                            position = after
                            continue
            elif kind != 0:
                raise FramingFault(f"expected an AMQP frame (type 0), found type {kind}")
            elif offset < 2 or offset * 4 > size:
                raise FramingFault(f"expected a data offset of 2 to {size // 4} words, found {offset}")
            try:
                self._read_frame(data, position, position + offset * 4, stop, channel)
            except DecodeError as error:
                raise ConnectionFault(conditions.DECODE_ERROR, str(error)) from None
            position = stop
            if self.phase != phase:
                break
        return position

    def _other_shape(self, data: bytes, position: int, channel: int) -> Shape | None:
        """The shape of the link that the transfer at `position` names, when it is encoded the usual way."""
        session = self.sessions.get(channel)
        if session is None or data[position + 11] != 0xC0:
            return None
        code = data[position + 14]
        if code == 0x43:
            handle = 0
        elif code == 0x52:
            handle = data[position + 15]
        else:
            return None
        link = session.inputs.get(handle)
        return link.shape if link is not None else None

    def _take(self, shape: Shape, data: bytes, position: int, end: int) -> int:
        """Take as many transfers of this shape as come next and are allowed; gives the position after them."""
        link = shape.link
        session = link.session
        first = session.next_incoming_delivery
        if first is None or link.assembly is not None:
            return position
        limit = link.allowed
        if limit > session.incoming_left:
            limit = session.incoming_left
        position, payloads = take(shape, data, position, end, first & WIRE, limit)
        count = len(payloads)
        if count:
            session.next_incoming_delivery = first + count
            session.count_incoming(count)
            link.allowed -= count
            link.delivery_count += count
            credit = link.credit - count
            link.credit = credit if credit > 0 else 0
            if link.available:
                link.available = max(0, link.available - count)
            session.deliver(
                link,
                first,
                payloads,
                shape.settled,
                link.rcv_settle_mode == 1,
                shape.message_format,
                shape.head,
                None,
            )
        return position

    def _read_frame(self, data: bytes, start: int, position: int, stop: int, channel: int) -> None:
        """One frame data[start:stop] whose body begins at `position`."""
        if position == stop:
            if self.phase == OPENING:
                raise ConnectionFault(conditions.NOT_ALLOWED, "expected open, found an empty frame")
            return
        session = self.sessions.get(channel)
        if session is not None:
            if session.state == END_SENT:
                self._discard_session_frame(session, data, position, stop)
                return
            try:
                if data[position : position + 2] == b"\x00S":
                    code = data[position + 2] if position + 2 < stop else 0
                    if code == frames.DISPOSITION and self._quick_disposition(session, data, position, stop):
                        return
                    if code == frames.FLOW and self._quick_flow(session, data, position, stop):
                        return
                body, after = decode_performative(data, position, stop)
                if type(body) is Transfer:
                    session.on_transfer(body, data, start, after, stop)
                    return
                _check_no_payload(body, after, stop)
                handler = _SESSION_FRAMES.get(type(body))
                if handler is not None:
                    handler(session, body)
                    return
            except SessionFault as fault:
                session.fail(fault)
                return
        else:
            body, after = decode_performative(data, position, stop)
            if type(body) is not Transfer:
                _check_no_payload(body, after, stop)
        kind = type(body)
        if kind is Open:
            self._on_open(channel, body)
        elif self.phase == OPENING and kind in _FRAMES:
            raise ConnectionFault(conditions.NOT_ALLOWED, f"expected open, found {kind.__name__.lower()}")
        elif kind is Close:
            self._on_close(body)
        elif channel > self.settings.channel_max:
            raise ConnectionFault(
                conditions.FRAMING_ERROR,
                f"expected channels up to channel-max {self.settings.channel_max}, found {channel}",
            )
        elif kind is Begin:
            self._on_begin(channel, body)
        elif kind in _FRAMES:
            raise ConnectionFault(
                conditions.NOT_ALLOWED,
                f"expected a channel with a session, found {kind.__name__.lower()} on channel {channel}",
            )
        else:
            raise ConnectionFault(
                conditions.DECODE_ERROR, f"expected a performative as frame body, found {kind.__name__}"
            )

    def _quick_disposition(self, session: Session, data: bytes, position: int, stop: int) -> bool:
        found = frames.read_disposition(data, position + 3, stop)
        if found is None:
            return False
        receiver, first, last, settled, code = found
        state = ACCEPTED if code == 0x24 else RELEASED if code == 0x26 else None
        session.on_disposition(receiver, first, last, settled, state)
        return True

    def _quick_flow(self, session: Session, data: bytes, position: int, stop: int) -> bool:
        found = frames.read_small_fields(data, position + 3, stop)
        if found is None or not 4 <= len(found) <= 10:
            return False
        for value in found[:8]:
            if type(value) is bool:
                return False
        for value in found[8:]:
            if type(value) is int:
                return False
        if found[1] is None or found[2] is None or found[3] is None:
            return False
        if len(found) < 10:
            found += (None,) * (10 - len(found))
        a, b, c, d, handle, count, credit, available, drain, echo = found
        session.on_flow(a, b, c, d, handle, count, credit, available, bool(drain), bool(echo))  # type: ignore[arg-type]
        return True

    def _discard_session_frame(self, session: Session, data: bytes, position: int, stop: int) -> None:
        """After our end: everything is dropped until the peer's end (2.5.4)."""
        body, _ = decode_performative(data, position, stop)
        kind = type(body)
        if kind is End:
            session.on_end(body)
        elif kind is Close:
            self._on_close(body)
        elif kind is Open:
            self._on_open(0, body)

    def _discard_frames(self, data: bytes, position: int, end: int) -> int:
        """After our close: everything is dropped until the peer's close (2.4.6)."""
        while end - position >= 8:
            size, offset, _, _ = _UNPACK(data, position)
            if size < 8 or size > self.settings.max_frame_size or offset < 2:
                self._gone()
                return end
            stop = position + size
            if stop > end:
                self._needed = size
                break
            if data[position + offset * 4 : stop]:
                try:
                    body, _ = decode_performative(data, position + offset * 4, stop)
                except DecodeError:
                    body = None
                if type(body) is Close:
                    self._gone()
                    return end
            position = stop
        return position

    # --- connection frames -------------------------------------------------------------------------------

    def _on_open(self, channel: int, peer: Open) -> None:
        if self.phase != OPENING:
            raise ConnectionFault(conditions.NOT_ALLOWED, "expected one open, found a second")
        if channel:
            raise ConnectionFault(
                conditions.FRAMING_ERROR, f"expected open on channel 0, found it on channel {channel}"
            )
        if peer.max_frame_size < limits.MIN_MAX_FRAME_SIZE:
            raise ConnectionFault(
                conditions.INVALID_FIELD,
                f"expected a max-frame-size of at least {limits.MIN_MAX_FRAME_SIZE}, found {peer.max_frame_size}",
            )
        idle = peer.idle_time_out or 0
        if 0 < idle < self.settings.peer_idle_time_out_ms_min:
            raise ConnectionFault(
                conditions.INVALID_FIELD,
                f"expected an idle-time-out of at least {self.settings.peer_idle_time_out_ms_min} ms, found {idle}",
            )
        self.peer_open = peer
        self.peer_max_frame_size = peer.max_frame_size
        self.peer_channel_max = peer.channel_max
        self._peer_idle_ms = idle
        self._said_ms = self._now_ms
        self.open()
        self.phase = OPEN
        self.events.append(Opened(peer))

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel in self.sessions:
            raise ConnectionFault(
                conditions.NOT_ALLOWED, f"expected begin on a channel that is free, found it on channel {channel}"
            )
        if begin.remote_channel is None:
            if len(self._channels) > self.peer_channel_max:
                raise ConnectionFault(
                    conditions.NOT_ALLOWED,
                    f"expected at most {self.peer_channel_max + 1} sessions by the peer's channel-max, found another",
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

    def _on_close(self, close: Close) -> None:
        error = close.error
        if not self._open_sent:
            self.open()
        self._write(0, encode_performative(Close()))
        self._gone(error, True)

    # --- the way out -------------------------------------------------------------------------------------

    def _fail(self, fault: ConnectionFault) -> None:
        """The peer's fault: close with its condition, and tell the caller."""
        if self.phase >= CLOSING:
            return
        error = make_error(fault.condition, fault.description)
        if self.phase in (HEADER, SASL):
            self._gone(error)
            return
        self._close(error)
        self.events.append(Closed(error, False))
        if isinstance(fault, FramingFault):
            self.phase = CLOSED

    def _close(self, error: AmqpError | None) -> None:
        if self.phase >= CLOSING:
            return
        if self.phase in (HEADER, SASL):
            self._gone_silently()
            return
        if not self._open_sent:
            self.open()
        self._write(0, encode_performative(Close(error=error)))
        self.phase = CLOSING
        self._close_at_ms = self._now_ms + self.settings.closing_time_ms
        self._forget()

    def _gone(self, error: AmqpError | None = None, by_peer: bool = False) -> None:
        """No more frames in either direction."""
        announced = self.phase == CLOSING
        self._gone_silently()
        if not announced:
            self.events.append(Closed(error, by_peer))

    def _gone_silently(self) -> None:
        self.phase = CLOSED
        self._pending = None
        self._forget()

    def _forget(self) -> None:
        """Let go of everything under way; the sessions stay listed for the caller to look at."""
        for session in list(self._channels.values()):
            session.state = END_SENT
            session.forget()
        self.names.clear()
        self._shape = None
        self._refresh = None

    def _error(self, condition: str, description: str) -> AmqpError:
        error: AmqpError = make_error(condition, description)
        return error

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
        self._shape = shape

    def forget_shape(self, link: Link) -> None:
        """The link takes no more transfers."""
        if self._shape is not None and self._shape.link is link:
            self._shape = None

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

    def refresh_windows(self, session: Session) -> None:
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


def _check_no_payload(body: Any, after: int, stop: int) -> None:
    if after != stop:
        raise DecodeError(
            f"expected nothing after {type(body).__name__.lower()} in its frame, found {stop - after} bytes"
        )


def _on_flow(session: Session, flow: Flow) -> None:
    session.on_flow(
        flow.next_incoming_id,
        flow.incoming_window,
        flow.next_outgoing_id,
        flow.outgoing_window,
        flow.handle,
        flow.delivery_count,
        flow.link_credit,
        flow.available,
        flow.drain,
        flow.echo,
    )


def _on_disposition(session: Session, disposition: Disposition) -> None:
    last = disposition.first if disposition.last is None else disposition.last
    session.on_disposition(disposition.role, disposition.first, last, disposition.settled, disposition.state)


_SESSION_FRAMES: Final[dict[type, Any]] = {
    Attach: Session.on_attach,
    Flow: _on_flow,
    Disposition: _on_disposition,
    Detach: Session.on_detach,
    End: Session.on_end,
}
_FRAMES: Final = (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)
