"""HTTP server: how every process accepts connections of HTTP clients.

http_connection.py bounds the number of connections, and the time of each without a request.
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

from lightrail.model import limits, protocols
from lightrail.model.endpoint import Endpoint
from lightrail.telemetry.http_connection import Connections, HttpConnection, source_of
from lightrail.telemetry.strangers import Strangers

HTTP_BACKLOG: Final[int] = 4_096
"""Connections that wait to be accepted."""
HTTP_FILES_RESERVED: Final[int] = 1_024
"""Descriptors of a process reserved for everything but HTTP connections."""
HTTP_IDLE_MS: Final[int] = 75_000
"""How long a connection may stay open without another request, as in nginx."""
SHUTDOWN_S: Final = 1.0
"""Time that requests have to end when the process ends; requests that wait for a message are answered
before."""
ACCEPTS_AT_ONCE: Final = 64
"""Connections that are accepted before connected clients get their turn."""
ACCEPTED_PART: Final = 16
"""With a small bound, 1/ACCEPTED_PART of one source's connections are accepted at once, so that a request
that has arrived is read before its connection counts as idle."""
ACCEPT_PAUSE_S: Final = 0.1
"""Pause before the next attempt when the system has no descriptor or memory for a connection."""
LOG_PAUSE_S: Final = 60.0
"""Pause between two lines of the log about refused connections."""
TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
    b"Too many connections: all that are admitted have a request in progress.\n"
)

log = logging.getLogger(__name__)


class HttpSite(web.BaseSite):
    """A listening socket of a runner; `Connections` decides which clients it accepts."""

    __slots__ = ("_connections", "_logged_s", "_loop", "_options", "_pause", "_socket", "_strangers")

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
        self._logged_s = -LOG_PAUSE_S
        self._strangers = Strangers(
            log,
            f"{self.name} serves {'HTTPS' if tls else 'HTTP'}",
            {protocols.PROXY: f"{self.name} does not read its header: let the balancer send none here"},
        )

    @property
    def name(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{'https' if self._ssl_context else 'http'}://{Endpoint(host, port)}"

    @property
    def port(self) -> int:
        """The port that the site listens on."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        await super().start()
        self._socket.listen(HTTP_BACKLOG)
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
        if now_s - self._logged_s >= LOG_PAUSE_S:
            self._logged_s = now_s
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
            "keepalive_timeout": HTTP_IDLE_MS / 1000,
            "max_line_size": limits.HTTP_HEADER_BYTES,
            "max_field_size": limits.HTTP_HEADER_BYTES,
            "max_headers": limits.HTTP_HEADERS_MAX,
        }
        # A request is cancelled when its client disconnects: a message that it has received is released.
        super().__init__(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S, **self._options)
        self.connections = connections

    async def listen(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None, *, shared: bool) -> int:
        """Serve at a further endpoint; returns its port. `shared`: other processes may listen there, too.

        Raises:
            OSError: another program listens there, or the address is not one of this machine.
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
    endpoints: Iterable[tuple[Endpoint | None, ssl.SSLContext | None]],
    *,
    shared: bool,
) -> tuple[HttpRunner, list[int]]:
    """Serve an application at (endpoint, TLS) pairs; an endpoint None is skipped. Returns (runner, bound
    ports)."""
    runner = HttpRunner(app, connections)
    await runner.setup()
    try:
        ports = [
            await runner.listen(endpoint, tls, shared=shared)
            for endpoint, tls in endpoints
            if endpoint is not None
        ]
    except BaseException:
        await runner.cleanup()
        raise
    return runner, ports


def admitted(most: int, part: int) -> int:
    """Number of connections that a listener admits: at most `most`, and no more than the descriptors allow.

    HTTP_FILES_RESERVED descriptors are left for other uses of the process. With few descriptors, 1/`part` of
    them are for this listener.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, max(soft - HTTP_FILES_RESERVED, soft // part)))
