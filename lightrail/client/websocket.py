"""The WebSocket that a client requests; the extra `websocket` installs the package for it."""

import asyncio
from typing import Final

from lightrail.client.errors import ConnectError
from lightrail.client.options import Address

WEBSOCKET_REFUSAL_BYTES: Final[int] = 200
"""Bytes of a server's refusal of a WebSocket that the client's error quotes."""

try:
    from wsproto import ConnectionType
    from wsproto.events import (
        AcceptConnection,
        CloseConnection,
        Event,
        RejectConnection,
        RejectData,
        Request,
    )

    from lightrail.websocket import SUBPROTOCOL, WebSocket
except ImportError as error:
    raise ConnectError(
        f"ws:// and wss:// need the package wsproto: pip install 'lightrail[websocket]' ({error})"
    ) from error


class RequestedWebSocket(WebSocket):
    """One socket, from the first byte of our HTTP request on.

    Args:
        wire: gets the bytes of AMQP, and writes them: its `connection_made` is called when the server has
            accepted the WebSocket, its `connection_lost` when the socket is closed.
        address: whose path is requested.
    """

    def __init__(self, wire: asyncio.Protocol, address: Address) -> None:
        super().__init__(wire, ConnectionType.CLIENT)
        self._address = address
        self._has_socket = False
        self._refusal = b""
        """Beginning of the text of a server that refuses."""
        self._status = 0
        self._why: Exception | None = None
        """Why this side closes the socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._has_socket = True
        request = Request(host=self._address.authority, target=self._address.path, subprotocols=[SUBPROTOCOL])
        self._socket.write(self._websocket.send(request))

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_socket = False
        if self._status:
            exc = self._refused()
        self._connection.connection_lost(self._why or exc)

    def abort(self) -> None:
        """Closes the socket at once, if there is one."""
        if self._has_socket:
            super().abort()

    def _received(self, event: Event) -> None:
        if isinstance(event, AcceptConnection):
            if event.subprotocol != SUBPROTOCOL:
                self._fail(f"expected the subprotocol {SUBPROTOCOL}, found {event.subprotocol or 'none'}")
                return
            self._accepted = True
            self._connection.connection_made(self)
        elif isinstance(event, RejectConnection):
            self._status = event.status_code
            if not event.has_body:
                self.abort()
        elif isinstance(event, RejectData):
            self._refusal += event.data[: WEBSOCKET_REFUSAL_BYTES - len(self._refusal)]
            if event.body_finished or len(self._refusal) == WEBSOCKET_REFUSAL_BYTES:
                self.abort()
        elif isinstance(event, CloseConnection):
            self._why = self._why or ConnectionError(
                f"the server closed the WebSocket: {event.reason or 'it gave no reason'} ({int(event.code)})"
            )

    def _refused(self) -> Exception:
        text = ascii(self._refusal.decode(errors="replace").strip())[1:-1]
        return ConnectionError(
            f"the server refuses a WebSocket at {self._address.path.partition('?')[0]}: it answers "
            f"{self._status}{': ' if text else ''}{text}"
        )

    def _unreadable(self, error: Exception) -> None:
        self._fail(f"expected a server of WebSockets, found one that sends something else: {error}")

    def _cut(self) -> None:
        self._fail("the server sends pings and reads no answers")

    def _fail(self, reason: str) -> None:
        self._failed(reason)
        self.abort()

    def _failed(self, reason: str) -> None:
        self._why = ConnectionError(reason)
