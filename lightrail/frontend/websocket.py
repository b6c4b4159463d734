"""WebSocket: a client that uses AMQP over WebSocket, on the same ports.

The AMQP WebSocket Binding 1.0 sends the bytes of a connection, including protocol headers, in binary messages
whose boundaries have no meaning. A `WebSocket` is between the socket and the connection: for the socket it is
the protocol, for the connection the transport. wsproto handles the handshake and the frames (RFC 6455).

Pages in browsers may open WebSockets to any address, even on the reader's machine, and always send their
origin. So an origin has to be allowed by the setting websocket_origins. Other clients send no origin, or,
like the client of Azure Service Bus for Python, the address that they connect to. A page could have this
address as its origin only if its name was resolved to another machine before (DNS rebinding), so it is
allowed over TLS, where the certificate is for the name, and without a name.
"""

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

from lightrail.frontend.client_socket import ClientSocket, last_bytes
from lightrail.frontend.connections import ConnectionFrontend
from lightrail.model import limits
from lightrail.wire.forwarded import FIELD, Forwarded

log = logging.getLogger("lightrail.frontend.websocket")

SUBPROTOCOLS: Final = ("amqp", "AMQPWSB10")
"""The subprotocol of the binding, and the one that clients of Azure Service Bus used formerly."""
ALL_ORIGINS: Final = "*"
_END_OF_HEAD: Final = b"\r\n\r\n"
_FORWARDED: Final = FIELD.lower().encode()

Bytes = bytes | bytearray | memoryview


