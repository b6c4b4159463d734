"""Status over HTTP: processes, shards and sums, the figures of queues, and the routers."""

from aiohttp import web

from lightrail.gateway.request import Asked
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Right
from lightrail.namespace.rights import may


async def read(asked: Asked) -> web.Response:
    """GET /!status."""
    return web.json_response(await asked.gateway.views.status(asked.caller))


async def queues(asked: Asked) -> web.Response:
    """GET /!queues?prefix=&after=&limit=."""
    query = asked.request.query
    most = asked.whole("limit", 100, 1, limits.PAGE_MAX)
    page = await asked.gateway.views.queues(
        asked.caller, query.get("prefix", ""), query.get("after", ""), most
    )
    return web.json_response(page)


async def figures(asked: Asked) -> web.Response:
    """GET /name/!figures: how much is in a queue, and who consumes."""
    return web.json_response(await asked.gateway.views.queue(asked.caller, asked.name))


async def routers(asked: Asked) -> web.Response:
    """GET /!routers?prefix=: routers and their subscriptions."""
    directory = asked.directory
    rows = [
        {
            "name": record.name,
            "distribution": record.policy["distribution"],
            "subscriptions": [each.shown() for each in directory.subscriptions(record.name)],
        }
        for record in asked.gateway.service.names(asked.caller, asked.request.query.get("prefix", ""))
        if record.role is Role.ROUTER and may(directory, asked.caller, Right.MANAGE, record)
    ]
    return web.json_response({"routers": rows})
