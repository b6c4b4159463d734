"""The sockets that clients connect to: plain and TLS, shared by all frontends of the machine.

A load balancer may name its client by a header of the PROXY protocol, which is before TLS and everything else
(model/protocols.py). Only the sources of proxy_protocol_from send it, and all of their connections begin
with it: if they might leave it out, their clients could write it themselves.
"""

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING, Final

from lightrail.amqp.frames import TLS_HEADER
from lightrail.model import limits, protocols
from lightrail.model.endpoint import Endpoint, is_loopback
from lightrail.model.protocols import Address, Balancers, ProxyHeader, ProxyHeaderError, begins, parse
from lightrail.telemetry import strangers
from lightrail.telemetry.strangers import Strangers

if TYPE_CHECKING:
    from lightrail.frontend.engine import Frontend

log = logging.getLogger("lightrail.frontend.listener")

HANDSHAKE_S: Final = limits.OPENING_TIME_MS / 1000
"""Time for a header of the PROXY protocol, for the first byte of a TLS client, and for its handshake."""
ACCEPTS_AT_ONCE: Final = 64
"""Clients that are accepted before other sockets are read."""
ACCEPT_PAUSE_S: Final = 0.1
"""Pause before the next attempt if the system has no descriptor or memory for a connection."""

HEADLESS: Final = (
    "connections from there have to begin with the header of the PROXY protocol, as proxy_protocol_from "
    "lists their source: let the balancer send the header (HAProxy: send-proxy-v2), or remove the source "
    "from that setting"
)

BACKLOG = 4_096
"""Connections that wait to be accepted; the system's own limit (net.core.somaxconn) is often 4096, too."""


def bound(endpoint: Endpoint) -> socket.socket:
    """A listening socket that shares its port with the other frontends (SO_REUSEPORT).

    Raises:
        OSError: the port is taken by another program, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit it: for clients without an idle time-out (transport 2.4.5).
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.bind((endpoint.host, endpoint.port))
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"can't listen at {endpoint}: {error.strerror}") from None
    return made


async def listen(frontend: "Frontend", endpoint: Endpoint, tls: ssl.SSLContext | None) -> "Listener":
    """Accepts clients on an endpoint."""
    listening = bound(endpoint)
    balancers = Balancers(frontend.settings.proxy_protocol_from)
    if tls is not None or balancers:
        return OpeningListener(frontend, listening, tls, balancers)
    loop = asyncio.get_running_loop()
    return await loop.create_server(frontend.protocol, sock=listening, backlog=BACKLOG)


class OpeningListener:
    """Accepts clients that begin with TLS, or with a balancer's header; others get no ClientConnection.

    Args:
        tls: None where AMQP is served in the clear.
        balancers: sources whose connections begin with a header.
    """

    def __init__(
        self,
        frontend: "Frontend",
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        balancers: Balancers,
    ) -> None:
        self.sockets = [listening]
        self._frontend = frontend
        self._tls = tls
        self._balancers = balancers
        self._headless = Strangers(log, HEADLESS)
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.listen(BACKLOG)
        self._accept_again()

    def close(self) -> None:
        """Stops accepting, and ends handshakes."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self.sockets[0])
        self.sockets[0].close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _accept_again(self) -> None:
        self._pause = None
        self._loop.add_reader(self.sockets[0], self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client closed while it waited
            except OSError as error:
                # No descriptor (EMFILE, ENFILE) or memory (ENOBUFS, ENOMEM): tries again.
                self._frontend.open_files.lacking(error)
                self._loop.remove_reader(self.sockets[0])
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            if len(self._handshakes) >= limits.HALF_OPEN_MAX:
                self._frontend.counts.connections_refused += 1
                client.close()
                continue
            client.setblocking(False)
            handshake = self._loop.create_task(self._open(client, address[:2]))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _open(self, client: socket.socket, address: Address) -> None:
        """Makes a connection of an accepted socket, or closes it."""
        peer = f"{address[0]}:{address[1]}"
        served = False
        try:
            source = await self._source(client, address) if address[0] in self._balancers else None
            served = await self._serve(client, source, peer if source is None else f"{source[0]}:{source[1]}")
        except ProxyHeaderError as error:
            self._headless.spoke(str(error), peer, self._frontend.now_ms())
        except (OSError, asyncio.CancelledError) as error:
            log.debug("%s did not open a connection: %s", peer, error or type(error).__name__)
        if not served:
            client.close()

    async def _source(self, client: socket.socket, balancer: Address) -> Address | None:
        """The client's address by the header; None: that of the balancer."""
        async with asyncio.timeout(HANDSHAKE_S):
            source = await _read_header(self._loop, client)
        if source is not None and is_loopback(source[0]) and not is_loopback(balancer[0]):
            return None  # a client on the balancer's machine has no rights of one on this machine
        return source

    async def _serve(self, client: socket.socket, source: Address | None, peer: str) -> bool:
        """Whether the client speaks the protocol of this port."""
        frontend = self._frontend

        def protocol() -> asyncio.BaseProtocol:
            return frontend.protocol(source)

        if self._tls is None:
            await self._loop.connect_accepted_socket(protocol, client)
            return True
        found = await strangers.shake(
            client, self._tls, protocol, HANDSHAKE_S, frontend.strangers, peer, frontend.now_ms()
        )
        if found.startswith(b"AMQP"):
            client.send(TLS_HEADER)  # the protocol that is expected here (transport 2.2, security 5.2)
        return not found


Listener = asyncio.Server | OpeningListener
"""A listening socket whose connections are accepted, until `close`."""


async def _read_header(loop: asyncio.AbstractEventLoop, client: socket.socket) -> Address | None:
    """Reads the header of a balancer and no byte behind it; see ProxyHeader.source.

    Raises:
        ProxyHeaderError: the first bytes are no header.
        ConnectionError: the balancer closed; some check by this that a port is served.
    """
    header = b""
    readable = asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            try:
                piece = client.recv(limits.PROXY_HEADER_BYTES - len(header), socket.MSG_PEEK)
            except BlockingIOError:
                continue
            if not piece:
                raise ConnectionError("the balancer closed")
            found = _parsed(header + piece)
            # Bytes of a header without its end are all its own.
            client.recv(len(piece) if found is None else found.size - len(header))
            if found is not None:
                return found.source
            header += piece
    finally:
        loop.remove_reader(client)


def _parsed(header: bytes) -> ProxyHeader | None:
    """As `proxy_header.parse`, with a message that follows "speaks" in a log line."""
    if not begins(header):
        raise ProxyHeaderError(
            f"{protocols.described(header[: protocols.BYTES])}, without a balancer's header"
        )
    try:
        return parse(header)
    except ProxyHeaderError as error:
        raise ProxyHeaderError(f"{protocols.PROXY} with a malformed header ({error})") from None
