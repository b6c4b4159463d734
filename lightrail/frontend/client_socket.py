"""A client's socket: reading that can be stopped, and writing with bounded waiting bytes (outflow.py).

Gathers the output of a connection for one write: only small pieces are copied.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.frontend.client import Client
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.amqp.connection import Connection
    from lightrail.frontend.engine import Frontend
    from lightrail.frontend.links.bound_links import BoundLinks

Piece = bytes | memoryview


def gathered(output: Sequence[Piece]) -> list[Piece]:
    """The same bytes in as few pieces as possible, without copying pieces of LARGE_PIECE_BYTES or more."""
    pieces: list[Piece] = []
    small: list[Piece] = []
    for piece in output:
        if len(piece) < limits.LARGE_PIECE_BYTES:
            small.append(piece)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        pieces.append(piece)
    if small:
        pieces.append(b"".join(small))
    return pieces


CLOSE_ANSWER_MS: Final[int] = 250
"""Time from our close to the end of a TLS session, for the client's close."""
LAST_READ_BYTES: Final[int] = 64 * 1024
LAST_READS_MAX: Final[int] = 64
"""How much is read from a socket whose client has reset it: more than a system keeps for one by default."""

log = logging.getLogger("lightrail.frontend.connection")


def _window(room: int) -> int:
    """Bytes that shards may send ahead for a connection with this room."""
    return limits.DELIVERY_WINDOW_BYTES * room // limits.WRITE_HIGH_WATER


