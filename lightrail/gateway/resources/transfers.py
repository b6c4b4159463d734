"""Transfers over HTTP: begin one, look how far it is, cancel it."""

from aiohttp import web

from lightrail.gateway.errors import AGAIN, Problem
from lightrail.gateway.forwarding.transfers import MEMBERS, Busy
from lightrail.gateway.paths import path_of
from lightrail.gateway.request import Asked


async def begin(asked: Asked) -> web.Response:
    """POST /!transfers: 202 and where to look."""
    value = await asked.json_object(*MEMBERS)
    try:
        transfer = asked.gateway.couriers.transfers.start(asked.caller, value)
    except Busy as error:
        raise Problem(503, str(error), headers=AGAIN) from None
    headers = {"Location": path_of("", "!transfers", transfer.id)}
    return web.json_response(transfer.shown(), status=202, headers=headers)


async def list_all(asked: Asked) -> web.Response:
    """GET /!transfers: the caller's own; who may do everything sees all."""
    found = asked.gateway.couriers.transfers.list(asked.caller)
    return web.json_response({"transfers": [each.shown() for each in found]})


async def read(asked: Asked) -> web.Response:
    """GET /!transfers/ID."""
    found = asked.gateway.couriers.transfers.find(asked.caller, asked.rest[0])
    return web.json_response(found.shown())


async def cancel(asked: Asked) -> web.Response:
    """DELETE /!transfers/ID: it ends when what is on its way has arrived; then it can still be read."""
    found = await asked.gateway.couriers.transfers.cancel(asked.caller, asked.rest[0])
    return web.json_response(found.shown())
