"""The gateway's HTTP application: which handler serves which request, and how errors are answered.

A path is a name and a part of it (paths.py), so one table by part and method replaces path patterns.
Health checks and metrics come first and are open to every caller.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.map import Map
from lightrail.cluster.placement_metrics import PLACEMENT_FAMILIES
from lightrail.gateway.bodies import ATOM, JSON
from lightrail.gateway.callers import Callers
from lightrail.gateway.errors import ProblemError, problem_of
from lightrail.gateway.forwarded import end_unless_taken, forwarded
from lightrail.gateway.forwarding.counts import FAMILIES as FORWARDING_FAMILIES
from lightrail.gateway.forwarding.forwarding import Forwarding
from lightrail.gateway.hooks import GatewayHooks
from lightrail.gateway.journals.segments import Archived, Journals
from lightrail.gateway.messages.batches import BatchSender
from lightrail.gateway.messages.receiving import Receivers
from lightrail.gateway.messages.sending import NameSender
from lightrail.gateway.metrics import FAMILIES as HTTP_FAMILIES
from lightrail.gateway.openapi.document import routes
from lightrail.gateway.pages.actions import CALLER
from lightrail.gateway.pages.pages import Pages
from lightrail.gateway.paths import BELOW, parse_path
from lightrail.gateway.processes.connections import Connections
from lightrail.gateway.processes.health import DETAILED, Health
from lightrail.gateway.processes.members import PRESENCE_FAMILIES, Members, Presence
from lightrail.gateway.request import Request
from lightrail.gateway.rights import demand_all
from lightrail.gateway.services import Counts, Services
from lightrail.gateway.views import BrokerViews
from lightrail.gateway.websockets import WebSockets, is_request
from lightrail.model import limits
from lightrail.model.endpoint import Destinations
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.rights import Caller
from lightrail.namespace.service import Service
from lightrail.namespace.topic_uses import TopicUses
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry.http_connection import Connections as HttpConnections

log = logging.getLogger("lightrail.gateway")

Served = Callable[[web.Request], Awaitable[web.StreamResponse]]

NAMED: Final = routes(named=True)
ROOT: Final = routes(named=False)
OPEN: Final = frozenset({"!openapi.json"})
"""Parts of the root that are open to every caller."""
STRANGER: Final = Caller("anonymous")
"""The caller of a request that was not authenticated yet."""


def open_services(
    *,
    settings: Settings,
    coordinator: Coordinator,
    shards: ShardConnections,
    members: Members,
    health: Health,
    sockets: str | None = None,
    callers: Callers | None = None,
    directory: Directory | None = None,
    map: Map | None = None,
    websockets: WebSockets | None = None,
    hooks: GatewayHooks | None = None,
) -> Services:
    """The services of one gateway, and their metrics in `health`.

    Args:
        shards: links to the shards; empty until they are added.
        members: the other processes, as the supervisor lists them.
        sockets: the directory of control sockets, for frontends that do not publish its address.
        map: of queues and members; the same as that of the shards.
        websockets: forwards WebSockets to a frontend of this machine; None without such a frontend.
        hooks: what else plugs into the gateway; None for its own interface alone.
    """
    hooks = hooks or GatewayHooks()
    loop = asyncio.get_running_loop()
    map = map or Map(coordinator)
    directory = directory or Directory(coordinator, auto_create=settings.auto_create)
    destinations = Destinations(settings.push_allow)
    namespace = Service(coordinator, directory, destinations=destinations)
    sender = NameSender(shards, directory, loop, TopicUses(coordinator, directory))
    presence = health.presence = Presence(map, shards.peers)
    services = Services(
        settings=settings,
        coordinator=coordinator,
        map=map,
        directory=directory,
        namespace=namespace,
        shards=shards,
        sender=sender,
        batches=BatchSender(shards, directory, sender, loop),
        receivers=Receivers(shards, loop),
        journals=Journals(shards, map, Archived(settings.archive_directory)),
        forwarding=Forwarding(namespace, shards, sender, destinations),
        health=health,
        presence=presence,
        connections=Connections(members, sockets, shards.wiring),
        websockets=websockets or WebSockets(None, b"", HttpConnections(1)),
        callers=callers
        or Callers(
            coordinator,
            settings,
            schemes={name: partial(verify, directory) for name, verify in hooks.schemes.items()},
            opens=partial(hooks.opens, directory),
            keys=hooks.keys,
            shown_key=hooks.shown_keys(directory),
        ),
        counts=Counts(),
        hooks=hooks,
    )
    health.show(HTTP_FAMILIES, services)
    health.show(PLACEMENT_FAMILIES, map)
    health.show(PRESENCE_FAMILIES, presence)
    health.show(FORWARDING_FAMILIES, services.forwarding.counts)
    return services


class Gateway:
    """Serves the requests of one gateway."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._pages = Pages(services.namespace, BrokerViews(services), time.time)
        services.directory.listen(self._changed)

    def _changed(self, changes: Changes) -> None:
        services = self.services
        for name in changes.names:
            services.shards.forget(name)
        services.forwarding.changed(changes)
        services.receivers.changed(services.directory.get(name) for name in changes.names)

    def application(self) -> web.Application:
        """The aiohttp application over this gateway."""
        app = application(self.services.health)
        app.middlewares.append(self._authenticated)
        self._pages.add_routes(app)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_startup.append(self._open)
        app.on_response_prepare.append(self._count)
        app.on_response_prepare.append(end_unless_taken)
        app.on_cleanup.append(self._close)
        return app

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: Served) -> web.StreamResponse:
        """Finds the caller of pages, which have separate routes; static files are open to every caller.

        Metrics that name queues are for callers who may manage all names, as /!status is.
        """
        path = request.path
        services = self.services
        forwarded(services, request, is_page=request.match_info.handler != self._handle)
        if path == DETAILED:
            demand_all(services.directory, await services.callers.caller(request))
        if path.startswith("/!ui") and not path.startswith("/!ui/static/"):
            try:
                request[CALLER] = await services.callers.caller(request)
            except ProblemError as problem:
                return self._pages.refused(request, problem)
        return await handler(request)

    async def _open(self, _: web.Application) -> None:
        self.services.forwarding.start()

    async def _count(self, request: web.Request, response: web.StreamResponse) -> None:
        self.services.counts.answered(request.method, response.status)

    async def _close(self, _: web.Application) -> None:
        services = self.services
        await services.forwarding.close()
        services.receivers.close()
        services.sender.close()
        services.shards.close()
        services.connections.close()

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        if is_request(http):
            return await self.services.websockets.serve(http)
        if (other := self.services.hooks.handler(self.services, http)) is not None:
            return await other(self.services, http)
        found = parse_path(http.rel_url.raw_path)
        table = NAMED if found.name else ROOT
        methods = table.get((found.part, len(found.rest)))
        if methods is None:
            path = http.rel_url.raw_path[:200]
            raise ProblemError(404, f"nothing is served at {path!a}; see /!openapi.json for what is")
        handler = methods.get(http.method) or (methods.get("GET") if http.method == "HEAD" else None)
        if handler is None:
            allowed = ", ".join(methods)
            raise ProblemError(
                405, f"{http.method} can't be done here; expected {allowed}", headers={"Allow": allowed}
            )
        request = Request(self.services, http, STRANGER, found.name, found.rest)
        if not found.name:
            if found.part in OPEN:
                return await handler(request)
            if found.part == BELOW and not request.wants(JSON) and not request.wants(ATOM):
                return await self.services.health.page(http)
        request.caller = (await self.services.callers.caller(http)).at(found.name)
        return await handler(request)


def application(health: Health) -> web.Application:
    """An application that answers errors as problems, and serves health checks and metrics."""
    app = web.Application(middlewares=[problems], client_max_size=limits.HTTP_DEFINITIONS_BYTES)
    app.add_routes(health.routes())
    app.on_cleanup.append(health.close)
    return app


@web.middleware
async def problems(request: web.Request, handler: Served) -> web.StreamResponse:
    """Answers every error, so that no client receives a traceback."""
    try:
        return await handler(request)
    except (ConnectionResetError, asyncio.CancelledError):
        # The client closed the connection: an answer can't be sent.
        raise
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            log.exception("%s %s failed", request.method, request.path)
            problem = ProblemError(500, "internal error; see the log of the gateway")
        return problem.response()
