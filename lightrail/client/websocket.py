"""WebSocket: AMQP in the binary messages of a WebSocket (AMQP WebSocket Binding 1.0).

A `WebSocket` is between the socket and the wire: for the socket it is the protocol, for the wire the
transport. wsproto implements the handshake and the frames (RFC 6455); the extra `websocket` installs it, and
the first connection that needs it imports it.
"""

import asyncio
from itertools import islice
from typing import Any, Final, cast

from lightrail.client.errors import ConnectError
from lightrail.client.options import Address
from lightrail.model import limits

try:
    from wsproto import ConnectionType, WSConnection
    from wsproto.events import (
        AcceptConnection,
        BytesMessage,
        CloseConnection,
        Ping,
        RejectConnection,
        RejectData,
        Request,
        TextMessage,
    )
    from wsproto.frame_protocol import CloseReason
    from wsproto.utilities import RemoteProtocolError
except ImportError as error:
    raise ConnectError(
        f"ws:// and wss:// need the package wsproto: pip install 'lightrail[websocket]' ({error})"
    ) from error

SUBPROTOCOL: Final = "amqp"


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """One socket, from the first byte of our HTTP request on.

    Args:
        wire: gets the bytes of AMQP, and writes them: its `connection_made` is called when the server has
            accepted the WebSocket, its `connection_lost` when the socket is closed.
        address: whose path is requested.
    """

    def __init__(self, wire: asyncio.Protocol, address: Address) -> None:
        super().__init__()
        self._wire = wire
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._websocket = WSConnection(ConnectionType.CLIENT)
        self._accepted = False
        self._going_on = False
        """Whether frames are left for another turn."""
        self._refusal = b""
        """Beginning of the text of a server that refuses."""
        self._status = 0
        self._why: Exception | None = None
        """Why this side closes the socket."""

    # --- from the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        request = Request(host=self._address.authority, target=self._address.path, subprotocols=[SUBPROTOCOL])
        self._transport.write(self._websocket.send(request))

    def data_received(self, data: bytes) -> None:
        if self.is_closing():
            return
        try:
            self._websocket.receive_data(data)
        except (RemoteProtocolError, UnicodeError) as error:
            self._fail(f"expected a server of WebSockets, found one that sends something else: {error}")
            return
        self._turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._status:
            exc = self._refused()
        self._transport = None
        self._wire.connection_lost(self._why or exc)

    def pause_writing(self) -> None:
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        self._wire.resume_writing()

    def _turn(self) -> None:
        """Applies a bounded number of frames, and the rest in another turn."""
        payload = bytearray()
        count = 0
        try:
            for event in islice(self._websocket.events(), limits.WEBSOCKET_FRAMES_AT_ONCE):
                count += 1
                if isinstance(event, BytesMessage):
                    payload += event.data
                else:
                    self._handle(event)
                if self.is_closing():
                    break
        except RemoteProtocolError as error:
            self._end(CloseReason.PROTOCOL_ERROR, str(error))
        if payload:
            self._wire.data_received(bytes(payload))
        if count == limits.WEBSOCKET_FRAMES_AT_ONCE and not self._going_on and not self.is_closing():
            assert self._transport is not None
            self._going_on = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self._transport is not None and not self.is_closing():
            self._turn()
            if not self._going_on and not self.is_closing():
                self._transport.resume_reading()

    def _handle(self, event: object) -> None:
        """Handles a frame without bytes of AMQP, or a part of the handshake."""
        if isinstance(event, AcceptConnection):
            if event.subprotocol != SUBPROTOCOL:
                self._fail(f"expected the subprotocol {SUBPROTOCOL}, found {event.subprotocol or 'none'}")
                return
            self._accepted = True
            self._wire.connection_made(self)
        elif isinstance(event, RejectConnection):
            self._status = event.status_code
            if not event.has_body:
                self.abort()
        elif isinstance(event, RejectData):
            self._refusal += event.data[: limits.WEBSOCKET_REFUSAL_BYTES - len(self._refusal)]
            if event.body_finished or len(self._refusal) == limits.WEBSOCKET_REFUSAL_BYTES:
                self.abort()
        elif isinstance(event, Ping):
            if self.get_write_buffer_size() > limits.WRITE_HIGH_WATER:
                self._fail("the server sends pings and reads no answers")
            else:
                self._send(event.response())
        elif isinstance(event, CloseConnection):
            self._why = self._why or ConnectionError(
                f"the server closed the WebSocket: {event.reason or 'it gave no reason'} ({int(event.code)})"
            )
            self._send(event.response())
            self._close()
        elif isinstance(event, TextMessage):
            self._end(CloseReason.UNSUPPORTED_DATA, "expected binary messages, found text")

    def _refused(self) -> Exception:
        text = ascii(self._refusal.decode(errors="replace").strip())[1:-1]
        return ConnectionError(
            f"the server refuses a WebSocket at {self._address.path.partition('?')[0]}: it answers "
            f"{self._status}{': ' if text else ''}{text}"
        )

    def _end(self, code: CloseReason, reason: str) -> None:
        """Closes the WebSocket for an error of the server."""
        self._why = ConnectionError(reason)
        if self._accepted:
            self._send(CloseConnection(code=code, reason=reason))
        self._close()

    def _fail(self, reason: str) -> None:
        self._why = ConnectionError(reason)
        self.abort()

    def _send(self, event: Any) -> None:
        if self._transport is not None and not self.is_closing():
            self._transport.write(self._websocket.send(event))

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- from the wire ---------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes of AMQP, in messages that are small enough for every server."""
        view = memoryview(data)
        for at in range(0, len(view), limits.WEBSOCKET_MESSAGE_BYTES):
            self._send(BytesMessage(data=bytes(view[at : at + limits.WEBSOCKET_MESSAGE_BYTES])))

    def close(self) -> None:
        """Closes the WebSocket, and the socket when all bytes are written."""
        if self._accepted:
            self._send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
        self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)
