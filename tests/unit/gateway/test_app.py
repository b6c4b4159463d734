"""The gateway's application over processes that are there, stopped, or lie."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.app import Gateway, application, open_services, problems
from lightrail.gateway.processes import health as gateway_health
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Member, Members
from lightrail.model.settings import Settings
from lightrail.namespace.records import Subscription
from lightrail.telemetry import exposition
from lightrail.telemetry.frontend import FRONTEND_FAMILIES, FrontendCounts
from lightrail.telemetry.metrics import registry
from lightrail.telemetry.running import Running
from tests.support.shard.fake_shards import FakeShards

Get = Callable[..., Awaitable[tuple[int, str]]]
Reason = dict[int, str | None]


def with_gateway(
    check: Callable[[Get, list[dict[str, Any]], Members, Reason], Awaitable[None]], frontends: int = 2
) -> None:
    """Run a check against a gateway over that many frontends, which are only their metrics ports."""

    async def run() -> None:
        runners = []
        reasons: Reason = dict.fromkeys(range(frontends))
        processes = []
        for id in range(frontends):
            counts = FrontendCounts()
            counts.messages_received = 10 + id
            runner, port = await exposition.start(
                "127.0.0.1",
                0,
                registry(FRONTEND_FAMILIES, counts),
                partial(reasons.__getitem__, id),
                running=Running("frontend", partial(int, id)),
            )
            runners.append(runner)
            processes.append(member("frontend", id, f"127.0.0.1:{port}"))
        members = Members()
        members.update({"processes": processes})
        health = Health(0, members, lambda: None)
        app = application(health)
        app.add_routes([web.get("/", health.page)])
        runner, port = await exposition.listen(app, "127.0.0.1", 0)
        runners.append(runner)

        async def get(path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
            ):
                return response.status, await response.text()

        try:
            await check(get, processes, members, reasons)
        finally:
            for runner in reversed(runners):
                await runner.cleanup()

    asyncio.run(run())


def member(role: str, id: int, metrics: str | None, ready: bool = True) -> dict[str, Any]:
    return {"role": role, "id": id, "pid": 1, "ready": ready, "restarts": 3, "metrics": metrics}


def test_metrics_of_all_processes_carry_their_role_and_number() -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        status, text = await get("/metrics")
        assert status == 200
        assert 'lightrail_messages_received_total{role="frontend",id="0"} 10.0' in text
        assert 'lightrail_messages_received_total{role="frontend",id="1"} 11.0' in text
        assert 'lightrail_process_restarts_total{number="1",of="frontend",role="gateway",id="0"} 3.0' in text
        assert 'process_cpu_seconds_total{role="gateway",id="0"}' in text

    with_gateway(check)


def test_detail_passes_the_question_on() -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        assert await get("/metrics/detailed?queue=a%20b") == (200, "")

    with_gateway(check)


def test_ready_when_everybody_is() -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        assert await get("/readyz") == (200, "ready\n")
        reasons[1] = "shard 0 does not answer"
        assert await get("/readyz") == (503, "frontend-1: shard 0 does not answer\n")
        reasons[1] = None
        members.update({"processes": [*processes, member("shard", 0, None, ready=False)]})
        assert await get("/readyz") == (503, "shard-0: not serving\n")
        assert await get("/healthz") == (200, "alive\n")

    with_gateway(check)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Shards never answer; the seconds that each request of another process may take."""
    seconds_of: list[float] = []
    ask = Health._get

    async def asked(self: Health, member: Member, path: str, seconds: float) -> tuple[int, str]:
        seconds_of.append(seconds)
        if member.role == "shard":
            raise TimeoutError
        return await ask(self, member, path, 60.0)

    monkeypatch.setattr(Health, "_get", asked)
    return seconds_of


def test_a_process_that_does_not_answer_is_named_and_left_out(waited: list[float]) -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        members.update({"processes": [*processes, member("shard", 0, "127.0.0.1:9")]})
        assert await get("/readyz") == (503, "shard-0: no answer (TimeoutError)\n")
        assert set(waited) == {gateway_health.READY_TIME_MAX_S} == {1.0}
        waited.clear()
        status, text = await get("/metrics")
        assert status == 200
        assert 'lightrail_messages_received_total{role="frontend",id="0"} 10.0' in text
        assert members.scrapes_failed == 1
        assert set(waited) == {4.0}

    with_gateway(check)


def test_a_silent_process_does_not_outlast_the_patience_of_who_scrapes(waited: list[float]) -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        members.update({"processes": [*processes, member("shard", 0, "127.0.0.1:9")]})
        status, text = await get("/metrics", {gateway_health.SCRAPE_TIME_HEADER: "0.25"})
        assert status == 200
        assert 'role="frontend",id="1"' in text
        assert members.scrapes_failed == 1
        assert set(waited) == {0.2}

    with_gateway(check)


@pytest.mark.parametrize("patience", ["60", "-1", "soon"])
def test_a_silent_process_is_never_waited_for_longer_than_the_bound(
    waited: list[float], patience: str
) -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        members.update({"processes": [*processes, member("shard", 0, "127.0.0.1:9")]})
        status, _ = await get("/metrics", {gateway_health.SCRAPE_TIME_HEADER: patience})
        assert status == 200
        assert set(waited) == {gateway_health.SCRAPE_TIME_MAX_S} == {5.0}

    with_gateway(check)


def test_the_page_and_what_is_not_there() -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        status, text = await get("/")
        assert status == 200
        assert "frontend-0: serving" in text
        assert (await get("/absent"))[0] == 404

    with_gateway(check)


def test_alone_it_shows_itself() -> None:
    async def check(get: Get, processes: Any, members: Members, reasons: Reason) -> None:
        assert await get("/readyz") == (200, "ready\n")
        assert "process_resident_memory_bytes" in (await get("/metrics"))[1]

    with_gateway(check, frontends=0)


def test_an_error_is_no_traceback_to_the_client() -> None:
    async def check() -> None:
        async def fails(_: web.Request) -> web.Response:
            raise RuntimeError("inside")

        app = web.Application(middlewares=[problems])
        app.add_routes([web.get("/", fails)])
        runner, port = await exposition.listen(app, "127.0.0.1", 0)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
            assert response.status == 500
            assert "inside" not in await response.text()
        await runner.cleanup()

    asyncio.run(check())


def test_a_push_that_push_allow_does_not_allow_any_more_is_named_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        made = Subscription("r", "one", "http://127.0.0.1:9/hook", secret="s")
        await coordinator.write([Write(made.key, made.to_value())])
        members = Members()
        shards: Any = FakeShards()
        services = open_services(
            settings=Settings(),
            coordinator=coordinator,
            shards=shards,
            members=members,
            health=Health(0, members, lambda: None),
            sockets="",
        )
        services.directory.refresh()
        await Gateway(services)._open(web.Application())
        await services.forwarding.close()
        services.connections.close()

    asyncio.run(run())
    assert "subscription one of r is not pushed, and its messages become dead letters" in caplog.text
    assert "an operator adds 127.0.0.1 to it" in caplog.text
