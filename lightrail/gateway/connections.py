"""Connections of all frontends, as the gateway shows and closes them: /!connections.

Frontends answer through their control sockets (wire/control.py). The order is that of the frontends' numbers
and, in each, that of arrival; a page goes on after the id that its `next` names.
"""

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.gateway.errors import Problem
from lightrail.gateway.members import Member, Members
from lightrail.model import conditions, limits
from lightrail.namespace.service import Missing
from lightrail.wire import keys
from lightrail.wire.control import ControlClient, ControlDownError, ControlRefusedError, address
from lightrail.wire.keys import WireKey

if TYPE_CHECKING:
    from lightrail.gateway.asked import Asked

ID: Final = re.compile(r"frontend-(\d{1,9})\.([0-9a-f]{8})\.(\d{1,18})\Z")
COUNT_DEFAULT: Final = 100
TEXT_MAX: Final = 256
"""Characters of the sentence that a client is told when its connection is closed."""


class Connections:
    """What all frontends say about their connections; used on a loop.

    Args:
        sockets: the directory of the control sockets of frontends that have not said where theirs is.
        key: of the wire.
    """

    def __init__(self, members: Members, sockets: str | None, key: WireKey | None = None) -> None:
        self._members = members
        self._sockets = sockets
        self._context = keys.context(key)
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
                except ControlDownError:
                    away.append(f"frontend-{frontend}")
                    break
                found += answer["connections"]
                cursor = answer["next"]
            if len(found) >= count:
                break
        return {"connections": found, "next": found[-1]["id"] if len(found) >= count else None, "away": away}

    async def first(self) -> list[dict[str, Any]]:
        """The longest page there is, from the first connection on."""
        page = await self.page(count=limits.PAGE_MAX, user=None, container=None)
        found: list[dict[str, Any]] = page["connections"]
        return found

    async def find(self, id: str) -> dict[str, Any]:
        """One connection with sessions and links. Raises Missing, ControlDownError, ControlRefusedError."""
        answer = await self._ask(id, "connection", {})
        found: dict[str, Any] = answer["connection"]
        return found

    async def end(self, id: str, text: str = "") -> None:
        """Close one, telling its client why. Raises as `find`."""
        await self._ask(id, "close", {"text": text})

    async def _ask(self, id: str, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            frontend = _parts(id)[0]
        except ValueError as error:
            raise Missing(str(error)) from None
        if frontend not in self._frontends(ready=False):
            raise Missing(f"there is no frontend-{frontend}")
        try:
            return await self._client(frontend).request(op, {"id": id, **fields})
        except ControlRefusedError as refused:
            if refused.condition == conditions.NOT_FOUND:
                raise Missing(refused.description) from None
            raise

    def _frontends(self, *, ready: bool = True) -> list[int]:
        frontends = [one for one in self._members.list() if one.role == "frontend" and self._where(one)]
        return sorted(one.id for one in frontends if one.ready or not ready)

    def _where(self, member: Member) -> str | None:
        if member.control is not None:
            return member.control
        return None if self._sockets is None else address(self._sockets, member.id)

    def _client(self, frontend: int) -> ControlClient:
        members = self._members.list()
        (where,) = (self._where(one) for one in members if (one.role, one.id) == ("frontend", frontend))
        assert where is not None, "of these it is known where they are"
        client = self._clients.get(frontend)
        if client is not None and client.address != where:
            client.close()
            client = None
        if client is None:
            client = ControlClient(asyncio.get_running_loop(), self._context, where)
            self._clients[frontend] = client
        return client


# --- requests -------------------------------------------------------------------------------------------


async def list_all(asked: "Asked") -> web.Response:
    """GET /!connections?user=&container=&limit=&after=, for who may manage all names."""
    asked.manager()
    query = asked.request.query
    try:
        page = await asked.gateway.connections.page(
            after=query.get("after", ""),
            count=asked.whole("limit", COUNT_DEFAULT, 1, limits.PAGE_MAX),
            user=query.get("user"),
            container=query.get("container"),
        )
    except ValueError as error:
        raise Problem(400, f"after: {error}", field="after") from None
    return web.json_response(page)


async def show(asked: "Asked") -> web.Response:
    """GET /!connections/ID: one with its sessions and links."""
    asked.manager()
    return web.json_response(await asked.gateway.connections.find(asked.rest[0]))


async def close(asked: "Asked") -> web.Response:
    """DELETE /!connections/ID?text=: 204; its client is told why."""
    asked.manager()
    text = asked.request.query.get("text", "")
    if len(text) > TEXT_MAX:
        raise Problem(400, f"text has {len(text)} characters; expected at most {TEXT_MAX}", field="text")
    await asked.gateway.connections.end(asked.rest[0], text)
    return web.Response(status=204)


def _parts(id: str) -> tuple[int, str, int]:
    """(number of the frontend, its boot, number of the connection). Raises ValueError."""
    match = ID.match(id)
    if match is None:
        raise ValueError(f"{id[:80]!a} is no id of a connection; expected frontend-N.BOOT.NUMBER")
    return int(match[1]), match[2], int(match[3])