@dataclass(slots=True, eq=False, repr=False)
class ClientSocket(asyncio.Protocol):
    """The part of a connection that handles bytes, independent of AMQP."""

    frontend: "Frontend"
    _: KW_ONLY
    client: Client = field(init=False)
    links: "BoundLinks" = field(init=False)
    transport: asyncio.Transport | None = None
    consumers: int = 0
    """Number of receiving links that are bound to a queue."""
    unanswered_bytes: int = 0
    """Bytes of messages that the client sent; set by the intake."""
    refusing: bool = False
    """Whether the messages that the client sends are refused; set by the intake."""
    has_more: bool = False
    """Whether the socket is not read since the input is too much for one turn: the next ones continue."""
    paused: bool = False
    """Whether the socket's buffer is full."""
    room: int = limits.WRITE_ROOM_MIN
    """Bytes that may wait for the socket before its receivers get no more; set by the outflow."""
    window_bytes: int = _window(limits.WRITE_ROOM_MIN)
    """Bytes that shards may send before the client has read them, over all receiving links."""
    lent_bytes: int = 0
    """Bytes of answers that may wait beyond the room; set by the outflow."""
    has_read_large: bool = False
    """Whether the client has read a message that was larger than the window of its link."""
    is_held: bool = False
    """Whether the engine's output waits for the deletion of names of this connection."""
    _written_bytes: int = 0
    """Bytes written to the socket, including those that wait for it."""
    _unread_max: int = 0
    """Bytes that may wait for the socket while `paused`, before the socket is no longer read."""
    _unread: bool = False
    """Whether the socket is not read because its peer does not read."""

    # --- reading ---------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        """The client ends its direction: what answers its last bytes, such as a close, is written at once.

        Afterwards the transport is closed; over TLS it then accepts no bytes.
        """
        self.flush()
        return False

    def hold_reading(self) -> None:
        """Stops reading the socket."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on_reading(self) -> None:
        """Reads the socket again, unless there is another reason not to."""
        if self.transport is None or self.transport.is_closing():
            return
        if not (self.has_more or self._unread):
            self.transport.resume_reading()

    def go_on_accepting(self) -> None:
        """Messages are no longer refused: grants the credit again that refused messages used up."""
        self.refusing = False
        for link in self.links:
            link.relieved()

    # --- writing ---------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Schedules the output to be written at the end of this turn of the loop."""
        raise NotImplementedError

    def flush(self) -> None:
        """Writes the engine's output."""
        raise NotImplementedError

    def go_on_writing(self) -> None:
        """Names of the connection are deleted, so that the answer to its close is written."""
        self.is_held = False
        self.touch()

    def _write(self, amqp: "Connection", transport: asyncio.Transport) -> None:
        """Writes the engine's output in one piece; large messages in the pieces that were received."""
        output = amqp.output
        if amqp.has_large_output and not self.client.tls:
            pieces = gathered(output)
            size = sum(map(len, pieces))
            transport.writelines(pieces)
        else:
            # TLS would make a record of each piece, and copies the bytes that it encrypts.
            data = b"".join(output)
            size = len(data)
            transport.write(data)
        output.clear()
        amqp.has_large_output = False
        self.frontend.counts.frame_bytes_sent += size
        self._written_bytes += size
        if self.paused and transport.get_write_buffer_size() > self._unread_max:
            self._stop_reading_unread(transport)

    def _stop_reading_unread(self, transport: asyncio.Transport) -> None:
        """Stops reading a peer that does not read, when no more bytes may wait for it."""
        before = self.lent_bytes
        while self.frontend.outflow.lend(self):
            self._unread_max += self.lent_bytes - before
            before = self.lent_bytes
            if transport.get_write_buffer_size() <= self._unread_max:
                return
        # The peer's messages are answered, and it reads no answers: its idle time-out continues.
        self._unread = True
        self.hold_reading()

    def pause_writing(self) -> None:
        self.paused = True
        self.frontend.counts.write_stalls += 1
        if self.transport is not None:
            self._unread_max = self.transport.get_write_buffer_size() + self.window_bytes

    def resume_writing(self) -> None:
        self.paused = False
        self.frontend.outflow.give_back(self)
        self.frontend.outflow.reservations.read(self)
        if self._unread:
            self._unread = False
            if not self.frontend.intake.holds(self):
                self.go_on_reading()
        for link in self.links:
            link.writable()

    def set_room(self, room: int) -> None:
        """Changes how many bytes may wait for the socket."""
        self.room = room
        self.window_bytes = _window(room)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.set_write_buffer_limits(room, room // 4)

    def waiting_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def taken_bytes(self) -> int:
        """Bytes that the socket has accepted over the lifetime of the connection."""
        return self._written_bytes - self.waiting_bytes()

    # --- the end ---------------------------------------------------------------------------------------

    def _end_output(self) -> None:
        """Our close is written: ends our direction of the socket, and reads on for the client's close.

        Some clients do not answer a close with an error, but wait for the end of the socket, as Qpid Proton.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            # TLS ends both directions at once, and a client that still sends would find its socket reset.
            self.frontend.later(CLOSE_ANSWER_MS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Applies what the client sent last, if its socket failed while it was written to."""
        if exc is not None and self.transport is not None:
            for data in last_bytes(self.transport):
                self.read_last(data)

    def read_last(self, data: bytes) -> None:
        """Applies bytes of a client whose socket has failed: there is no later turn for them."""
        self.data_received(data)
        while self.has_more:
            self.has_more = False
            self.data_received(b"")

    def log_refused(self, condition: str, description: str) -> None:
        """Notes that a link or a request is refused."""
        self.frontend.connections.refused(self.client, condition, description, self.frontend.now_ms())

    def cut(self, why: str) -> None:
        """Ends the connection of a client that does not read: a close would wait behind unread bytes."""
        log.warning("connection from %s is cut: %s", self.client.peer, why)
        self.frontend.counts.connections_failed += 1
        self.abort()

    def abort(self) -> None:
        """Ends the socket at once; unwritten bytes are lost."""
        if self.transport is not None:
            self.transport.abort()


def last_bytes(transport: asyncio.Transport) -> Iterator[bytes]:
    """What a client sent before its socket failed.

    A client that closes its connection and has not read all messages resets the socket. Its settlements and
    its close may have arrived before, and a transport whose write fails does not read them. Of TLS there is
    nothing: the loop has closed the socket by the time it reports the loss (ADR 5).
    """
    found = transport.get_extra_info("socket")
    if found is None or transport.get_extra_info("ssl_object") is not None:
        return
    with contextlib.suppress(OSError):
        for _ in range(LAST_READS_MAX):
            data = os.read(found.fileno(), LAST_READ_BYTES)
            if not data:
                return
            yield data
