"""WebSockets at the gateway: requests for AMQP over WebSocket are forwarded to a frontend of this machine.

The gateway parses the request and the frontend's answer, and nothing behind them: the frontend checks origin
and subprotocol, and handles frames, limits and time-outs (frontend/websocket.py). This module only copies
bytes in both directions. Each direction stops reading while the other side's buffer is full.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from aiohttp import web
from multidict import CIMultiDict

from lightrail.gateway.errors import ProblemError
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.model.protocols import LOCAL, Balancers
from lightrail.telemetry.http_connection import Connections
from lightrail.wire.forwarded import FIELD, Forwarded

HTTP_WEBSOCKET_BUFFER_BYTES: Final[int] = 256 * 1024
"""Bytes of a client that may wait for a frontend that does not read; beyond, the client's socket is not
read."""

log = logging.getLogger("lightrail.gateway.websockets")

NONCE: Final = "Sec-WebSocket-Key"
VERSION: Final = "Sec-WebSocket-Version"
_REQUEST_FIELDS: Final = (
    "Upgrade",
    "Connection",
    "Origin",
    VERSION,
    NONCE,
    "Sec-WebSocket-Protocol",
)
"""Fields of a request that are forwarded."""
_ANSWER_FIELDS: Final = ("Upgrade", "Connection", "Sec-WebSocket-Accept", "Sec-WebSocket-Protocol")
_END: Final = b"\r\n\r\n"
_SWITCHING: Final = 101
_READ_BYTES: Final = 64 * 1024


class _Client(Protocol):
    """The client's connection, as far as a WebSocket needs it."""

    transport: asyncio.Transport | None
    source: str
    """The source that the connection counts for."""

    def set_parser(self, parser: Any) -> None:
        """Passes all bytes that are read from now on to the parser."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Upstream(asyncio.StreamReaderProtocol):
    """The connection to the frontend; the client is not read while its buffer is full."""

    def __init__(self, reader: asyncio.StreamReader, client: _Client, admitted: Connections) -> None:
        super().__init__(reader)
        self.source = client.source
        self._client = client
        self._admitted = admitted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._admitted.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._admitted.discard(self)

    def idle(self) -> bool:
        """Never closed for another connection."""
        return False

    def close_for_another(self) -> None:
        """See `idle`."""
        raise AssertionError("a connection to a frontend is not idle")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._client.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._client.transport is not None:
            self._client.resume_reading()


@dataclass(eq=False, repr=False)
class _Input:
    """Forwards the client's bytes to the frontend: a parser for aiohttp's connection that parses nothing."""

    _transport: asyncio.WriteTransport

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """(whether this ends the connection, what is left of the data)."""
        if not self._transport.is_closing():
            self._transport.write(data)
        return False, b""

    def feed_eof(self) -> None:
        """The client has closed; its request is cancelled."""


class WebSockets:
    """The WebSockets of one gateway.

    Args:
        frontend: address at which a frontend of this machine serves AMQP; None without a frontend.
        secret: of the installation.
        admitted: connections of HTTP clients; those to a frontend count, too, since each has a descriptor.
        proxy_protocol_from: the setting of the frontend, which may list this machine.
    """

    def __init__(
        self,
        frontend: Endpoint | None,
        secret: bytes,
        admitted: Connections,
        proxy_protocol_from: Sequence[str] = (),
    ) -> None:
        self._frontend = frontend
        self._balancers = Balancers(proxy_protocol_from)
        self._secret = secret
        self._admitted = admitted
        self.open = 0
        """WebSockets that are forwarded now."""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Forwards a request, and then bytes until one side closes. Raises ProblemError."""
        if self._frontend is None:
            raise ProblemError(
                503, "no frontend runs beside this gateway; WebSockets are served at the ports of AMQP"
            )
        source = cast(_Client, request.protocol).source
        if not self._admitted.make_room(source):
            raise ProblemError(
                503,
                f"{len(self._admitted)} connections are open at this gateway, and none is idle",
                headers={"Retry-After": "1"},
            )
        self.open += 1
        try:
            return await self._pass_on(request, self._frontend)
        finally:
            self.open -= 1

    async def _pass_on(self, request: web.Request, frontend: Endpoint) -> web.StreamResponse:
        client = cast(_Client, request.protocol)
        reader = asyncio.StreamReader(limit=limits.WEBSOCKET_HEAD_BYTES)
        protocol = _Upstream(reader, client, self._admitted)
        upstream: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(limits.OPENING_TIME_MS / 1000):
                upstream, _ = await asyncio.get_running_loop().create_connection(
                    lambda: protocol, frontend.host, frontend.port
                )
                upstream.set_write_buffer_limits(HTTP_WEBSOCKET_BUFFER_BYTES)
                head = self._head(request)
                # The frontend gets the client's address from a field of the head, and not from this header.
                is_balancer = upstream.get_extra_info("sockname")[0] in self._balancers
                upstream.write(LOCAL + head if is_balancer else head)
                answer = await reader.readuntil(_END)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            # TimeoutError is an OSError.
            if upstream is not None:
                upstream.abort()
            log.warning("no frontend answers at %s: %s", frontend, error or type(error).__name__)
            raise ProblemError(503, "no frontend answers now", headers={"Retry-After": "1"}) from None
        except asyncio.CancelledError:
            if upstream is not None:
                upstream.abort()
            raise
        try:
            return await self._answered(request, client, upstream, reader, answer)
        finally:
            # Buffered bytes of the client are written first.
            upstream.close()

    async def _answered(
        self,
        request: web.Request,
        client: _Client,
        upstream: asyncio.Transport,
        reader: asyncio.StreamReader,
        answer: bytes,
    ) -> web.StreamResponse:
        """Answers as the frontend did; after a handshake that was accepted, returns when one side closes."""
        status, fields = _parsed(answer)
        if status != _SWITCHING:
            text = (await reader.read(_READ_BYTES)).decode(errors="replace").strip()
            served = fields.get(VERSION.lower())
            headers = None if served is None else {VERSION: served}
            raise ProblemError(status, text or "the frontend refuses the WebSocket", headers=headers)
        accepted = CIMultiDict(
            {name: fields[name.lower()] for name in _ANSWER_FIELDS if name.lower() in fields}
        )
        response = web.StreamResponse(status=status, headers=accepted)
        await response.prepare(request)
        response.force_close()
        client.set_parser(_Input(upstream))
        while data := await reader.read(_READ_BYTES):
            await response.write(data)
        return response

    def _head(self, request: web.Request) -> bytes:
        """The request for the frontend."""
        headers = request.headers
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        host, port = peer[:2] if peer else ("unknown", 0)
        forwarded = Forwarded(host, port, tls=request.secure)
        nonce = headers.get(NONCE, "").encode(errors="surrogateescape")
        signed = forwarded.sign(self._secret, nonce, time.time_ns() // 1_000_000)
        lines = [
            f"GET {request.rel_url.raw_path_qs} HTTP/1.1",
            f"Host: {headers.get('Host', '')}",
            f"{FIELD}: {signed}",
        ]
        lines += [f"{name}: {value}" for name in _REQUEST_FIELDS for value in headers.getall(name, ())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ProblemError(400, "expected header fields of one line each")
        return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape")


def is_request(request: web.Request) -> bool:
    """Whether a client asks for a WebSocket."""
    return request.method == "GET" and request.headers.get("Upgrade", "").lower() == "websocket"


def _parsed(answer: bytes) -> tuple[int, Mapping[str, str]]:
    """Status and header fields, with names in lower case, of a frontend's answer."""
    first, *lines = answer.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, _, value in fields}
