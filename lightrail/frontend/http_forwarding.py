"""HTTP at the ports of AMQP: requests of administration are forwarded to a gateway of this machine.

Some clients administer a broker at the port of their connection string, which is that of AMQP. The head of
the first request gets the header field of wire/forwarded.py, by which the gateway knows the client; behind
it, bytes are copied in both directions, and each direction stops reading while the other side's buffer is
full.

To the gateway a connection from this machine is local, unless its first request has this field. So a head is
passed on only if every reader finds the same lines in it: with CRLF alone as their ends, and no continued
lines. Fields of that name by the client are removed.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from lightrail.model import limits, protocols
from lightrail.model.endpoint import Endpoint
from lightrail.wire.forwarded import FIELD, NONCE_FIELD, Forwarded

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

HTTP_FORWARDED_MAX: Final[int] = 64
"""Connections of a frontend that are forwarded to a gateway."""
HTTP_FORWARDED_OF_SOURCE: Final[int] = 8
"""Those of one source."""
HTTP_FORWARDED_BUFFER_BYTES: Final[int] = 256 * 1024
"""Bytes that may wait for one side that does not read; beyond, the other side's socket is not read."""
CONNECT_S: Final = 5.0
"""Time in which the gateway accepts the connection."""

log = logging.getLogger("lightrail.frontend.http_forwarding")

_END: Final = b"\r\n\r\n"
_OWN: Final = (FIELD.lower().encode(), NONCE_FIELD.lower().encode())


class _Side(asyncio.Protocol):
    """One end of a forwarded connection, whose bytes go to the other."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HTTP_FORWARDED_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if (to := self._to()) is not None:
            to.write(data)

    def eof_received(self) -> bool:
        to = self._to()
        if to is None or not to.can_write_eof():
            return False
        to.write_eof()
        return True

    def pause_writing(self) -> None:
        if (to := self._to()) is not None:
            to.pause_reading()

    def resume_writing(self) -> None:
        if (to := self._to()) is not None:
            to.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if (to := self._to()) is not None:
            # Bytes that wait are written first.
            to.close()
        self.transport = None
        self._lost()

    def _to(self) -> asyncio.Transport | None:
        transport = None if self.other is None else self.other.transport
        return None if transport is None or transport.is_closing() else transport


@dataclass(slots=True, eq=False, repr=False)
class HttpForwarding:
    """The forwarded connections of one frontend.

    Attributes:
        gateway: where a gateway of this machine serves HTTP; None without one.
    """

    _frontend: "Frontend"
    gateway: Endpoint | None = None
    _sides: dict[_Side, str] = field(default_factory=dict)
    """Sides of clients, with their sources."""

    def __len__(self) -> int:
        return len(self._sides)

    def takes(self, connection: "ClientConnection", client: asyncio.Transport, data: bytes) -> bool:
        """Whether a connection begins with a request of administration, which is then answered.

        Args:
            client: the socket of the connection, which has a new protocol if this returns True.
            data: what was read of it, with the whole head of the request.
        """
        head, end, body = data.partition(_END)
        target = head.split(b"\r\n", 1)[0].split(b" ")
        if not end or protocols.name_of(data) != "HTTP" or len(target) != 3:
            return False
        if not self._frontend.hooks.is_administration(target[1].decode("latin-1")):
            return False
        source = "" if connection.sasl_exchange is None else connection.sasl_exchange.source
        peer, tls = connection.client.peer, connection.client.tls
        side = _Side(lambda: self._ended(side))
        self._sides[side] = source
        side.connection_made(client)
        client.set_protocol(side)
        # The connection has no AMQP in it, and its time to open no longer runs.
        connection.connection_lost(None)
        refused = self._refused(head, source)
        if refused is not None:
            _answer(client, *refused)
            return True
        client.pause_reading()
        self._frontend.spawn(self._forward(side, self._with_field(head, peer, tls) + _END + body))
        return True

    def close(self) -> None:
        """Ends all of them: the process ends."""
        for side in list(self._sides):
            if side.transport is not None:
                side.transport.abort()

    def _ended(self, side: _Side) -> None:
        self._sides.pop(side, None)

    def _refused(self, head: bytes, source: str) -> tuple[HTTPStatus, str] | None:
        """Why a request is not forwarded, or None."""
        if not _is_plain(head):
            return (
                HTTPStatus.BAD_REQUEST,
                "expected a request line and header fields of one line each, with CRLF",
            )
        same = sum(each == source for each in self._sides.values())
        if len(self) > HTTP_FORWARDED_MAX or same > HTTP_FORWARDED_OF_SOURCE:
            return HTTPStatus.SERVICE_UNAVAILABLE, (
                f"{same - 1} connections from there, and {len(self) - 1} in all, are administering over this "
                "port already; use the gateway's own port, or try again"
            )
        return None

    def _with_field(self, head: bytes, peer: str, tls: bool) -> bytes:
        """A head with the field about its client, the last one: no other line continues it."""
        lines = [line for line in head.split(b"\r\n") if line.partition(b":")[0].lower() not in _OWN]
        host, _, port = peer.rpartition(":")
        nonce = secrets.token_hex(16)
        forwarded = Forwarded(host, int(port) if port.isdecimal() else 0, tls=tls)
        value = self._frontend.signed(forwarded, nonce.encode())
        return b"\r\n".join([*lines, f"{NONCE_FIELD}: {nonce}".encode(), f"{FIELD}: {value}".encode()])

    async def _forward(self, side: _Side, request: bytes) -> None:
        """Connects a client to the gateway, and passes its first bytes on."""
        gateway = self.gateway
        if gateway is None:
            found = sorted(each.http for each in self._frontend.gateways() if each.http)
            where = f"one serves at {found[0]}" if found else "none is known now"
            reason = f"administration is served by gateways, and none runs beside this frontend: {where}"
            _answer(side.transport, HTTPStatus.SERVICE_UNAVAILABLE, reason)
            return
        upstream = _Side(lambda: None)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: upstream, gateway.host, gateway.port
                )
        except OSError as error:  # TimeoutError is one
            log.warning("no gateway answers at %s: %s", gateway, error or type(error).__name__)
            _answer(side.transport, HTTPStatus.SERVICE_UNAVAILABLE, "no gateway answers now; try again")
            return
        if side.transport is None or upstream.transport is None:
            # The client has closed meanwhile.
            if upstream.transport is not None:
                upstream.transport.close()
            return
        upstream.other, side.other = side, upstream
        upstream.transport.write(request)
        side.transport.resume_reading()


def _is_plain(head: bytes) -> bool:
    """Whether every reader of HTTP finds the same lines in a head."""
    lines = head.split(b"\r\n")
    if len(head) > limits.WEBSOCKET_HEAD_BYTES or any(set(line) & set(b"\r\n\0") for line in lines):
        return False
    names = [line.partition(b":") for line in lines[1:]]
    return all(colon and name and not set(name) & set(b" \t") for name, colon, _ in names)


def _answer(transport: asyncio.Transport | None, status: HTTPStatus, reason: str) -> None:
    """Answers a request itself, and ends its connection."""
    if transport is None or transport.is_closing():
        return
    text = reason.encode() + b"\n"
    retry = "Retry-After: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n{retry}Connection: close\r\n\r\n"
    )
    transport.write(head.encode() + text)
    transport.close()