class WebSocketConnection(ClientSocket):
    """The interface of the connection for a WebSocket."""

    __slots__ = ()

    frontend: ConnectionFrontend

    def forward(self, client: Forwarded) -> bool:
        """Sets the client that a gateway forwards; returns whether that client may log in."""
        raise NotImplementedError


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """One accepted socket, from the first byte of its HTTP request on.

    Args:
        connection: receives the bytes of AMQP, and writes them.
        origins: of pages that may connect; ALL_ORIGINS for every page.
    """

    def __init__(
        self, connection: WebSocketConnection, transport: asyncio.Transport, origins: tuple[str, ...]
    ) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport
        self._origins = origins
        self._head = b""
        """Bytes of the request, until its end arrives."""
        self._websocket: WSConnection | None = None
        """None until the client has requested a WebSocket."""
        self._accepted = False
        self._closed = False
        """Whether our close is written, after which no other frame may be."""
        self._going_on = False
        """Whether frames are left for another turn."""
        self._reading = True
        """Whether the connection accepts more input."""

    # --- from the socket -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Receives bytes of the request, and then of frames."""
        if self._transport.is_closing():
            return
        if self._websocket is None:
            self._head += data
            if _END_OF_HEAD not in self._head and len(self._head) <= limits.WEBSOCKET_HEAD_BYTES:
                return
            data, self._head = self._head, b""
            if not _asks_for_websocket(data):
                # Any other protocol, which the engine answers with its own header (transport 2.2).
                self._transport.set_protocol(self._connection)
                self._connection.transport = self._transport
                self._connection.data_received(data)
                return
            self._websocket = WSConnection(ConnectionType.SERVER)
        try:
            self._websocket.receive_data(data)
        except (RemoteProtocolError, UnicodeError) as error:
            # wsproto decodes header fields with octets that h11 accepts.
            served = _versions(error)
            reason = "expected version 13 of the WebSocket protocol" if served else str(error)
            self._refuse(HTTPStatus.BAD_REQUEST, reason, served)
            return
        self._turn(self._websocket)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._accepted:
            self._connection.frontend.counts.websockets -= 1
            if exc is not None and self._websocket is not None:
                self._read_last(self._websocket)
        # What the socket had were frames of this protocol, and not of AMQP.
        self._connection.connection_lost(None)

    def _read_last(self, websocket: WSConnection) -> None:
        """Applies what the client sent before its socket failed, as far as frames can be read."""
        payload = bytearray()
        try:
            for data in last_bytes(self._transport):
                if websocket.state is ConnectionState.OPEN:
                    websocket.receive_data(data)
            for event in websocket.events():
                if isinstance(event, BytesMessage):
                    payload += event.data
        except RemoteProtocolError as error:
            log.debug("the last frames of %s can't be read: %s", self._connection.client.peer, error)
        self._connection.read_last(bytes(payload))

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def _turn(self, websocket: WSConnection) -> None:
        """Applies a bounded number of frames, and continues with the rest in another turn."""
        payload = bytearray()
        count = 0
        try:
            for event in islice(websocket.events(), limits.WEBSOCKET_FRAMES_AT_ONCE):
                count += 1
                if isinstance(event, BytesMessage):
                    payload += event.data
                elif isinstance(event, Request):
                    self._answer(websocket, event)
                elif isinstance(event, Ping):
                    self._pong(websocket, event)
                elif isinstance(event, CloseConnection):
                    if not self._closed:
                        self._transport.write(websocket.send(event.response()))
                    self._transport.close()
                elif isinstance(event, TextMessage):
                    self._end(websocket, CloseReason.UNSUPPORTED_DATA, "expected binary messages, found text")
                if self._transport.is_closing():
                    # No frame may be sent after a close, whatever else was received with its cause.
                    break
        except RemoteProtocolError as error:
            self._end(websocket, CloseReason.PROTOCOL_ERROR, str(error))
        if payload:
            self._connection.data_received(bytes(payload))
        if (
            count == limits.WEBSOCKET_FRAMES_AT_ONCE
            and not self._going_on
            and not self._transport.is_closing()
        ):
            self._going_on = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self._websocket is not None and not self._transport.is_closing():
            self._turn(self._websocket)
            if self._reading and not self._going_on:
                self.resume_reading()

    def _answer(self, websocket: WSConnection, request: Request) -> None:
        """Accepts the handshake, or refuses it."""
        fields = dict(request.extra_headers)
        forwarded = fields.get(_FORWARDED)
        if forwarded is not None and not self._forward(forwarded, fields[b"sec-websocket-key"]):
            return
        origin = fields.get(b"origin", b"").decode("latin-1")
        if origin and not self._allows(origin.lower(), request.host.lower()):
            self._refuse(HTTPStatus.FORBIDDEN, f"pages of {origin!a} may not connect: see websocket_origins")
            return
        chosen = next((name for name in SUBPROTOCOLS if name in request.subprotocols), None)
        if chosen is None:
            found = ", ".join(request.subprotocols) or "none"
            self._refuse(HTTPStatus.BAD_REQUEST, f"expected the subprotocol amqp, found {found}")
            return
        self._accepted = True
        self._connection.client.websocket = True
        self._connection.frontend.counts.websockets += 1
        self._transport.write(websocket.send(AcceptConnection(subprotocol=chosen)))

    def _forward(self, value: bytes, nonce: bytes) -> bool:
        """Reads the header field of a gateway about its client; refuses a field that no gateway wrote."""
        try:
            client = self._connection.frontend.forwarded(value.decode("ascii", "replace"), nonce)
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return False
        if not self._connection.forward(client):
            self._refuse(HTTPStatus.FORBIDDEN, "no user is defined, and the client is not on this machine")
            return False
        return True

    def _allows(self, origin: str, host: str) -> bool:
        """Whether pages of an origin may connect to `host`, the address that the client uses."""
        if origin in self._origins or ALL_ORIGINS in self._origins:
            return True
        return origin.partition("://")[2] == host and (self._connection.client.tls or _is_nameless(host))

    def _refuse(self, status: HTTPStatus, reason: str, fields: str = "") -> None:
        """Ends the handshake with a status and a text; `fields` are lines of the head."""
        log.info("a WebSocket from %s is refused: %s", self._connection.client.peer, reason)
        self._connection.frontend.counts.connections_refused += 1
        text = reason.encode(errors="replace") + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n{fields}\r\n"
        )
        self._transport.write(head.encode() + text)
        self._transport.close()

    def _pong(self, websocket: WSConnection, ping: Ping) -> None:
        if self._transport.get_write_buffer_size() > limits.WRITE_HIGH_WATER:
            self._connection.cut("it sends pings and reads no answers")
        elif not self._closed:
            self._transport.write(websocket.send(ping.response()))

    def _end(self, websocket: WSConnection, code: CloseReason, reason: str) -> None:
        """Closes the WebSocket for an error of the client."""
        log.info("the WebSocket from %s is closed: %s", self._connection.client.peer, reason)
        self._connection.frontend.counts.connections_failed += 1
        if self._accepted and not self._closed:
            self._transport.write(websocket.send(CloseConnection(code=code, reason=reason)))
        self._transport.close()

    # --- from the connection ---------------------------------------------------------------------------

    def write(self, data: Bytes) -> None:
        """Sends bytes of AMQP, in messages of a size that every client accepts."""
        if self._websocket is None or not self._accepted or self._closed or self._transport.is_closing():
            return
        send = self._websocket.send
        view = memoryview(data)
        for at in range(0, len(view), limits.WEBSOCKET_MESSAGE_BYTES):
            piece = view[at : at + limits.WEBSOCKET_MESSAGE_BYTES]
            self._transport.write(send(BytesMessage(data=bytes(piece))))

    def writelines(self, pieces: Iterable[Bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        """Closes the WebSocket, and the socket when all bytes are written."""
        self._write_close()
        self._transport.close()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        """Closes the WebSocket, and our direction of the socket when all bytes are written."""
        self._write_close()
        self._transport.write_eof()

    def _write_close(self) -> None:
        if self._accepted and not self._closed and not self._transport.is_closing():
            assert self._websocket is not None
            self._closed = True
            self._transport.write(self._websocket.send(CloseConnection(code=CloseReason.NORMAL_CLOSURE)))

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if not self._going_on:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


def _is_nameless(host: str) -> bool:
    """Whether HOST:PORT has an IP address, or localhost, which no DNS server resolves."""
    name = ""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _versions(error: Exception) -> str:
    """The header fields with the served versions, where another one was requested (RFC 6455 4.4)."""
    hint = getattr(error, "event_hint", None)
    fields = hint.headers if isinstance(hint, RejectConnection) else ()
    return "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in fields)


def _asks_for_websocket(request: bytes) -> bool:
    """Whether an HTTP request has the header `Upgrade: websocket`."""
    head, end, _ = request.partition(_END_OF_HEAD)
    lines = head.split(b"\r\n")[1:] if end else []
    fields = (line.partition(b":") for line in lines)
    return any(
        name.strip().lower() == b"upgrade" and value.strip().lower() == b"websocket"
        for name, _, value in fields
    )
