"""HTTP server: how every process accepts connections of HTTP clients, and how long it waits for them.

aiohttp reads requests and writes answers. What is bounded here is what a client can do without a request:
how many connections it may have (http_connections.py), how long the TLS handshake and the head of a request
may take, and how long an answer may wait for a client that does not read.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from lightrail.model import limits, protocols
from lightrail.model.endpoint import Endpoint
from lightrail.telemetry import handshakes, http_unreadable
from lightrail.telemetry.http_connections import Connections, source_of
from lightrail.telemetry.strangers import Strangers

SHUTDOWN_S: Final = 1.0
"""What requests have to end when the process does; those that wait for a message were answered before."""
ACCEPTS_AT_ONCE: Final = 64
"""Connections that are accepted before clients that are connected get their turn."""
ACCEPTED_PART: Final = 16
"""Where few are admitted, 1 / this of those of one source is accepted at once: a request that has arrived is
read before its connection counts as idle."""
ACCEPT_PAUSE_S: Final = 0.1
"""Before the next attempt where the system has no descriptor or memory for a connection."""
TOLD_PAUSE_S: Final = 60.0
"""Between two lines of the log about connections that were not admitted."""
TOO_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    b"The head of the request was not complete in time.\n"
)
TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
    b"Too many connections: all that are admitted have a request under way.\n"
)

log = logging.getLogger(__name__)


class HttpConnection(RequestHandler):
    """One client, from accept to its end."""

    __slots__ = (
        "_connections",
        "_handshake",
        "_head_timer",
        "_left",
        "_sent_some",
        "_strangers",
        "_write_timer",
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
        """Who it counts for."""
        self._connections = connections
        self._strangers = strangers
        self._handshake: asyncio.Task[None] | None = None
        """Makes the transport, as long as there is none."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._sent_some = False
        """Whether a part of a head has come."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._left = 0
        """Bytes of answers that waited for the client when the write timer was set."""

    def begin(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serves an accepted socket."""
        self._connections.add(self)
        self._handshake = self._loop.create_task(self._open(client, tls))

    def idle(self) -> bool:
        """Whether no request is under way, nor any bytes of an answer."""
        if self.transport is None:
            return True
        return self._awaits_head() and not self.transport.get_write_buffer_size()

    def close_for_another(self) -> None:
        """Closes it at once."""
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
                seconds = limits.HTTP_HEAD_MS / 1000
                await handshakes.shake(
                    client, tls, lambda: self, seconds, self._strangers, self.source, self._now_ms()
                )
        except OSError as error:  # ssl.SSLError and TimeoutError among them
            log.debug("a client of HTTP from %s could not be served: %s", self.source, error)
        finally:
            self._handshake = None
            if self.transport is None:
                self._connections.discard(self)
                client.close()

    # --- what aiohttp's connection hears ---------------------------------------------------------------

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
        """The process ends; the request under way has so many seconds.

        aiohttp 3.14 cancels the future that the end of that request sets. Where both come in one turn of the
        loop, the request fails after its answer was sent. This waits before, without cancelling.
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
        """The answer to a request that failed. Anybody can send one that can't be read: of these the log has
        one line a minute, not a traceback each.
        """
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        found = http_unreadable.described(exc)
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
        self._head_timer = self._loop.call_later(limits.HTTP_HEAD_MS / 1000, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._connections.closed["head"] += 1
        if self._sent_some and self.transport is not None:
            self.transport.write(TOO_LATE)
        self.force_close()

    def _await_reading(self) -> None:
        if self.transport is not None:
            self._left = self.transport.get_write_buffer_size()
            self._write_timer = self._loop.call_later(limits.HTTP_WRITE_MS / 1000, self._look_for_reading)

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


class HttpSite(web.BaseSite):
    """A listening socket of a runner, which accepts what its connections admit."""

    __slots__ = ("_connections", "_loop", "_options", "_pause", "_socket", "_strangers", "_told_s")

    def __init__(
        self,
        runner: web.AppRunner,
        listening: socket.socket,
        connections: Connections,
        tls: ssl.SSLContext | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(runner, ssl_context=tls)
        self._socket = listening
        self._connections = connections
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._told_s = -TOLD_PAUSE_S
        self._strangers = Strangers(log, f"{self.name} serves {'HTTPS' if tls else 'HTTP'}")

    @property
    def name(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{'https' if self._ssl_context else 'http'}://{Endpoint(host, port)}"

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        await super().start()
        self._socket.listen(limits.HTTP_BACKLOG)
        self._listen()

    async def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        await super().stop()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        at_once = min(ACCEPTS_AT_ONCE, 1 + self._connections.most_of_a_source // ACCEPTED_PART)
        for _ in range(at_once):
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client closed while it waited
            except OSError as error:
                # No descriptor (EMFILE, ENFILE) or memory (ENOBUFS, ENOMEM): one of ours may help.
                self._connections.close_one()
                self._tell(f"a connection can't be accepted: {error.strerror}")
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._listen)
                return
            client.setblocking(False)
            source = source_of(address[0])
            if self._connections.make_room(source):
                self._connection(source).begin(client, self._ssl_context)
            else:
                self._refuse(client, source)

    def _connection(self, source: str) -> HttpConnection:
        server = self._runner.server
        assert server is not None, "sites stop before the server of their runner ends"
        return HttpConnection(
            server, self._connections, source, self._strangers, loop=self._loop, **self._options
        )

    def _refuse(self, client: socket.socket, source: str) -> None:
        if self._ssl_context is None:
            with contextlib.suppress(OSError):  # the client has closed
                client.send(TOO_MANY)
        client.close()
        self._tell(
            f"a connection from {source} was refused: {len(self._connections)} are open, "
            f"{self._connections.of_source(source)} of them from there, and none is idle; admitted are "
            f"{self._connections.most}, {self._connections.most_of_a_source} from one source"
        )

    def _tell(self, what: str) -> None:
        now_s = self._loop.time()
        if now_s - self._told_s >= TOLD_PAUSE_S:
            self._told_s = now_s
            log.warning("%s: %s", self.name, what)


class HttpRunner(web.AppRunner):
    """An application that is served; end it with ``cleanup()``.

    Args:
        connections: of all its sites.
    """

    __slots__ = ("_options", "connections")

    def __init__(self, app: web.Application, connections: Connections) -> None:
        self._options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": limits.HTTP_IDLE_MS / 1000,
            "max_line_size": limits.HTTP_HEADER_BYTES,
            "max_field_size": limits.HTTP_HEADER_BYTES,
            "max_headers": limits.HTTP_HEADERS_MAX,
        }
        # A request is cancelled when its client goes: what it waited for, or had been given, goes back.
        super().__init__(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S, **self._options)
        self.connections = connections

    async def listen(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None, *, shared: bool) -> int:
        """Serve at an endpoint, too; returns the port. `shared`: other processes may listen there, too.

        Raises:
            OSError: another program listens there, or the address is not of this machine.
        """
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        port, missing = endpoint.port, None
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            try:
                listening = bound(family, (address[0], port, *address[2:]), shared=shared)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                missing = error  # a name with two addresses, on a machine that has one of them, is enough
                continue
            site = HttpSite(self, listening, self.connections, tls, self._options)
            await site.start()
            port = site.port
        if missing is not None and not self.sites:
            raise missing
        return port


def bound(family: int, address: tuple[Any, ...], *, shared: bool) -> socket.socket:
    """A socket that can listen. Raises OSError."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


async def serve(
    app: web.Application,
    connections: Connections,
    places: Iterable[tuple[Endpoint | None, ssl.SSLContext | None]],
    *,
    shared: bool,
) -> tuple[HttpRunner, list[int]]:
    """Serve an application at (endpoint, TLS) pairs; None is nowhere. Returns (runner, bound ports)."""
    runner = HttpRunner(app, connections)
    await runner.setup()
    try:
        ports = [
            await runner.listen(endpoint, tls, shared=shared)
            for endpoint, tls in places
            if endpoint is not None
        ]
    except BaseException:
        await runner.cleanup()
        raise
    return runner, ports


def admitted(most: int, part: int) -> int:
    """How many connections a listener admits: `most`, and no more than fit in this process's descriptors.

    A reserve is left to everything else that the process opens; where there are few descriptors, `part` of
    them, such as 2 for a half, are for this listener.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, max(soft - limits.HTTP_FILES_RESERVED, soft // part)))
