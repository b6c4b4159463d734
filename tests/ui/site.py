"""A gateway's pages alone on a real socket, in a thread of their own, over a namespace in memory."""

import asyncio
import threading
import time
from types import TracebackType
from typing import Any, Self, cast

from aiohttp import web

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.pages.actions import CALLER
from lightrail.gateway.pages.pages import Pages
from lightrail.model.endpoint import Destinations
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.namespace.service import Service
from lightrail.telemetry import exposition
from tests.ui.fake_views import FakeViews

SITE_CALLER = web.AppKey("site-caller", Caller)


@web.middleware
async def _caller(request: web.Request, handler: object) -> web.StreamResponse:
    request[CALLER] = request.app[SITE_CALLER]
    return await handler(request)  # type: ignore[operator,no-any-return]


class Site:
    """`with Site() as site:` serves; `site.url` is where."""

    def __init__(self, caller: Caller = ANYBODY) -> None:
        self.views = FakeViews()
        self.url = ""
        self._caller = caller
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())

    async def _start(self) -> web.AppRunner:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        service = Service(coordinator, Directory(coordinator), destinations=Destinations(("localhost",)))
        for name, policy in (
            ("jobs", {"role": "router"}),
            ("jobs/workers", {"role": "router", "distribution": "one"}),
            ("jobs/audit", {"role": "queue", "lock_duration": 60}),
            ("jobs/q/1", {"role": "queue"}),
            ("jobs/q/2", {"role": "queue"}),
            ("elsewhere", {"role": "metadata", "reference": "https://example.org/"}),
            ("<b>odd</b>", {"role": "queue"}),
            ("hidden/secret", {"role": "queue", "discoverability": "managers"}),
        ):
            await service.give(ANYBODY, name, Policy.parse(policy))
        await service.subscribe(ANYBODY, "jobs", "jobs/audit")
        await service.subscribe(ANYBODY, "jobs", "jobs/workers", filter={"subject": "order.#"})
        await service.subscribe(ANYBODY, "jobs", "https://localhost/hook")
        await service.subscribe(ANYBODY, "jobs/workers", "jobs/q/1")
        await service.subscribe(ANYBODY, "jobs/workers", "jobs/q/2")
        app = web.Application(middlewares=[_caller])
        app[SITE_CALLER] = self._caller
        Pages(service, cast(Any, self.views), time.time).add_routes(app)
        runner, port = await exposition.listen(app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{port}"
        return runner
