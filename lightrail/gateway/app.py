"""The gateway's HTTP application: which request goes to which handler, and how errors are told.

A path is a name and a part of it (place.py), so there is one table of parts and methods instead of patterns.
Health checks and metrics come first and are open to everybody.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.map import Map
from lightrail.cluster.map_counts import PLACEMENT_FAMILIES
from lightrail.gateway import (
    batches,
    connections,
    coordination,
    definitions,
    journals,
    messages,
    moves,
    names,
    permissions,
    readers,
    shard_sets,
    status,
    subscriptions,
    tokens,
)
from lightrail.gateway.archived import Archived
from lightrail.gateway.asked import ATOM, JSON, Asked
from lightrail.gateway.callers import Callers
from lightrail.gateway.counts import FAMILIES as HTTP_FAMILIES
from lightrail.gateway.counts import Counts
from lightrail.gateway.couriers import requests as transfers
from lightrail.gateway.couriers.counts import FAMILIES as COURIER_FAMILIES
from lightrail.gateway.couriers.couriers import Couriers
from lightrail.gateway.errors import Problem, problem_of
from lightrail.gateway.health import DETAILED, Health
from lightrail.gateway.members import Members
from lightrail.gateway.openapi import document
from lightrail.gateway.pages.pages import CALLER, Pages
from lightrail.gateway.place import BELOW, NAME, place
from lightrail.gateway.presence import PRESENCE_FAMILIES, Presence
from lightrail.gateway.receiving import Receivers
from lightrail.gateway.sending import Sender
from lightrail.gateway.shards import Shards
from lightrail.gateway.views import BrokerViews
from lightrail.model import limits
from lightrail.model.destinations import Destinations
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.rights import Caller
from lightrail.namespace.service import Service
from lightrail.wire.keys import WireKey

log = logging.getLogger("lightrail.gateway")

Handler = Callable[[Asked], Awaitable[web.StreamResponse]]
Served = Callable[[web.Request], Awaitable[web.StreamResponse]]

NAMED: Final[Mapping[tuple[str, int], Mapping[str, Handler]]] = {
    (NAME, 0): {"GET": names.summary, "POST": messages.post},
    (BELOW, 0): {"GET": names.below},
    ("!policy", 0): {"GET": names.read, "PUT": names.change, "DELETE": names.drop},
    ("!batch", 0): {"POST": batches.store},
    ("!head", 0): {"POST": messages.lock, "DELETE": messages.take},
    ("!messages", 0): {"GET": messages.browse, "DELETE": messages.purge},
    ("!messages", 1): {"GET": messages.look, "DELETE": messages.cancel},
    ("!messages", 2): {"DELETE": messages.complete, "PUT": messages.settle, "POST": messages.renew},
    ("!figures", 0): {"GET": status.figures},
    ("!subscriptions", 0): {"GET": subscriptions.list_all, "POST": subscriptions.subscribe},
    ("!subscriptions", 1): {
        "GET": subscriptions.read,
        "PUT": subscriptions.replace,
        "DELETE": subscriptions.unsubscribe,
    },
}
"""By part and number of segments behind it: what is served for every name."""

ROOT: Final[Mapping[tuple[str, int], Mapping[str, Handler]]] = {
    (BELOW, 0): {"GET": names.below},
    ("!tokens", 0): {"POST": tokens.make},
    ("!openapi.json", 0): {"GET": document.read},
    ("!status", 0): {"GET": status.read},
    ("!queues", 0): {"GET": status.queues},
    ("!routers", 0): {"GET": status.routers},
    ("!permissions", 0): {"GET": permissions.list_all},
    ("!permissions", 1): {"PUT": permissions.put, "DELETE": permissions.clear},
    ("!connections", 0): {"GET": connections.list_all},
    ("!connections", 1): {"GET": connections.show, "DELETE": connections.close},
    ("!transfers", 0): {"GET": transfers.list_all, "POST": transfers.begin},
    ("!transfers", 1): {"GET": transfers.read, "DELETE": transfers.cancel},
    ("!shards", 0): {"GET": shard_sets.list_all},
    ("!shards", 1): {"GET": shard_sets.show, "PUT": shard_sets.change, "DELETE": shard_sets.remove},
    ("!coordinator", 0): {"GET": coordination.show},
    ("!coordinator", 1): {"POST": coordination.put_back},
    ("!plan", 0): {"GET": moves.propose},
    ("!moves", 0): {"GET": moves.list_all, "POST": moves.begin, "DELETE": moves.cancel},
    ("!verify", 0): {"GET": moves.verify},
    ("!journals", 0): {"GET": journals.list_all},
    ("!journals", 2): {"GET": journals.read},
    ("!journals", 3): {"GET": journals.index},
    ("!readers", 0): {"GET": readers.list_all},
    ("!readers", 1): {"GET": readers.show, "PUT": readers.put, "DELETE": readers.remove},
    ("!definitions", 0): {"GET": definitions.export, "POST": definitions.take_in},
}
"""What is served for the installation as a whole."""

OPEN: Final = frozenset({"!openapi.json"})
"""Parts of the root that anybody may read."""
STRANGER: Final = Caller("anonymous")
"""Who asks, before it is known."""


class Gateway:
    """What all handlers share.

    Args:
        shards: links to the shards; empty until they are added.
        members: the other processes, as the supervisor tells.
        sockets: the directory of the frontends' control sockets, where they have not said where theirs is.
        map: of queues and members; the same as that of the shards.
        key: of the wire.
        now_ms: milliseconds since 1970.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        coordinator: Coordinator,
        shards: Shards,
        members: Members,
        health: Health,
        sockets: str | None = None,
        callers: Callers | None = None,
        directory: Directory | None = None,
        map: Map | None = None,
        key: WireKey | None = None,
    ) -> None:
        self.settings = settings
        self.coordinator = coordinator
        self.shards = shards
        self.members = members
        self.counts = Counts()
        health.show(HTTP_FAMILIES, self)
        self.health = health
        self.map = map or Map(coordinator)
        health.show(PLACEMENT_FAMILIES, self.map)
        self.presence = health.presence = Presence(self.map, shards.peers)
        health.show(PRESENCE_FAMILIES, self.presence)
        self.connections = connections.Connections(members, sockets, key)
        self.callers = callers or Callers(coordinator, settings)
        self.directory = directory or Directory(coordinator, auto_create=settings.auto_create)
        self._destinations = destinations = Destinations(settings.push_allow)
        self.service = Service(coordinator, self.directory, destinations=destinations)
        loop = asyncio.get_running_loop()
        self.sender = Sender(shards, self.directory, loop)
        self.batches = batches.BatchSender(shards, self.directory, self.sender, loop)
        self.receivers = Receivers(shards, loop)
        self.journals = journals.Journals(shards, self.map, Archived(settings.archive_directory))
        self.couriers = Couriers(self.service, shards, self.sender, destinations)
        health.show(COURIER_FAMILIES, self.couriers.counts)
        self.directory.listen(self._changed)
        self.now_ms = shards.now_ms
        self.views = BrokerViews(self)
        self._pages = Pages(self.service, self.views, time.time)

    def _changed(self, changes: Changes) -> None:
        self.shards.forget(changes.names)
        self.couriers.changed(changes)
        self.receivers.changed(self.directory.get(name) for name in changes.names)

    def application(self) -> web.Application:
        """The aiohttp application over this gateway."""
        app = application(self.health)
        app.middlewares.append(self._of_pages)
        self._pages.add_routes(app)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_startup.append(self._open)
        app.on_response_prepare.append(self._count)
        app.on_cleanup.append(self._close)
        return app

    @web.middleware
    async def _of_pages(self, request: web.Request, handler: Served) -> web.StreamResponse:
        """Pages have routes of their own and want to know who asks; what they load tells nothing.

        So has what lists queues, which is for who may manage everything, as /!status is.
        """
        path = request.path
        if path == DETAILED:
            asked = Asked(self, request, STRANGER, "", ())
            asked.caller = await self.callers.caller(request)
            asked.manager()
        if path.startswith("/!ui") and not path.startswith("/!ui/static/"):
            request[CALLER] = await self.callers.caller(request)
        return await handler(request)

    async def _open(self, _: web.Application) -> None:
        for each in self.directory.every_subscription():
            problem = self._destinations.problem(each.target) if each.push else None
            if problem is not None:
                log.error(
                    "subscription %s of %s is not pushed, and its messages become dead letters: %s",
                    each.id,
                    each.router,
                    problem,
                )
        self.couriers.start()

    async def _count(self, request: web.Request, response: web.StreamResponse) -> None:
        self.counts.answered(request.method, response.status)

    async def _close(self, _: web.Application) -> None:
        await self.couriers.close()
        self.receivers.close()
        self.sender.close()
        self.shards.close()
        self.connections.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        found = place(request.rel_url.raw_path)
        table = NAMED if found.name else ROOT
        methods = table.get((found.part, len(found.rest)))
        if methods is None:
            path = request.rel_url.raw_path[:200]
            raise Problem(404, f"nothing is served at {path!a}; see /!openapi.json for what is")
        handler = methods.get(request.method) or (methods.get("GET") if request.method == "HEAD" else None)
        if handler is None:
            allowed = ", ".join(methods)
            raise Problem(
                405,
                f"{request.method} can't be done here; expected {allowed}",
                headers={"Allow": allowed},
            )
        asked = Asked(self, request, STRANGER, found.name, found.rest)
        if not found.name:
            if found.part in OPEN:
                return await handler(asked)
            if found.part == BELOW and not asked.wants(JSON) and not asked.wants(ATOM):
                return await self.health.page(request)
        asked.caller = await self.callers.caller(request)
        return await handler(asked)


def application(health: Health) -> web.Application:
    """An application that tells errors as problems, and serves health checks and metrics."""
    app = web.Application(middlewares=[problems], client_max_size=limits.HTTP_DEFINITIONS_BYTES)
    app.add_routes(health.routes())
    app.on_startup.append(health.open)
    app.on_cleanup.append(health.close)
    return app


@web.middleware
async def problems(request: web.Request, handler: Served) -> web.StreamResponse:
    """Every error is an answer, and no request reaches a traceback."""
    try:
        return await handler(request)
    except (ConnectionResetError, asyncio.CancelledError):
        # The client is gone: there is nobody to tell.
        raise
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            log.exception("%s %s failed", request.method, request.path)
            problem = Problem(500, "a mistake of ours; the log of the gateway says more")
        return problem.response()
