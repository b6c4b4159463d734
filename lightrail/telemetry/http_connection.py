"""HTTP connections: the clients of a process's HTTP server, their number, and the time-outs of each.

aiohttp reads requests and writes answers. This module bounds what a client can do without a request: the time
of the TLS handshake, the time of the head of a request, and the time that an answer waits for a client that
does not read.
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from typing import Any, Final, NamedTuple, Protocol

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from lightrail.model import limits, protocols
from lightrail.telemetry.strangers import Strangers, shake

HTTP_HEAD_MS: Final[int] = 10_000
"""Time from accept to the complete head (line and headers) of the first request; the same for the TLS
handshake before it, and from the first byte of a later request to its complete head."""
HTTP_WRITE_MS: Final[int] = 60_000
"""Time without reading after which a client's connection is closed during an answer."""
TOO_LARGE: Final = 431
"""Request Header Fields Too Large (RFC 6585)."""
TOO_MANY: Final = "Too many headers received"
"""aiohttp's message of this error; nothing else distinguishes it from other errors."""
TOO_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    b"The head of the request was not complete in time.\n"
)

HTTP_SOURCE_PART: Final[int] = 2
"""1 / this of the connections of a listener may come from one source."""
HTTP_IDLE_LOOKS: Final[int] = 64
"""Connections that a full listener searches for one without a request, for a new client."""
IPV6_SOURCE_BITS: Final = 64
"""The IPv6 prefix that a provider assigns to one subscriber; all addresses in it are one source."""

log = logging.getLogger(__name__)


class Unreadable(NamedTuple):
    """A request that can't be read, for its client and for the log.

    Clients can send any number of them before they authenticate.
    """

    status: int
    text: str
    spoken: str
    """Kind of the request, one of few, for `Strangers`; empty if its first bytes were logged already."""


def described(error: HttpProcessingError) -> Unreadable:
    """The answer to a request that aiohttp's parser refused, and its kind for the log."""
    if isinstance(error, LineTooLong):
        most = f"expected a request line and headers of at most {limits.HTTP_HEADER_BYTES} bytes each"
        return Unreadable(TOO_LARGE, f"{most}, found a longer one", "HTTP with too long a line or header")
    if TOO_MANY in error.message:
        most = f"expected at most {limits.HTTP_HEADERS_MAX} headers"
        return Unreadable(TOO_LARGE, f"{most}, found more", "HTTP with too many headers")
    spoken = "" if isinstance(error, BadHttpMethod) else "HTTP that can't be read"
    return Unreadable(400, error.message, spoken)


class Connection(Protocol):
    """A connection that can be admitted."""

    source: str

    def idle(self) -> bool:
        """Whether no request is in progress and no bytes of an answer are buffered."""

    def close_for_another(self) -> None:
        """Closes the connection at once."""


