"""The WebSocket of a client that uses AMQP over WebSocket, on the same ports.

Pages in browsers may open WebSockets to any address, even on the reader's machine, and always send their
origin. So an origin has to be allowed by the setting websocket_origins. Other clients send no origin, or,
like the client of Azure Service Bus for Python, the address that they connect to. A page could have this
address as its origin only if its name was resolved to another machine before (DNS rebinding), so it is
allowed over TLS, where the certificate is for the name, and without a name.
"""

import logging
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from wsproto import ConnectionType
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, Event, RejectConnection, Request
from wsproto.utilities import RemoteProtocolError

from lightrail.frontend.client_socket import last_bytes
from lightrail.model import limits, protocols
from lightrail.websocket import SUBPROTOCOL, WebSocket
from lightrail.wire.forwarded import FIELD

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.websocket")

ALL_ORIGINS: Final = "*"
HTTP_FIRST: Final = frozenset((b"G", b"H", b"P", b"D", b"O"))
"""First bytes of the methods of HTTP."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_FORWARDED: Final = FIELD.lower().encode()


class ServedWebSocket(WebSocket):
    """One accepted socket, from the first byte of its HTTP request on.

    Args:
        origins: of pages that may connect; ALL_ORIGINS for every page.
    """

    _connection: "ClientConnection"

    def __init__(self, connection: "ClientConnection", origins: tuple[str, ...]) -> None:
        super().__init__(connection, ConnectionType.SERVER)
        self._origins = origins
        self._head = b""
        """Bytes of the request, until its end arrives."""

    # --- the handshake ---------------------------------------------------------------------------------

    def _opening(self, data: bytes) -> bytes:
        """Returns the request when its end has arrived."""
        self._head += data
        if _END_OF_HEAD not in self._head and len(self._head) <= limits.WEBSOCKET_HEAD_BYTES:
            return b""
        data, self._head = self._head, b""
        if _asks_for_websocket(data):
            return data
        if self._connection.frontend.http.takes(self._connection, self._socket, data):
            return b""
        # Any other protocol, which the engine answers with its own header (transport 2.2).
        self._socket.set_protocol(self._connection)
        self._connection.transport = self._socket
        self._connection.data_received(data)
        return b""

    def _unreadable(self, error: Exception) -> None:
        served = _versions(error)
        reason = "expected version 13 of the WebSocket protocol" if served else str(error)
        self._refuse(HTTPStatus.BAD_REQUEST, reason, served)

    def _received(self, event: Event) -> None:
        """Accepts the request, or refuses it."""
        if not isinstance(event, Request):
            return
        fields = dict(event.extra_headers)
        forwarded = fields.get(_FORWARDED)
        if forwarded is not None and not self._forward(forwarded, fields[b"sec-websocket-key"]):
            return
        origin = fields.get(b"origin", b"").decode("latin-1")
        if origin and not self._allows(origin.lower(), event.host.lower()):
            self._refuse(HTTPStatus.FORBIDDEN, f"pages of {origin!a} may not connect: see websocket_origins")
            return
        known = SUBPROTOCOL, *self._connection.frontend.hooks.subprotocols
        chosen = next((name for name in known if name in event.subprotocols), None)
        if chosen is None:
            found = ", ".join(event.subprotocols) or "none"
            self._refuse(HTTPStatus.BAD_REQUEST, f"expected the subprotocol amqp, found {found}")
            return
        self._accepted = True
        self._connection.client.websocket = True
        self._connection.frontend.counts.websockets += 1
        self._socket.write(self._websocket.send(AcceptConnection(subprotocol=chosen)))

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
        self._socket.write(head.encode() + text)
        self._socket.close()

    # --- the end ---------------------------------------------------------------------------------------

    def _failed(self, reason: str) -> None:
        log.info("the WebSocket from %s is closed: %s", self._connection.client.peer, reason)
        self._connection.frontend.counts.connections_failed += 1

    def _cut(self) -> None:
        self._connection.cut("it sends pings and reads no answers")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._accepted:
            self._connection.frontend.counts.websockets -= 1
            if exc is not None:
                self._read_last()
        # What the socket had were frames of this protocol, and not of AMQP.
        self._connection.connection_lost(None)

    def _read_last(self) -> None:
        """Applies what the client sent before its socket failed, as far as frames can be read."""
        websocket = self._websocket
        payload = bytearray()
        try:
            for data in last_bytes(self._socket):
                if websocket.state is ConnectionState.OPEN:
                    websocket.receive_data(data)
            for event in websocket.events():
                if isinstance(event, BytesMessage):
                    payload += event.data
        except RemoteProtocolError as error:
            log.debug("the last frames of %s can't be read: %s", self._connection.client.peer, error)
        self._connection.read_last(bytes(payload))


def is_http(data: bytes) -> bool:
    """Whether the first bytes of a client are those of a request over HTTP; a GET may have come in part."""
    return data[:1] == b"G" or protocols.name_of(data) == "HTTP"


def begin_websocket(connection: "ClientConnection", data: bytes) -> None:
    """Puts a WebSocket between the socket and a connection whose client begins with an HTTP request.

    A request for something else is known by its head: http_forwarding.py.
    """
    transport = connection.transport
    assert transport is not None
    websocket = ServedWebSocket(connection, connection.frontend.websocket_origins)
    connection.websocket = connection.transport = websocket
    websocket.connection_made(transport)
    transport.set_protocol(websocket)
    websocket.data_received(data)


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
