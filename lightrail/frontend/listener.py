"""The sockets that clients connect to: plain and TLS, shared by all frontends of the machine."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final, Protocol

from lightrail.amqp.frames import TLS_HEADER
from lightrail.frontend.engine import Frontend
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.telemetry import handshakes

log = logging.getLogger("lightrail.frontend.listener")

HANDSHAKE_S: Final = limits.OPENING_TIME_MS / 1000
"""Time for the first byte of a TLS client, and for its handshake."""
ACCEPTS_AT_ONCE: Final = 64
"""TLS clients that are accepted before other sockets are read."""
ACCEPT_PAUSE_S: Final = 0.1
"""Pause before the next attempt if the system has no descriptor or memory for a connection."""

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


async def listen(frontend: Frontend, endpoint: Endpoint, tls: ssl.SSLContext | None) -> "Listener":
    """Accepts clients on an endpoint."""
    listening = bound(endpoint)
    if tls is not None:
        return TlsListener(frontend, listening, tls)
    loop = asyncio.get_running_loop()
    return await loop.create_server(frontend.protocol, sock=listening, backlog=BACKLOG)


class Listener(Protocol):
    """A listening socket whose connections are accepted."""

    @property
    def sockets(self) -> Sequence[Any]:
        """The listening socket."""

    def close(self) -> None:
        """Stops accepting."""


class TlsListener:
    """Accepts clients of TLS, and logs others, which get no ClientConnection."""

    def __init__(self, frontend: Frontend, listening: socket.socket, tls: ssl.SSLContext) -> None:
        self.sockets = [listening]
        self._frontend = frontend
        self._tls = tls
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
            handshake = self._loop.create_task(self._shake(client, f"{address[0]}:{address[1]}"))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake(self, client: socket.socket, peer: str) -> None:
        made: list[asyncio.BaseProtocol] = []

        def protocol() -> asyncio.BaseProtocol:
            made.append(self._frontend.protocol())
            return made[0]

        frontend = self._frontend
        try:
            found = await handshakes.shake(
                client, self._tls, protocol, HANDSHAKE_S, frontend.strangers, peer, frontend.now_ms()
            )
            if found.startswith(b"AMQP"):
                client.send(TLS_HEADER)  # the protocol that is expected here (transport 2.2, security 5.2)
            served = not found
        except (OSError, asyncio.CancelledError) as error:
            served = False
            log.debug("%s did not complete the TLS handshake: %s", peer, error or type(error).__name__)
        if not served:
            client.close()
