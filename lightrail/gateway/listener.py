"""The sockets that HTTP clients connect to, shared by all gateways of the machine."""

import ssl

from aiohttp import web

from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.telemetry import http_server
from lightrail.telemetry.http_connections import Connections


def connections() -> Connections:
    """The connections of HTTP clients of this process."""
    return Connections(http_server.admitted(limits.HTTP_CONNECTIONS_MAX, limits.HTTP_FILES_PART))


async def listen(
    app: web.Application, admitted: Connections, *endpoints: tuple[Endpoint | None, ssl.SSLContext | None]
) -> tuple[web.AppRunner, list[int]]:
    """Serves an application at (endpoint, TLS) pairs, except where the endpoint is None. End it with
    `runner.cleanup()`.

    Returns (runner, bound ports).
    """
    return await http_server.serve(app, admitted, endpoints, shared=True)
