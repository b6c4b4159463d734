"""A client's socket: reading that can be held, and writing whose waiting bytes are bounded (outflow.py)."""

import asyncio
import logging
from typing import TYPE_CHECKING

from lightrail.frontend.client import Client
from lightrail.frontend.gathering import gathered
from lightrail.frontend.links.context import LinkFrontend
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.amqp.connection import Connection

log = logging.getLogger("lightrail.frontend.connection")


class ClientSocket(asyncio.Protocol):
    """The half of a connection that knows bytes and nothing of AMQP."""

    __slots__ = (
        "_unread",
        "_unread_max",
        "_written_bytes",
        "client",
        "consumers",
        "frontend",
        "has_more",
        "has_read_large",
        "lent_bytes",
        "paused",
        "refusing",
        "room",
        "transport",
        "unanswered_bytes",
        "window_bytes",
    )

    def __init__(self, frontend: LinkFrontend, client: Client) -> None:
        self.frontend = frontend
        self.client = client
        self.transport: asyncio.Transport | None = None
        self.consumers = 0
        """Receiving links that are bound to a queue."""
        self.unanswered_bytes = 0
        """Of messages that the client sent; kept by the intake."""
        self.refusing = False
        """The messages that the client sends are refused; kept by the intake."""
        self.has_more = False
        """The socket is not read, since the input is more than one turn may cost: the next turns go on."""
        self.paused = False
        """The socket's buffer is full."""
        self.room = limits.WRITE_ROOM_MIN
        """Bytes that may wait for the socket before its receivers get no more; kept by the outflow."""
        self.window_bytes = _window(limits.WRITE_ROOM_MIN)
        """Bytes that shards may send ahead of what the client reads, over all receiving links."""
        self.lent_bytes = 0
        """Bytes of answers that may wait beyond the room; kept by the outflow."""
        self.has_read_large = False
        """The client has read a message that was larger than its links may be sent ahead."""
        self._written_bytes = 0
        """Bytes written to the socket, those that wait for it included."""
        self._unread_max = 0
        """Bytes that may wait for the socket while `paused`, before it is not read either."""
        self._unread = False
        """The socket is not read since its peer does not read."""

    # --- reading ---------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        return False

    def hold_reading(self) -> None:
        """Stops reading the socket."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on_reading(self) -> None:
        """Reads the socket again, unless something else forbids it."""
        if self.transport is None or self.transport.is_closing():
            return
        if not (self.has_more or self._unread):
            self.transport.resume_reading()

    def go_on_accepting(self) -> None:
        """Messages are no longer refused."""
        raise NotImplementedError

    # --- writing ---------------------------------------------------------------------------------------

    def _write(self, amqp: "Connection", transport: asyncio.Transport) -> None:
        """Writes the engine's output in one piece; large messages as the pieces that were received."""
        output = amqp.output
        if amqp.has_large_output and not self.client.tls:
            pieces = gathered(output)
            size = sum(map(len, pieces))
            transport.writelines(pieces)
        else:
            # TLS would make a record of each piece, and copies what it encrypts.
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
        """The peer does not read: it is not read either when no more bytes may wait for it."""
        before = self.lent_bytes
        while self.frontend.outflow.lend(self):
            self._unread_max += self.lent_bytes - before
            before = self.lent_bytes
            if transport.get_write_buffer_size() <= self._unread_max:
                return
        # The peer's messages are answered, and it reads no answers: its idle time-out goes on.
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
        """Bytes that the socket has accepted, over the life of the connection."""
        return self._written_bytes - self.waiting_bytes()

    def delivered(self) -> int:
        """Messages that the client's links were sent from queues: rises as long as they get any."""
        raise NotImplementedError

    def narrow(self) -> None:
        """Takes credit back from shards, after the room has shrunk."""
        raise NotImplementedError

    # --- the end ---------------------------------------------------------------------------------------

    def cut(self, why: str) -> None:
        """Ends the connection of a client that does not read: a close would wait behind unread bytes."""
        log.warning("connection from %s is cut: %s", self.client.peer, why)
        self.frontend.counts.connections_failed += 1
        self.abort()

    def abort(self) -> None:
        """Ends the socket at once; what was not written is lost."""
        if self.transport is not None:
            self.transport.abort()


def _window(room: int) -> int:
    """Bytes that shards may send ahead for a connection with so much room."""
    return limits.DELIVERY_WINDOW_BYTES * room // limits.WRITE_HIGH_WATER
