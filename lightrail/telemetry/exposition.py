"""Exposition: one process's /metrics, /metrics/detailed, /healthz and /readyz over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from lightrail.model.endpoint import Endpoint
from lightrail.telemetry import http_server
from lightrail.telemetry.http_connection import Connections
from lightrail.telemetry.metrics import merge, registry
from lightrail.telemetry.process import CannotServeError, Process
from lightrail.telemetry.queues import DETAILED_FAMILIES, QueueSelection
from lightrail.telemetry.running import Running
from lightrail.telemetry.shard import ShardCounts

HTTP_OWN_CONNECTIONS_MAX: Final[int] = 256
"""The same at the page with a process's own metrics and health, which Prometheus and probes read."""
HTTP_OWN_FILES_PART: Final[int] = 8
"""The same for connections to the page with a process's own metrics."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
LISTED_TO_MANAGERS: Final = (
    "names of queues are not public: request /metrics/detailed from a gateway, as a user who may manage all\n"
)
Ready = Callable[[], str | None]


async def start(
    host: str,
    port: int,
    metrics: CollectorRegistry,
    ready: Ready,
    *,
    running: Running | None = None,
    shard: ShardCounts | None = None,
    notice: Ready = lambda: None,
    may_list: Callable[[str], Awaitable[bool]] | None = None,
) -> tuple[web.AppRunner, int]:
    """Serve on ``host``:``port`` (0: a free one); returns (runner, bound port). End it: ``runner.cleanup()``.

    ``ready`` returns why the process doesn't serve, or None when it does; ``notice`` a remark on a process
    that serves, or None. With ``running``, all series carry the role and number of the process, and its
    metrics about the process itself are included. With ``shard``, /metrics/detailed has a series per queue;
    ``?queue=PREFIX`` selects queues. `may_list` decides by the header Authorization whether a client may read
    that page; without `may_list` every client may.
    """
    app = web.Application()
    if running is not None:
        running.ready = ready

    async def latest(request: web.Request) -> web.Response:
        if shard is not None:
            for _ in shard.summing():
                await asyncio.sleep(0)
        return _text(running.text(metrics) if running is not None else generate_latest(metrics).decode())

    async def detailed(request: web.Request) -> web.Response:
        if may_list is not None and not await may_list(request.headers.get("Authorization", "")):
            return web.Response(status=403, text=LISTED_TO_MANAGERS)
        if shard is None:
            return _text("")
        selection = QueueSelection(shard.queues, request.query.get("queue", ""))
        labels = running.labels if running is not None else {}
        # Ten thousand queues are a second of work; in a thread it yields to the loop every few milliseconds.
        return _text(await asyncio.to_thread(_series, selection, labels))

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def serving(_: web.Request) -> web.Response:
        reason = ready()
        if reason:
            return web.Response(text=f"{reason}\n", status=503)
        remark = notice()
        return web.Response(text=f"ready; {remark}\n" if remark else "ready\n")

    app.add_routes(
        [
            web.get("/metrics", latest),
            web.get("/metrics/detailed", detailed),
            web.get("/healthz", alive),
            web.get("/readyz", serving),
        ]
    )
    return await listen(app, host, port)


async def of_process(
    process: Process, metrics: CollectorRegistry, *, shard: ShardCounts | None = None
) -> tuple[web.AppRunner, Endpoint]:
    """Serves a process's page at the endpoint of the setting `metrics`, from the start of the process on.

    Families may be added to `metrics` later. Raises CannotServeError.
    """
    wanted = process.settings.metrics
    try:
        runner, port = await start(
            wanted.host,
            wanted.port,
            metrics,
            process.not_ready,
            running=process.running,
            shard=shard,
            notice=lambda: process.notice(),
            may_list=lambda shown: process.may_list(shown),
        )
    except OSError as error:
        raise CannotServeError(
            f"metrics can't be served on {wanted}: {error.strerror}; choose another with --metrics HOST:PORT"
        ) from None
    return runner, Endpoint(wanted.host, port)


async def listen(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serve an application; returns (runner, bound port)."""
    most = http_server.admitted(HTTP_OWN_CONNECTIONS_MAX, HTTP_OWN_FILES_PART)
    endpoints = [(Endpoint(host, port), None)]
    runner, (bound,) = await http_server.serve(app, Connections(most), endpoints, shared=False)
    return runner, bound


def _series(selection: QueueSelection, labels: dict[str, str]) -> str:
    return merge([(labels, generate_latest(registry(DETAILED_FAMILIES, selection)).decode())])


def _text(text: str) -> web.Response:
    return web.Response(body=text.encode(), headers={"Content-Type": TEXT})
