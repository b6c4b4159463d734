"""Connections of all frontends, as the gateway shows and closes them: /!connections.

Frontends answer through their control sockets (wire/control.py). The order is that of the frontends' numbers
and, in each, that of arrival; a page goes on after the id that its `next` names.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import zmq
from aiohttp import web

from lightrail.gateway.members import Members
from lightrail.model import conditions, limits
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.namespace.rights import Caller, rights_of
from lightrail.wire.control import ControlAway, ControlClient, ControlRefused, address

ID: Final = re.compile(r"frontend-(\d{1,9})\.([0-9a-f]{8})\.(\d{1,18})\Z")
COUNT_DEFAULT: Final = 100
COUNT_MAX: Final = 1_000
"""Connections in one page."""
TEXT_MAX: Final = 256
"""Characters of the sentence that a client is told when its connection is closed."""


class Connections:
    """What all frontends of this machine say about their connections; used on a loop."""

    def __init__(self, members: Members, sockets: str) -> None:
        self._members = members
        self._sockets = sockets
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._clients: dict[int, ControlClient] = {}

    def close(self) -> None:
        """Let go of the sockets."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._context.term()

    async def page(
        self, *, after: str = "", count: int = COUNT_DEFAULT, user: str | None, container: str | None
    ) -> dict[str, Any]:
        """`{"connections": [...], "next": id or null, "away": [frontends that did not answer]}`.

        Raises:
            ValueError: `after` is no id of a connection.
        """
        first, number = 0, 0
        if after:
            frontend, _, number = _parts(after)
            first = frontend
        found: list[dict[str, Any]] = []
        away: list[str] = []
        for frontend in self._frontends():
            if frontend < first:
                continue
            cursor: int | None = number if frontend == first else 0
            while cursor is not None and len(found) < count:
                fields = {
                    "after": cursor,
                    "count": min(count - len(found), limits.CONTROL_PAGE_MAX),
                    "user": user,
                    "container": container,
                }
                try:
                    answer = await self._client(frontend).request("connections", fields)
                except ControlAway:
                    away.append(f"frontend-{frontend}")
                    break
                found += answer["connections"]
                cursor = answer["next"]
            if len(found) >= count:
                break
        return {"connections": found, "next": found[-1]["id"] if len(found) >= count else None, "away": away}

    async def find(self, id: str) -> dict[str, Any]:
        """One connection with its sessions and links. Raises ControlRefused, ControlAway."""
        answer = await self._client(self._frontend_of(id)).request("connection", {"id": id})
        found: dict[str, Any] = answer["connection"]
        return found

    async def end(self, id: str, text: str = "") -> None:
        """Close one, telling its client why. Raises ControlRefused, ControlAway."""
        await self._client(self._frontend_of(id)).request("close", {"id": id, "text": text})

    def _frontends(self) -> list[int]:
        return sorted(one.id for one in self._members.list() if one.role == "frontend" and one.ready)

    def _frontend_of(self, id: str) -> int:
        try:
            frontend = _parts(id)[0]
        except ValueError as error:
            raise ControlRefused(conditions.NOT_FOUND, str(error)) from None
        if not any(one.id == frontend and one.role == "frontend" for one in self._members.list()):
            raise ControlRefused(conditions.NOT_FOUND, f"there is no frontend-{frontend} on this machine")
        return frontend

    def _client(self, frontend: int) -> ControlClient:
        client = self._clients.get(frontend)
        if client is None:
            where = address(self._sockets, frontend)
            client = ControlClient(asyncio.get_running_loop(), self._context, where)
            self._clients[frontend] = client
        return client


def add_routes(
    app: web.Application,
    connections: Callable[[], Connections],
    directory: Directory,
    caller_of: Callable[[web.Request], Awaitable[Caller]],
) -> None:
    """The routes of /!connections; each asks for the caller's right to manage everything.

    `connections` gives those of the running application: they are made when it starts and closed with it.
    """
    routes = _Routes(connections, directory, caller_of)
    app.router.add_get("/!connections", routes.list)
    app.router.add_get("/!connections/{id}", routes.show)
    app.router.add_delete("/!connections/{id}", routes.close)


class _Routes:
    def __init__(
        self,
        connections: Callable[[], Connections],
        directory: Directory,
        caller_of: Callable[[web.Request], Awaitable[Caller]],
    ) -> None:
        self._connections = connections
        self._directory = directory
        self._caller_of = caller_of

    async def list(self, request: web.Request) -> web.Response:
        """GET /!connections?user=&container=&limit=&after="""
        await self._demand(request)
        query = request.query
        text = query.get("limit", str(COUNT_DEFAULT))
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= COUNT_MAX):
            expected = f"a whole number from 1 to {COUNT_MAX}"
            raise web.HTTPBadRequest(text=f"limit is {text[:80]!a}; expected {expected}")
        try:
            page = await self._connections().page(
                after=query.get("after", ""),
                count=int(text),
                user=query.get("user"),
                container=query.get("container"),
            )
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"after: {error}") from None
        return _json(page)

    async def show(self, request: web.Request) -> web.Response:
        """GET /!connections/ID"""
        await self._demand(request)
        try:
            return _json(await self._connections().find(request.match_info["id"]))
        except (ControlAway, ControlRefused) as error:
            raise _http(error) from None

    async def close(self, request: web.Request) -> web.Response:
        """DELETE /!connections/ID?text="""
        await self._demand(request)
        text = request.query.get("text", "")
        if len(text) > TEXT_MAX:
            raise web.HTTPBadRequest(text=f"text has {len(text)} characters; expected at most {TEXT_MAX}")
        try:
            await self._connections().end(request.match_info["id"], text)
        except (ControlAway, ControlRefused) as error:
            raise _http(error) from None
        return web.Response(status=204)

    async def _demand(self, request: web.Request) -> None:
        caller = await self._caller_of(request)
        self._directory.refresh()
        if Right.MANAGE not in rights_of(self._directory, caller, ""):
            raise web.HTTPForbidden(
                text=f"user {caller.user} has no right to manage everything, which connections ask for; "
                f"a manager gives it with: lightrail-admin permission set {caller.user} '' manage"
            )


def _parts(id: str) -> tuple[int, str, int]:
    """(number of the frontend, its boot, number of the connection). Raises ValueError."""
    match = ID.match(id)
    if match is None:
        raise ValueError(f"{id[:80]!a} is no id of a connection; expected frontend-N.BOOT.NUMBER")
    return int(match[1]), match[2], int(match[3])


def _http(error: ControlAway | ControlRefused) -> web.HTTPException:
    if isinstance(error, ControlAway):
        return web.HTTPServiceUnavailable(text=str(error), headers={"Retry-After": "1"})
    if error.condition == conditions.NOT_FOUND:
        return web.HTTPNotFound(text=error.description)
    return web.HTTPBadGateway(text=f"the frontend answered: {error}")


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(text=json.dumps(value), content_type="application/json")
