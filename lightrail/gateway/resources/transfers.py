"""Transfers over HTTP: started, shown, cancelled."""

from aiohttp import web

from lightrail.gateway.errors import AGAIN, ProblemError
from lightrail.gateway.forwarding.transfers import MEMBERS, TooManyTransfersError
from lightrail.gateway.paths import path_of
from lightrail.gateway.request import Request


async def begin(request: Request) -> web.Response:
    """POST /!transfers: 202 and the transfer's location."""
    value = await request.json_object(*MEMBERS)
    try:
        transfer = request.services.forwarding.transfers.start(request.caller, value)
    except TooManyTransfersError as error:
        raise ProblemError(503, str(error), headers=AGAIN) from None
    headers = {"Location": path_of("", "!transfers", transfer.id)}
    return web.json_response(transfer.shown(), status=202, headers=headers)


async def list_all(request: Request) -> web.Response:
    """GET /!transfers: the caller's transfers; callers with all rights see all transfers."""
    found = request.services.forwarding.transfers.list(request.caller)
    return web.json_response({"transfers": [each.shown() for each in found]})


async def read(request: Request) -> web.Response:
    """GET /!transfers/ID."""
    found = request.services.forwarding.transfers.find(request.caller, request.rest[0])
    return web.json_response(found.shown())


async def cancel(request: Request) -> web.Response:
    """DELETE /!transfers/ID: the transfer ends when its messages in flight are stored; it remains listed."""
    found = await request.services.forwarding.transfers.cancel(request.caller, request.rest[0])
    return web.json_response(found.shown())
