"""The socket that HTTP clients connect to, shared by all gateways of the machine."""

import ssl
from typing import Final

from aiohttp import web

from lightrail.model import limits
from lightrail.model.settings import Endpoint

KEEP_ALIVE_S: Final = 75.0
"""How long a connection may stay without a request, as nginx has it."""
SHUTDOWN_S: Final = 1.0
"""What requests have to end when the gateway does; those that wait for a message were answered before."""


async def listen(
    app: web.Application, *places: tuple[Endpoint | None, ssl.SSLContext | None]
) -> tuple[web.AppRunner, list[int]]:
    """Serve an application at (endpoint, TLS) pairs; None is nowhere. End it: `runner.cleanup()`.

    Returns (runner, bound ports).

    A request is cancelled when its client goes: what it waited for, or had been given, goes back.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_S,
        keepalive_timeout=KEEP_ALIVE_S,
        max_line_size=limits.HTTP_HEADER_BYTES,
        max_field_size=limits.HTTP_HEADER_BYTES,
    )
    await runner.setup()
    try:
        for place, tls in places:
            if place is not None:
                site = web.TCPSite(
                    runner, *place, reuse_port=True, backlog=limits.HTTP_BACKLOG, ssl_context=tls
                )
                await site.start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner, [int(address[1]) for address in runner.addresses]
