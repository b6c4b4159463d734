"""The frontend process, started by the supervisor or by `lightrail frontend`."""

import asyncio
import gc
import logging
import os
import secrets
import sys

from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.frontend.auth import Authenticator
from lightrail.frontend.engine import Frontend
from lightrail.frontend.listener import listen
from lightrail.model import limits
from lightrail.model.settings import Endpoint
from lightrail.model.tls import tls_context
from lightrail.telemetry import exposition
from lightrail.telemetry.families import FRONTEND_FAMILIES
from lightrail.telemetry.metrics import registry
from lightrail.telemetry.process import Process, main
from lightrail.wire.control import address as control_address

log = logging.getLogger("lightrail.frontend")

USERS_REFRESH_S = 1.0
"""How long a change of the users file may go unnoticed by new connections."""
STOP_WAIT_S = 5.0
"""How long the end waits for answers to what was sent and for the peers' closes."""


async def serve(process: Process) -> None:
    """Serves until the process shall stop."""
    settings = process.settings
    loop = asyncio.get_running_loop()
    coordinator = await SqliteCoordinator.open(os.path.join(settings.data, FILE_NAME))
    authenticator = Authenticator(coordinator, settings)
    await authenticator.refresh()
    if not authenticator.has_users:
        log.warning("no user is defined: everybody on this machine gets in; see `lightrail-admin user add`")
    frontend = Frontend(
        name=process.name,
        boot=secrets.randbits(32),
        settings=settings,
        coordinator=coordinator,
        authenticator=authenticator,
        loop=loop,
    )
    await frontend.lifetimes.sweep()
    frontend.fleet.refresh()
    for shard in range(await coordinator.shards() or settings.shards):
        frontend.add_shard(shard, process.shard_address(shard))
    frontend.listen_to_gateways(control_address(process.sockets, process.id))
    runner, metrics_port = await exposition.start(
        settings.metrics.host,
        settings.metrics.port,
        registry(FRONTEND_FAMILIES, frontend.counts),
        lambda: process.not_ready() or frontend.not_ready(),
    )
    tls = tls_context(settings) if settings.amqps is not None else None
    # Batches and events die by reference counting; full collections would only walk idle connections.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    servers = [await listen(frontend, settings.amqp, None)]
    if settings.amqps is not None:
        servers.append(await listen(frontend, settings.amqps, tls))
    refresh = asyncio.create_task(_refresh(authenticator))
    poll = asyncio.create_task(_poll(frontend))
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    details = {
        "amqp": str(Endpoint(settings.amqp.host, ports[0])),
        "metrics": str(Endpoint(settings.metrics.host, metrics_port)),
    }
    if settings.amqps is not None:
        details["amqps"] = str(Endpoint(settings.amqps.host, ports[1]))
    process.report_ready(**details)
    await process.until_stop()
    refresh.cancel()
    for server in servers:
        server.close()
    await frontend.stop(STOP_WAIT_S)
    poll.cancel()
    await runner.cleanup()
    await coordinator.close()


async def _poll(frontend: Frontend) -> None:
    while True:
        await asyncio.sleep(limits.DIRECTORY_POLL_MS / 1000)
        frontend.poll()


async def _refresh(authenticator: Authenticator) -> None:
    while True:
        await asyncio.sleep(USERS_REFRESH_S)
        try:
            await authenticator.refresh()
        except Exception as error:
            log.warning("the users could not be read: %s", error)


if __name__ == "__main__":
    sys.exit(main("frontend", serve))
