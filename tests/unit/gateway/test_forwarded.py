"""Clients that a frontend forwards: their address counts, and administration alone is served."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.gateway.app import Gateway, open_services
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Members
from lightrail.gateway.services import Services
from lightrail.model.endpoint import Endpoint
from lightrail.model.settings import Settings
from lightrail.service_bus.gateway import HOOKS
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry import http_server
from lightrail.telemetry.http_connection import Connections
from lightrail.wire.forwarded import FIELD, FORWARDED_AGE_MS, NONCE_FIELD, TO_FRONTEND, TO_GATEWAY, Forwarded
from lightrail.wire.sockets.wiring import Wiring

STRANGER = Forwarded("192.0.2.1", 4_000, tls=False)
LOCAL = Forwarded("127.0.0.1", 4_000, tls=False)
ADMINISTRATION = "/$namespaceinfo?api-version=2021-05"


class Scene:
    """A gateway of this machine, and one connection to it."""

    def __init__(self, services: Services, admitted: Connections, port: int) -> None:
        self.services = services
        self.admitted = admitted
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []
        self.reader: asyncio.StreamReader

    async def connect(self) -> None:
        self.reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)

    def field(
        self, client: Forwarded, nonce: str = "n", direction: bytes = TO_GATEWAY, age_ms: int = 0
    ) -> tuple[str, str]:
        now_ms = self.services.now_ms() - age_ms
        value = client.sign(self.services.callers.secret, nonce.encode(), now_ms, direction)
        return f"{FIELD}: {value}", f"{NONCE_FIELD}: {nonce}"

    async def ask(self, target: str, *fields: str, method: str = "GET") -> tuple[int, str]:
        """One request on the connection; gives status and body."""
        lines = [f"{method} {target} HTTP/1.1", "Host: broker:5672", "Content-Length: 0", *fields, "", ""]
        self.writers[-1].write("\r\n".join(lines).encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().partition("content-length:")[2].partition("\r\n")[0])
        return int(head.split(" ")[1]), (await self.reader.readexactly(size)).decode()


def play(check: Callable[[Scene], Awaitable[None]], *users: str, most: int = 100, **settings: Any) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        for name in users:
            await coordinator.add_user(UserRecord.make(name, "password", 4_096))
        members = Members()
        shards = ShardConnections(
            coordinator,
            asyncio.get_running_loop(),
            Wiring(asyncio.get_running_loop()),
            name="gateway-0",
            boot=1,
        )
        services = open_services(
            settings=Settings(**settings),
            coordinator=coordinator,
            shards=shards,
            members=members,
            health=Health(0, members, lambda: None),
            hooks=HOOKS,
        )
        services.directory.refresh()
        await services.callers.refresh()
        admitted = Connections(most)
        endpoints = ((Endpoint("127.0.0.1", 0), None),)
        runner, ports = await http_server.serve(
            Gateway(services).application(), admitted, endpoints, shared=False
        )
        scene = Scene(services, admitted, ports[0])
        await scene.connect()
        try:
            await check(scene)
        finally:
            for writer in scene.writers:
                writer.close()
            await runner.cleanup()

    asyncio.run(run())


def test_a_stranger_at_a_frontend_is_none_of_this_machine() -> None:
    async def check(scene: Scene) -> None:
        assert (await scene.ask(ADMINISTRATION))[0] == 403, "the host has a name"
        await scene.connect()
        status, said = await scene.ask(ADMINISTRATION, *scene.field(STRANGER))
        assert status == 403
        assert "only callers on this machine" in said
        # So for each later request of the connection.
        assert (await scene.ask(ADMINISTRATION))[0] == 403
        assert (await scene.ask("/q?api-version=1", method="PUT"))[0] == 403

    play(check)


def test_a_client_of_this_machine_is_served_as_by_the_gateway() -> None:
    async def check(scene: Scene) -> None:
        status, said = await scene.ask(ADMINISTRATION, *scene.field(LOCAL))
        assert status == 200
        assert "http://broker:5672/$namespaceinfo" in said
        await scene.connect()
        encrypted = Forwarded("127.0.0.1", 4_000, tls=True)
        assert (
            "https://broker:5672/$namespaceinfo"
            in (await scene.ask(ADMINISTRATION, *scene.field(encrypted)))[1]
        )

    play(check, insecure_no_users=True)


def test_passwords_over_the_network_need_the_client_to_use_tls() -> None:
    async def check(scene: Scene) -> None:
        login = "Authorization: Basic YW5uOnBhc3N3b3Jk"
        said = (await scene.ask(ADMINISTRATION, login, *scene.field(STRANGER)))[1]
        assert "over TLS only" in said
        await scene.connect()
        encrypted = Forwarded("192.0.2.1", 4_000, tls=True)
        status, said = await scene.ask(ADMINISTRATION, login, *scene.field(encrypted))
        assert "manages no name" in said, (status, said)

    play(check, "ann")


@pytest.mark.parametrize(
    "path", ["/!ui", "/!status", "/metrics", "/healthz", "/q", "/health", "/?x=api-version"]
)
def test_nothing_else_is_served_on_such_a_connection(path: str) -> None:
    async def check(scene: Scene) -> None:
        assert (await scene.ask(ADMINISTRATION, *scene.field(LOCAL)))[0] == 200
        status, said = await scene.ask(path)
        assert status == 403
        assert "only administration is served" in said
        await scene.connect()
        assert (await scene.ask(path, *scene.field(LOCAL)))[0] == 403, "nor as the first request"

    play(check, insecure_no_users=True)


@pytest.mark.parametrize("path", ["/!ui", "/!ui/static/style.css", "/metrics", "/healthz"])
def test_pages_and_metrics_are_no_administration_whatever_their_query(path: str) -> None:
    async def check(scene: Scene) -> None:
        status, said = await scene.ask(f"{path}?api-version=1", *scene.field(LOCAL))
        assert status == 403
        assert "only administration is served" in said

    play(check, insecure_no_users=True)


def test_a_websocket_is_no_administration() -> None:
    """Its frontend would take the stranger for a client of this machine."""

    async def check(scene: Scene) -> None:
        upgrade = (
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: amqp",
        )
        assert (await scene.ask(ADMINISTRATION, *upgrade, *scene.field(STRANGER)))[0] == 403
        await scene.connect()
        assert (await scene.ask(ADMINISTRATION, *scene.field(STRANGER)))[0] == 200
        assert (await scene.ask(ADMINISTRATION, *upgrade))[0] == 403

    play(check, insecure_no_users=True)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(("Expect: something",), id="aiohttp answers before any handler"),
        pytest.param((f"{FIELD}: x",), id="forged"),
    ],
)
def test_a_connection_whose_client_was_not_taken_ends_with_its_first_answer(first: tuple[str, ...]) -> None:
    """The request behind has no field: it would be one of this machine, with all rights without users."""

    async def check(scene: Scene) -> None:
        behind = "GET /!status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        fields = first if FIELD in first[0] else (*first, *scene.field(STRANGER))
        request = "\r\n".join([f"GET {ADMINISTRATION} HTTP/1.1", "Host: broker", *fields, "", behind])
        scene.writers[-1].write(request.encode())
        answers = (await asyncio.wait_for(scene.reader.read(), 30)).decode()
        assert answers.count("HTTP/1.1 ") == 1
        assert answers.split(" ")[1] in ("417", "400")

    play(check)


def test_forged_fields_are_refused() -> None:
    async def check(scene: Scene) -> None:
        value, nonce = scene.field(LOCAL)
        _, another = scene.field(LOCAL, "another")
        forged = (
            (value,),
            (value, another),
            (value.replace("127.0.0.1", "127.0.0.2"), nonce),
            (value[:-1] + ("0" if value[-1] != "0" else "1"), nonce),
            scene.field(LOCAL, direction=TO_FRONTEND),
            scene.field(LOCAL, age_ms=FORWARDED_AGE_MS + 1_000),
            (value, nonce, value),
            (f"{FIELD}: x",),
        )
        for fields in forged:
            await scene.connect()
            assert (await scene.ask(ADMINISTRATION, *fields))[0] == 400, fields
        # A client adds a field of its own to its second request.
        await scene.connect()
        assert (await scene.ask(ADMINISTRATION, *scene.field(STRANGER)))[0] == 200
        assert (await scene.ask(ADMINISTRATION, *scene.field(LOCAL)))[0] == 400

    play(check, insecure_no_users=True)


def test_pages_of_other_origins_change_nothing() -> None:
    async def check(scene: Scene) -> None:
        origin = "Origin: http://elsewhere.example"
        status, said = await scene.ask("/q?api-version=1", origin, *scene.field(LOCAL), method="PUT")
        assert "may not change anything here" in said, status

    play(check, insecure_no_users=True)


def test_such_a_connection_counts_for_the_source_of_its_client() -> None:
    async def check(scene: Scene) -> None:
        assert (await scene.ask(ADMINISTRATION, *scene.field(STRANGER)))[0] == 200
        assert scene.admitted.of_source("192.0.2.1") == 1
        assert scene.admitted.of_source("127.0.0.1") == 0
        assert len(scene.admitted) == 1

    play(check, insecure_no_users=True)