class Connections:
    """The connections of one listener: how many it admits, in all and from one source, and which it closes
    for another.

    Clients can open connections before they authenticate, so the number is bounded below the descriptors of
    the process, and one source has at most a part of it. At the bound, the connection that has been idle for
    longest is closed for the new one, as nginx does: a client that sends requests is admitted among any
    number of idle clients.

    Args:
        most: largest number of connections.
    """

    __slots__ = ("_all", "_by_source", "closed", "most", "most_of_a_source", "refused")

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_a_source = max(1, most // HTTP_SOURCE_PART)
        self.refused = 0
        """Connections that were not admitted."""
        self.closed = {"idle": 0, "head": 0, "write": 0}
        """Connections that were closed: for a new one, because the head of a request was late, because the
        client did not read."""
        self._all: dict[Connection, None] = {}
        self._by_source: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def of_source(self, source: str) -> int:
        """Connections of one source."""
        return len(self._by_source.get(source, ()))

    def make_room(self, source: str) -> bool:
        """Whether one more connection from this source is admitted; closes an idle one if necessary."""
        same = self._by_source.get(source, {})
        if len(same) >= self.most_of_a_source and not self._close_idle(same):
            self.refused += 1
            return False
        if len(self._all) >= self.most and not self._close_idle(self._all):
            self.refused += 1
            return False
        return True

    def close_one(self) -> bool:
        """Closes the connection that has been idle for longest; whether there was one."""
        return self._close_idle(self._all)

    def add(self, connection: Connection) -> None:
        """Adds an admitted connection; `discard` it when it has ended."""
        self._all[connection] = None
        self._by_source.setdefault(connection.source, {})[connection] = None

    def discard(self, connection: Connection) -> None:
        """Removes a connection that has ended; a second call does nothing."""
        if connection not in self._all:
            return
        del self._all[connection]
        same = self._by_source[connection.source]
        del same[connection]
        if not same:
            del self._by_source[connection.source]

    def _close_idle(self, among: dict[Connection, None]) -> bool:
        """Checks the oldest connections; those with a request in progress are moved behind all others."""
        for _ in range(min(len(among), HTTP_IDLE_LOOKS)):
            oldest = next(iter(among))
            if oldest.idle():
                self.closed["idle"] += 1
                self.discard(oldest)
                oldest.close_for_another()
                return True
            among[oldest] = among.pop(oldest)
        return False


def source_of(address: str) -> str:
    """The source of a client's address: the address itself, of IPv6 its network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, IPV6_SOURCE_BITS), strict=False))
    return address


class HttpConnection(RequestHandler):
    """The connection of one client, from accept to close."""

    __slots__ = (
        "_connections",
        "_handshake",
        "_head_timer",
        "_left",
        "_sent_some",
        "_strangers",
        "_write_timer",
        "forwarded",
        "source",
    )

    def __init__(
        self,
        manager: web.Server,
        connections: Connections,
        source: str,
        strangers: Strangers,
        *,
        loop: asyncio.AbstractEventLoop,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self.source = source
        """The source that the connection is counted for."""
        self.forwarded: object = None
        """The client that another process forwards; None: the peer of the socket."""
        self._connections = connections
        self._strangers = strangers
        self._handshake: asyncio.Task[None] | None = None
        """The task that makes the transport; None afterwards."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._sent_some = False
        """Whether a part of a head has arrived."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._left = 0
        """Bytes of answers that waited for the client when the write timer was set."""

    def begin(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serves an accepted socket."""
        self._connections.add(self)
        self._handshake = self._loop.create_task(self._open(client, tls))

    def forward(self, client: object, host: str) -> bool:
        """The connection is that of a client at another host, and counts for it; whether there is room."""
        self._connections.discard(self)
        self.forwarded, self.source = client, source_of(host)
        admitted = self._connections.make_room(self.source)
        self._connections.add(self)
        return admitted

    def idle(self) -> bool:
        """Whether no request is in progress and no bytes of an answer are buffered."""
        if self.transport is None:
            return True
        return self._awaits_head() and not self.transport.get_write_buffer_size()

    def close_for_another(self) -> None:
        """Closes the connection at once."""
        self._end_timers()
        if self._handshake is not None:
            self._handshake.cancel()
        if self.transport is not None:
            self.transport.abort()

    async def _open(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(lambda: self, client)
            else:
                seconds = HTTP_HEAD_MS / 1000
                await shake(client, tls, lambda: self, seconds, self._strangers, self.source, self._now_ms())
        except OSError as error:  # ssl.SSLError and TimeoutError among them
            log.debug("a client of HTTP from %s could not be served: %s", self.source, error)
        finally:
            self._handshake = None
            if self.transport is None:
                self._connections.discard(self)
                client.close()

    # --- callbacks of aiohttp's connection --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        if not before and not self._sent_some and protocols.name_of(data) not in (None, "HTTP"):
            self._strangers.heard(data[: protocols.BYTES], self.source, self._now_ms())
        super().data_received(data)
        if self._request_count != before:
            self._end_head_timer()
        elif self._awaits_head():
            self._sent_some = True
            if self._head_timer is None:
                self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_timers()
        self._connections.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's own
        """The process ends; the request in progress has `timeout` seconds to end.

        aiohttp 3.14 cancels the future that the end of that request sets. If both happen in one turn of the
        loop, the request fails after its answer was sent. This method waits first, without cancelling.
        """
        if self._request_in_progress:
            self._force_close = True
            ended = self._handler_waiter = self._loop.create_future()
            await asyncio.wait([ended], timeout=timeout)
            self._handler_waiter = None
            self._request_in_progress = False
        await super().shutdown(timeout)

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1000)

    # --- requests that can't be read -------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that failed. Every client can send malformed requests, so they are logged
        with one line a minute and without tracebacks.
        """
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        found = described(exc)
        if found.spoken:
            self._strangers.spoke(found.spoken, self.source, self._now_ms())
        if request.writer is not None and request.writer.output_size > 0:
            raise ConnectionError("a part of an answer was sent; no other one can follow")
        response = web.Response(status=found.status, text=f"{found.text}\n")
        response.force_close()
        return response

    # --- times -----------------------------------------------------------------------------------------

    def _awaits_head(self) -> bool:
        return self._request_count == 0 or (self._waiter is not None and not self._messages)

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(HTTP_HEAD_MS / 1000, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._connections.closed["head"] += 1
        if self._sent_some and self.transport is not None:
            self.transport.write(TOO_LATE)
        self.force_close()

    def _await_reading(self) -> None:
        if self.transport is not None:
            self._left = self.transport.get_write_buffer_size()
            self._write_timer = self._loop.call_later(HTTP_WRITE_MS / 1000, self._look_for_reading)

    def _look_for_reading(self) -> None:
        self._write_timer = None
        if self.transport is None:
            return
        if self.transport.get_write_buffer_size() < self._left:
            self._await_reading()
            return
        self._connections.closed["write"] += 1
        self.transport.abort()

    def _end_head_timer(self) -> None:
        self._sent_some = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_timers(self) -> None:
        self._end_head_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
