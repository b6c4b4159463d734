"""The gateway's process: HTTP for people and programs, health checks and Prometheus."""

import asyncio
import os
import secrets
import sys

from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.gateway.app import Gateway
from lightrail.gateway.health import Health
from lightrail.gateway.listener import listen
from lightrail.gateway.members import Members
from lightrail.gateway.shards import Shards
from lightrail.gateway.sweeper import sweep
from lightrail.model.settings import Endpoint
from lightrail.model.tls import tls_context
from lightrail.telemetry import process


async def serve(process: process.Process) -> None:
    """Serve until told to stop."""
    settings = process.settings
    coordinator = await SqliteCoordinator.open(os.path.join(settings.data, FILE_NAME))
    members = Members()
    process.on_message = members.update
    shards = Shards(coordinator, asyncio.get_running_loop(), name=process.name, boot=secrets.randbits(32))
    shards.fleet.refresh()
    for shard in range(await coordinator.shards() or settings.shards):
        shards.add(shard, process.shard_address(shard))

    def not_ready() -> str | None:
        if process.supervised and not members.known:
            return "not yet told by the supervisor who else there is"
        return process.not_ready() or shards.not_ready()

    health = Health(process.id, members, not_ready)
    gateway = Gateway(
        settings=settings,
        coordinator=coordinator,
        shards=shards,
        members=members,
        health=health,
        sockets=process.sockets,
    )
    gateway.directory.refresh()
    await gateway.callers.refresh()
    tls = tls_context(settings) if settings.https is not None else None
    runner, ports = await listen(gateway.application(), (settings.http, None), (settings.https, tls))
    await shards.fleet.until_ready()
    sweeping = asyncio.create_task(sweep(gateway))
    try:
        here = Endpoint(settings.http.host, ports[0])
        process.report_ready(http=str(here), metrics=str(here.reachable))
        await process.until_stop()
    finally:
        sweeping.cancel()
        gateway.receivers.close()
        await runner.cleanup()
        await coordinator.close()


if __name__ == "__main__":
    sys.exit(process.main("gateway", serve))
