"""/!connections over frontends that answer, are away, and know of nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.app import Gateway, open_services
from lightrail.gateway.callers import Callers
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Members
from lightrail.model import conditions, limits
from lightrail.model.settings import Settings
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry import exposition
from lightrail.wire.control import ControlClient, ControlRefusedError, ControlServer, address
from lightrail.wire.sockets.wiring import Wiring

Ask = Callable[..., Awaitable[tuple[int, Any]]]


class Frontend:
    """A frontend with numbered connections, as its control socket shows it."""

    def __init__(self, id: int, count: int) -> None:
        self.id = id
        self.numbers = list(range(1, count + 1))
        self.closed: list[tuple[str, str]] = []

    def operations(self) -> dict[str, Any]:
        return {"connections": self.connections, "connection": self.connection, "close": self.close}

    def name(self, number: int) -> str:
        return f"frontend-{self.id}.0000000a.{number}"

    def connections(self, fields: dict[str, Any]) -> dict[str, Any]:
        left = [number for number in self.numbers if number > fields["after"]]
        here = left[: min(fields["count"], 2)]
        return {
            "connections": [{"id": self.name(number), "user": fields["user"]} for number in here],
            "next": here[-1] if len(left) > len(here) else None,
        }

    def connection(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields["id"] != self.name(1):
            raise ControlRefusedError(conditions.NOT_FOUND, "no such connection")
        return {"connection": {"id": fields["id"], "sessions": []}}

    def close(self, fields: dict[str, Any]) -> dict[str, Any]:
        self.closed.append((fields["id"], fields["text"]))
        return {}


def with_gateway(
    tmp_path: Path, check: Callable[[Ask, list[Frontend]], Awaitable[None]], caller: Caller = ANYBODY
) -> None:
    """Two frontends of three connections, and one that should be there and is not."""

    async def run() -> None:
        class Known(Callers):
            async def caller(self, request: web.Request) -> Caller:
                return caller

        loop = asyncio.get_running_loop()
        coordinator = MemoryCoordinator()
        wiring = Wiring(loop)
        frontends = [Frontend(0, 3), Frontend(2, 3)]
        servers = [
            ControlServer(wiring, address(str(tmp_path), each.id), each.operations()) for each in frontends
        ]
        members = Members()
        members.update(
            {
                "processes": [
                    {"role": role, "id": id, "ready": True, "restarts": 0}
                    for role, id in (("frontend", 2), ("frontend", 1), ("frontend", 0), ("shard", 0))
                ]
            }
        )

        shards = ShardConnections(coordinator, loop, wiring, name="gateway-0", boot=1)
        services = open_services(
            settings=Settings(),
            coordinator=coordinator,
            shards=shards,
            members=members,
            health=Health(0, members, lambda: None),
            sockets=str(tmp_path),
            callers=Known(coordinator, Settings()),
        )
        app = Gateway(services).application()
        runner, port = await exposition.listen(app, "127.0.0.1", 0)

        async def ask(method: str, path: str) -> tuple[int, Any]:
            async with (
                aiohttp.ClientSession() as session,
                session.request(method, f"http://127.0.0.1:{port}{path}") as response,
            ):
                json = response.content_type == "application/json"
                return response.status, await (response.json() if json else response.text())

        try:
            await check(ask, frontends)
        finally:
            await runner.cleanup()
            for server in servers:
                server.close()
            wiring.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ControlClient.request.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wait_ms", 300)


def test_pages_go_over_all_frontends_and_say_who_is_away(tmp_path: Path) -> None:
    async def check(ask: Ask, frontends: list[Frontend]) -> None:
        status, page = await ask("GET", "/!connections")
        assert status == 200
        everything = [f"frontend-{id}.0000000a.{number}" for id in (0, 2) for number in (1, 2, 3)]
        assert [each["id"] for each in page["connections"]] == everything
        assert (page["next"], page["away"]) == (None, ["frontend-1"])
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            _, page = await ask("GET", f"/!connections?limit=4&user=u&after={after}")
            seen += [each["id"] for each in page["connections"]]
            assert {each["user"] for each in page["connections"]} <= {"u"}
            after = page["next"]
        assert seen == everything

    with_gateway(tmp_path, check)


def test_one_is_shown_and_closed_by_its_id(tmp_path: Path) -> None:
    async def check(ask: Ask, frontends: list[Frontend]) -> None:
        id = "frontend-2.0000000a.1"
        assert await ask("GET", f"/!connections/{id}") == (200, {"id": id, "sessions": []})
        assert (await ask("DELETE", f"/!connections/{id}?text=go%20away"))[0] == 204
        assert frontends[1].closed == [(id, "go away")]

    with_gateway(tmp_path, check)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/!connections/frontend-0.0000000a.9", 404),
        ("/!connections/frontend-7.0000000a.1", 404),
        ("/!connections/nonsense", 404),
        ("/!connections/frontend-1.0000000a.1", 503),
        ("/!connections?limit=0", 400),
        ("/!connections?limit=x", 400),
        (f"/!connections?limit={limits.PAGE_MAX + 1}", 400),
        ("/!connections?after=nonsense", 400),
    ],
)
def test_what_can_not_be_shown_is_told(tmp_path: Path, path: str, status: int) -> None:
    async def check(ask: Ask, frontends: list[Frontend]) -> None:
        found, text = await ask("GET", path)
        assert (found, bool(text)) == (status, True)

    with_gateway(tmp_path, check)


def test_only_who_manages_everything_sees_and_closes(tmp_path: Path) -> None:
    async def check(ask: Ask, frontends: list[Frontend]) -> None:
        for method, path in (
            ("GET", "/!connections"),
            ("GET", "/!connections/frontend-0.0000000a.1"),
            ("DELETE", "/!connections/frontend-0.0000000a.1"),
        ):
            status, text = await ask(method, path)
            assert status == 403
            assert "user eve" in text
        assert frontends[0].closed == []

    with_gateway(tmp_path, check, Caller("eve"))
