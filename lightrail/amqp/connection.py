"""A connection: bytes in, events out; commands in, bytes out (transport 2.2 to 2.4, security 5.3).

Theory of operation. The caller owns the socket and the clock. It gives what it read to `feed`, acts on the
events, gives commands to the connection, its sessions and links, and writes what is in `output`:

    for event in connection.feed(data, now_ms): ...
    data = b"".join(connection.output); connection.output.clear()
    if connection.closed: close the socket once `data` is written
    call connection.tick(now_ms) at the time that the last tick returned; events of it come with feed(b"")

`feed` never raises for what a peer sent; connection_endpoint.py has the phases, and who closes.

After SaslInit and SaslResponse nothing more is read until the caller has answered; it then calls feed(b"").
A client that `uses_sasl` begins with the SASL header, and answers SaslOffered and SaslChallenged likewise;
SaslSucceeded says that its AMQP header is written, and that it may `open`.
"""

from typing import Any, Final

from lightrail.amqp import frames
from lightrail.amqp.connection_endpoint import ConnectionEndpoint
from lightrail.amqp.errors import ConnectionProtocolError, FramingError, LocalError
from lightrail.amqp.events import Event, HeaderRejected
from lightrail.amqp.phases import CLOSED, CLOSING, DECIDING, HEADER, OPEN, OPENING, SASL
from lightrail.amqp.reader import discard_frames, read_frames
from lightrail.amqp.security import AUTH, OK, SaslClient, SaslServer
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.windows import MAPPED
from lightrail.model import conditions, limits, protocols

PIPELINED_BYTES_MAX: Final[int] = 32 * 1024
"""Bytes that a peer may send after a SASL frame before its answer: open, begin and some attaches."""


def read_header(connection: ConnectionEndpoint, data: bytes, position: int, end: int) -> int:
    """Read a whole protocol header (transport 2.2, security 5.3.1), and answer it.

    Returns:
        The position after the header; `end` for a rejected one.
    """
    header = data[position : position + frames.HEADER_BYTES]
    settings = connection.settings
    # What can't become a header is rejected at its first octet: a client of another protocol may wait for an
    # answer before it writes eight.
    if len(header) < frames.HEADER_BYTES:
        if header and not header.startswith(b"AMQP"[: len(header)]):
            _reject_header(connection, header)
            return end
        return position
    if not settings.is_server:
        negotiates = settings.uses_sasl and not connection.sasl_done
        wanted = frames.SASL_HEADER if negotiates else frames.AMQP_HEADER
        if header != wanted:
            connection.terminate(conditions.FRAMING_ERROR, f"expected {wanted!r}, found {header!r}")
            return end
        if negotiates:
            connection.sasl = SaslClient(connection)
        connection.phase = SASL if negotiates else OPENING
        return position + frames.HEADER_BYTES
    # Without mechanisms SASL is not offered: then the AMQP header is the only one that there is.
    plain_allowed = settings.allow_plain_header or not settings.sasl_mechanisms
    if header == frames.AMQP_HEADER and (connection.sasl_done or plain_allowed):
        connection.output.append(frames.AMQP_HEADER)
        connection.phase = OPENING
        return position + frames.HEADER_BYTES
    if header == frames.SASL_HEADER and settings.sasl_mechanisms and not connection.sasl_done:
        connection.sasl = SaslServer(connection)
        connection.phase = SASL
        return position + frames.HEADER_BYTES
    _reject_header(connection, bytes(data[position : min(end, position + protocols.BYTES)]))
    return end


def _reject_header(connection: ConnectionEndpoint, found: bytes) -> None:
    """Write a header that would have been accepted, and close (2.2)."""
    settings = connection.settings
    wanted = frames.AMQP_HEADER
    if settings.sasl_mechanisms and not settings.allow_plain_header and not connection.sasl_done:
        wanted = frames.SASL_HEADER
    if settings.is_server:
        connection.output.append(wanted)
    # The header first, and then the end of the socket: that is all that 2.2 has for a peer of another
    # version.
    connection.events.append(HeaderRejected(wanted, bytes(found)))
    connection.phase = CLOSED


