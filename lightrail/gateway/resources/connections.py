"""Connections over HTTP: the AMQP connections of all frontends, listed, shown and closed."""

from typing import Final

from aiohttp import web

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes.connections import COUNT_DEFAULT
from lightrail.gateway.request import Request
from lightrail.model import limits

TEXT_MAX: Final = 256
"""Characters of the reason that the client of a closed connection gets."""


async def list_all(request: Request) -> web.Response:
    """GET /!connections?user=&container=&limit=&after=, for callers that may manage all names."""
    request.manager()
    query = request.http.query
    try:
        page = await request.services.connections.page(
            after=query.get("after", ""),
            count=request.whole("limit", COUNT_DEFAULT, 1, limits.PAGE_MAX),
            user=query.get("user"),
            container=query.get("container"),
        )
    except ValueError as error:
        raise ProblemError(400, f"after: {error}", field="after") from None
    return web.json_response(page)


async def show(request: Request) -> web.Response:
    """GET /!connections/ID: one connection with its sessions and links."""
    request.manager()
    return web.json_response(await request.services.connections.find(request.rest[0]))


async def close(request: Request) -> web.Response:
    """DELETE /!connections/ID?text=: 204; the close that the client receives has this text."""
    request.manager()
    text = request.http.query.get("text", "")
    if len(text) > TEXT_MAX:
        raise ProblemError(400, f"text has {len(text)} characters; expected at most {TEXT_MAX}", field="text")
    await request.services.connections.end(request.rest[0], text)
    return web.Response(status=204)
