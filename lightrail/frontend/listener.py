"""The sockets that clients connect to: plain and TLS, shared by all frontends of the machine."""

import asyncio
import socket
import ssl

from lightrail.frontend.engine import Frontend
from lightrail.model.settings import Endpoint, Settings, SettingsError

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


def tls_context(settings: Settings) -> ssl.SSLContext:
    """TLS 1.2 and up with the certificate of the settings; client certificates are optional, and verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate or "", settings.tls_key)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            f"TLS can't be set up with certificate {settings.tls_certificate}, key {settings.tls_key} and "
            f"client CA {settings.tls_client_ca}: {error}; expected PEM files that belong together"
        ) from error
    return context


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