class Connection(ConnectionEndpoint):
    """One connection. `context` belongs to the caller; `user` is the one whom the caller accepted."""

    __slots__ = ("_created_ms", "_received_ms", "context", "user")

    def __init__(self, settings: ConnectionSettings, now_ms: int) -> None:
        super().__init__(settings, now_ms)
        self.context: Any = None
        self.user: str | None = None
        self._created_ms = now_ms
        self._received_ms = now_ms

    @property
    def has_more(self) -> bool:
        """Whether input exceeds the work of a turn: the caller's next turn begins with feed(b"")."""
        return self.phase != CLOSED and (
            self.rest is not None or (self.work <= 0 and self._pending is not None)
        )

    # --- SASL --------------------------------------------------------------------------------------------

    def sasl_challenge(self, challenge: bytes) -> None:
        """Answer SaslInit or SaslResponse with a challenge; feed(b"") reads on."""
        self._sasl_layer().challenge(challenge)

    def sasl_outcome(
        self, ok: bool, user: str | None = None, additional_data: bytes | None = None, code: int | None = None
    ) -> None:
        """Answer SaslInit or SaslResponse with the outcome; feed(b"") reads on.

        `code` is a sasl-code when it is to be another than ok (0) and auth (1); `additional_data` goes with
        success only (5.3.3.5).
        """
        layer = self._sasl_layer()
        if ok:
            layer.outcome(OK, additional_data)
            self.user = user
            self.sasl_succeeded()
        else:
            layer.outcome(AUTH if code is None else code, None)
            self._stop()

    def sasl_init(self, mechanism: str, response: bytes | None = None, hostname: str | None = None) -> None:
        """Answer SaslOffered with a mechanism and its initial response; feed(b"") reads on."""
        self._sasl_client().init(mechanism, response, hostname)

    def sasl_respond(self, response: bytes) -> None:
        """Answer SaslChallenged; feed(b"") reads on."""
        self._sasl_client().respond(response)

    def _sasl_layer(self) -> SaslServer:
        if not isinstance(self.sasl, SaslServer) or self.phase != SASL:
            raise LocalError("a SASL answer is due after SaslInit and SaslResponse only, and once")
        return self.sasl

    def _sasl_client(self) -> SaslClient:
        if not isinstance(self.sasl, SaslClient) or self.phase != SASL:
            raise LocalError("a SASL answer is due after SaslOffered and SaslChallenged only, and once")
        return self.sasl

    # --- time --------------------------------------------------------------------------------------------

    def excuse(self, until_ms: int) -> None:
        """Count neither silence nor time to open up to this time: the peer waited for the caller."""
        self._received_ms = max(self._received_ms, until_ms)
        self._created_ms = max(self._created_ms, until_ms)

    def tick(self, now_ms: int) -> int | None:
        """Act on what is due at `now_ms`; returns the time of the next tick, None when there is none.

        A connection that did not open in time is closed. So is one with a silent peer; the engine waits for
        the peer's close for closing_time_ms (2.4.5). An empty frame is sent at half of the peer's time-out.
        """
        self._now_ms = now_ms
        phase = self.phase
        if phase == CLOSED:
            return None
        # Idle-time-outs are known by the opens alone (2.4.5): until then the time to open bounds a silent
        # peer.
        if phase < OPEN:
            due = self._created_ms + self.settings.opening_time_ms
            if now_ms < due:
                return due
            self.fail(
                ConnectionProtocolError(
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
            due_next = self._received_ms + silence
            if now_ms >= due_next:
                self.fail(
                    ConnectionProtocolError(
                        conditions.RESOURCE_LIMIT_EXCEEDED,
                        "expected frames within idle-time-out, found none for"
                        f" {now_ms - self._received_ms} ms",
                    )
                )
                return self._tick_closing(now_ms)
        if self._peer_idle_ms:
            # Half of the time, so that an empty frame that is late is still in time.
            interval = self._peer_idle_ms // 2
            due = self._sent_ms + interval
            if now_ms >= due:
                self.output.append(frames.EMPTY_FRAME)
                self._sent_ms = now_ms
                due = now_ms + interval
            due_next = due if due_next is None else min(due, due_next)
        return due_next

    def _tick_closing(self, now_ms: int) -> int | None:
        if self.phase != CLOSING:
            return None
        if now_ms >= self._close_at_ms:
            self.terminate()
            return None
        return self._close_at_ms

    def excuse_silence(self, now_ms: int) -> None:
        """Count no silence of the peer up to now: the caller does not read. The time to open goes on."""
        self._received_ms = now_ms

    @property
    def _waiting_bytes_max(self) -> int:
        """Bytes that may wait for the rest of their frame, or for the answer to a SASL frame or an open."""
        if self.phase in (SASL, DECIDING):
            return max(self.settings.max_sasl_frame_size, PIPELINED_BYTES_MAX)
        return self.settings.max_frame_size

    # --- input -------------------------------------------------------------------------------------------

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Event]:
        """Events of commands and ticks since the last feed, then those of the bytes read, in order.

        One call reads limits.FRAMES_OF_A_TURN; the connection `has_more` where that leaves some input.
        """
        self._now_ms = now_ms
        self.work = limits.FRAMES_OF_A_TURN
        # Before any new octet: what the peer sent behind its disposition must find it applied.
        self._go_on_settling()
        if self.phase != CLOSED:
            self._feed(data)
        events = self.events
        self.events = []
        return events

    def _go_on_settling(self) -> None:
        """Continue with the disposition that was read last."""
        rest, self.rest = self.rest, None
        if rest is not None and rest.session.state == MAPPED:
            self._received_ms = self._now_ms
            rest.session.settle_range(*rest[1:])

    def _feed(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes:
            data = bytes(data)
        start = 0
        pending = self._pending
        if pending is not None:
            # The size of the frame is known and not reached: the bytes are only appended, and not looked at
            # again with each read.
            if len(pending) + len(data) < self.needed:
                pending += data
                return
            self._pending = None
            if self.needed >= limits.LARGE_PIECE_BYTES and self.phase == OPEN and self.rest is None:
                # Only a large frame itself is joined: what follows is read without being copied.
                start = self.needed - len(pending)
                self._read_until(b"".join((pending, memoryview(data)[:start])), 0)
            else:
                data = b"".join((pending, data))
        if self.rest is not None or (start and self.work <= 0):
            self.needed = 0
            self._pending = bytearray(memoryview(data)[start:]) if len(data) > start else None
        elif self.phase != CLOSED:
            self._read_rest(data, start)
        # After the reading, when all parts that a link has of this read are known: see Assembly.copy_views.
        if self._views:
            for link in self._views:
                link.copy_views()
            self._views.clear()
        # At the end: any flow that was written in this feed has opened the window already.
        if self._refresh is not None:
            self._refresh_windows()

    def _read_rest(self, data: bytes, position: int) -> None:
        """Read from `position` on; an incomplete frame waits for the next bytes."""
        position = self._read_until(data, position)
        if position < len(data) and self.phase != CLOSED:
            if self.work > 0 and len(data) - position > self._waiting_bytes_max:
                # Only a peer that pipelines behind an unanswered SASL frame or open gets here.
                self.terminate(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    "expected to be waited for with the answer to a SASL frame or an open, found "
                    f"{len(data) - position} bytes",
                )
            else:
                self._pending = bytearray(memoryview(data)[position:])

    def _read_until(self, data: bytes, position: int) -> int:
        """Read from `position` on; returns the position reached: the end of `data` after a framing error."""
        self.needed = 0
        try:
            return self._read(data, position, len(data))
        except FramingError as fault:
            self.fail(fault)
            return len(data)

    def _read(self, data: bytes, position: int, end: int) -> int:
        """Read whole frames until the caller's answer is due; returns the position reached."""
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
            # Frames behind an open wait until the caller has answered it.
            elif phase == DECIDING:
                return position
            elif phase == CLOSING:
                position = discard_frames(self, data, position, end)
            else:
                return end
            # Whole frames count as signs of life, and parts of one do not.
            if position > before:
                self._received_ms = self._now_ms
            if self.phase == phase and (phase >= OPENING or position in (before, end)):
                return position

    def _refresh_windows(self) -> None:
        due = self._refresh or []
        self._refresh = None
        for session in due:
            session.refresh_due = False
            if session.state == MAPPED and session.incoming_left <= session.incoming_window >> 1:
                session.write_flow()
