"""Description over HTTP: the OpenAPI document of this gateway."""

from aiohttp import web

from lightrail.gateway.media_types import JSON
from lightrail.gateway.openapi import document
from lightrail.gateway.request import Request


async def read(_: Request) -> web.Response:
    """GET /!openapi.json."""
    return web.Response(text=document.text(), content_type=JSON)
