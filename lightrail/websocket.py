"""WebSocket: AMQP in the binary messages of a WebSocket (AMQP WebSocket Binding 1.0), at either end.

The binding sends the bytes of a connection, including protocol headers, in binary messages whose boundaries
have no meaning. A `WebSocket` is between the socket and the connection: for the socket it is the protocol,
for the connection the transport. wsproto handles the handshake and the frames (RFC 6455). Frontend and client
differ in the handshake and in how they report an error, so each has a subclass.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, cast

from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

from lightrail.model import limits

WEBSOCKET_FRAMES_AT_ONCE: Final[int] = 256
"""Frames of a WebSocket that are read before other sockets are read: 10 µs each, even if they are tiny."""
WEBSOCKET_MESSAGE_BYTES: Final[int] = 64 * 1024
"""Bytes of a WebSocket message to a client; some client libraries refuse more than 1 MiB."""

SUBPROTOCOL: Final = "amqp"
"""The subprotocol of the binding."""

Bytes = bytes | bytearray | memoryview


class WebSocket(asyncio.Protocol, asyncio.Transport, ABC):
    """One socket, from the first byte of the HTTP request on.

    Args:
        connection: receives the bytes of AMQP, and writes them.
        role: CLIENT requests the WebSocket, SERVER accepts it.
    """

    _socket: asyncio.Transport
    """Set by `connection_made`, before which only a subclass may be called."""

    def __init__(self, connection: asyncio.Protocol, role: ConnectionType) -> None:
        super().__init__()
        self._connection = connection
        self._websocket = WSConnection(role)
        self._accepted = False
        """Whether the handshake has succeeded; a subclass sets it."""
        self._closed = False
        """Whether our close is written, after which no other frame may be."""
        self._going_on = False
        """Whether frames are left for another turn."""
        self._reading = True
        """Whether the connection accepts more input."""

    # --- of the role -----------------------------------------------------------------------------------

    def _opening(self, data: bytes) -> bytes:
        """Gets what is received before the handshake has succeeded; returns what is to be parsed now."""
        return data

    @abstractmethod
    def _unreadable(self, error: Exception) -> None:
        """Ends the socket of a peer that sends something else than the handshake."""

    @abstractmethod
    def _received(self, event: Event) -> None:
        """Handles an event of the handshake; gets pongs and the peer's close as well."""

    @abstractmethod
    def _failed(self, reason: str) -> None:
        """Reports an error of the peer, for which the WebSocket is then closed."""

    @abstractmethod
    def _cut(self) -> None:
        """Ends the socket of a peer that sends pings and reads no answers."""

    # --- from the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Receives bytes of the handshake, and then of frames."""
        if self._socket.is_closing() or (not self._accepted and not (data := self._opening(data))):
            return
        try:
            self._websocket.receive_data(data)
        except (RemoteProtocolError, UnicodeError) as error:
            # wsproto decodes header fields with octets that h11 accepts.
            self._unreadable(error)
            return
        self._turn()

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def _turn(self) -> None:
        """Applies a bounded number of frames, and continues with the rest in another turn."""
        payload = bytearray()
        count = 0
        try:
            for event in islice(self._websocket.events(), WEBSOCKET_FRAMES_AT_ONCE):
                count += 1
                if isinstance(event, BytesMessage):
                    payload += event.data
                else:
                    self._handle(event)
                if self._socket.is_closing():
                    # No frame may be sent after a close, whatever else was received with its cause.
                    break
        except RemoteProtocolError as error:
            self._end(CloseReason.PROTOCOL_ERROR, str(error))
        if payload:
            self._connection.data_received(bytes(payload))
        if count == WEBSOCKET_FRAMES_AT_ONCE and not self._going_on and not self._socket.is_closing():
            self._going_on = True
            self._socket.pause_reading()
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._going_on = False
        if not self._socket.is_closing():
            self._turn()
            if self._reading and not self._going_on and not self._socket.is_closing():
                self._socket.resume_reading()

    def _handle(self, event: Event) -> None:
        """Handles a frame without bytes of AMQP, or a part of the handshake."""
        if isinstance(event, Ping):
            if self._socket.get_write_buffer_size() > limits.WRITE_HIGH_WATER:
                self._cut()
            elif not self._closed:
                self._socket.write(self._websocket.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._received(event)
            if not self._closed:
                self._socket.write(self._websocket.send(event.response()))
            self._socket.close()
        elif isinstance(event, TextMessage):
            self._end(CloseReason.UNSUPPORTED_DATA, "expected binary messages, found text")
        else:
            self._received(event)

    def _end(self, code: CloseReason, reason: str) -> None:
        """Closes the WebSocket for an error of the peer."""
        self._failed(reason)
        self._write_close(code, reason)
        self._socket.close()

    # --- from the connection ---------------------------------------------------------------------------

    def write(self, data: Bytes) -> None:
        """Sends bytes of AMQP, in messages of a size that every peer accepts."""
        socket = self._socket
        if not self._accepted or self._closed or socket.is_closing():
            return
        send = self._websocket.send
        view = memoryview(data)
        for at in range(0, len(view), WEBSOCKET_MESSAGE_BYTES):
            socket.write(send(BytesMessage(data=bytes(view[at : at + WEBSOCKET_MESSAGE_BYTES]))))

    def writelines(self, pieces: Iterable[Bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        """Closes the WebSocket, and the socket when all bytes are written."""
        self._write_close()
        self._socket.close()

    def can_write_eof(self) -> bool:
        return self._socket.can_write_eof()

    def write_eof(self) -> None:
        """Closes the WebSocket, and our direction of the socket when all bytes are written."""
        self._write_close()
        self._socket.write_eof()

    def _write_close(self, code: CloseReason = CloseReason.NORMAL_CLOSURE, reason: str | None = None) -> None:
        if self._accepted and not self._closed and not self._socket.is_closing():
            self._closed = True
            self._socket.write(self._websocket.send(CloseConnection(code=code, reason=reason)))

    def abort(self) -> None:
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        self._reading = False
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if not self._going_on:
            self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)
