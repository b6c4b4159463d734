"""Connections of all frontends, read and closed through the frontends' control sockets (wire/control.py).

Connections are ordered by the number of their frontend, then by arrival; a page continues after the id in
`next` of the page before.
"""

import asyncio
import re
from typing import Any, Final

from lightrail.gateway.processes.members import Member, Members
from lightrail.model import conditions, limits
from lightrail.namespace.statuses import MissingError
from lightrail.wire.control import ControlClient, ControlDownError, ControlRefusedError, address
from lightrail.wire.sockets.wiring import Wiring

ID: Final = re.compile(r"frontend-(\d{1,9})\.([0-9a-f]{8})\.(\d{1,18})\Z")
COUNT_DEFAULT: Final = 100


class Connections:
    """The connections of all frontends; used on a loop.

    Args:
        sockets: the directory of control sockets, for frontends that do not publish its address.
    """

    def __init__(self, members: Members, sockets: str | None, wiring: Wiring) -> None:
        self._members = members
        self._sockets = sockets
        self._wiring = wiring
        self._clients: dict[int, ControlClient] = {}

    def close(self) -> None:
        """Closes the sockets."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

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
        """The first page, of the largest size."""
        page = await self.page(count=limits.PAGE_MAX, user=None, container=None)
        found: list[dict[str, Any]] = page["connections"]
        return found

    async def find(self, id: str) -> dict[str, Any]:
        """One connection with its sessions and links. Raises MissingError, ControlDownError,
        ControlRefusedError."""
        answer = await self._request(id, "connection", {})
        found: dict[str, Any] = answer["connection"]
        return found

    async def end(self, id: str, text: str = "") -> None:
        """Closes a connection; the close that its client receives has this text. Raises as `find`."""
        await self._request(id, "close", {"text": text})

    async def _request(self, id: str, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            frontend = _parts(id)[0]
        except ValueError as error:
            raise MissingError(str(error)) from None
        if frontend not in self._frontends(ready=False):
            raise MissingError(f"there is no frontend-{frontend}")
        try:
            return await self._client(frontend).request(op, {"id": id, **fields})
        except ControlRefusedError as refused:
            if refused.condition == conditions.NOT_FOUND:
                raise MissingError(refused.description) from None
            raise

    def _frontends(self, *, ready: bool = True) -> list[int]:
        frontends = [one for one in self._members.list() if one.role == "frontend" and self._address(one)]
        return sorted(one.id for one in frontends if one.ready or not ready)

    def _address(self, member: Member) -> str | None:
        if member.control is not None:
            return member.control
        return None if self._sockets is None else address(self._sockets, member.id)

    def _client(self, frontend: int) -> ControlClient:
        members = self._members.list()
        (where,) = (self._address(one) for one in members if (one.role, one.id) == ("frontend", frontend))
        assert where is not None, "frontends without an address are left out"
        client = self._clients.get(frontend)
        if client is not None and client.address != where:
            client.close()
            client = None
        if client is None:
            client = ControlClient(asyncio.get_running_loop(), self._wiring, where)
            self._clients[frontend] = client
        return client


def _parts(id: str) -> tuple[int, str, int]:
    """(number of the frontend, its boot, number of the connection). Raises ValueError."""
    match = ID.match(id)
    if match is None:
        raise ValueError(f"{id[:80]!a} is no id of a connection; expected frontend-N.BOOT.NUMBER")
    return int(match[1]), match[2], int(match[3])
