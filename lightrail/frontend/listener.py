"""The sockets that clients connect to: plain and TLS, shared by all frontends of the machine."""

import asyncio
import socket
import ssl

from lightrail.frontend.engine import Frontend
from lightrail.model.settings import Endpoint

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
        made.bind((endpoint.host, endpoint.port))
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


async def listen(frontend: Frontend, endpoint: Endpoint, tls: ssl.SSLContext | None) -> asyncio.Server:
    """Accepts clients on an endpoint."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        frontend.protocol,
        sock=bound(endpoint),
        backlog=BACKLOG,
        ssl=tls,
        ssl_handshake_timeout=10 if tls is not None else None,
    )
