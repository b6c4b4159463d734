"""The gateway's process: HTTP for people and programs, health checks and Prometheus."""

import asyncio
import sys
from typing import Final

from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.joining import Joining, advertised, patiently, reachable_metrics
from lightrail.cluster.map import GATEWAYS
from lightrail.cluster.opening import listing_key
from lightrail.gateway.app import Gateway, open_services
from lightrail.gateway.idle_topics import IdleTopics
from lightrail.gateway.metrics import CONNECTION_FAMILIES
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Members
from lightrail.gateway.sweeper import sweep
from lightrail.gateway.websockets import WebSockets
from lightrail.model.endpoint import Endpoint
from lightrail.namespace.topic_uses import TopicUses
from lightrail.service_bus import gateway as service_bus
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry import exposition, http_server, process
from lightrail.telemetry.http_connection import Connections
from lightrail.telemetry.metrics import registry

HTTP_CONNECTIONS_MAX: Final[int] = 65_536
"""Connections of one gateway to HTTP clients, where the descriptors of its process allow as many."""
HTTP_FILES_PART: Final[int] = 2
"""1 / this of the descriptors is for a gateway's HTTP connections if the reserve would leave fewer."""


async def serve(process: process.Process) -> None:
    """Serves until the process is stopped."""
    settings = process.settings
    page_runner, page = await exposition.of_process(process, registry((), None))
    members = Members()
    process.on_message = members.update
    joining = await Joining.begin(process)
    coordinator = joining.coordinator
    joining.refuse_strangers(await patiently(process, coordinator.has_users))
    await joining.take_number(GATEWAYS)
    shards = await _connect(process, joining)
    if settings.etcd or not process.supervised:
        members.follow(shards.map, process.boot, joining.own.host)
    process.running.show(COORDINATOR_FAMILIES, coordinator.counts)
    health = _health(process, members, shards)
    health.listing_key = await patiently(process, lambda: listing_key(coordinator))
    admitted = Connections(http_server.admitted(HTTP_CONNECTIONS_MAX, HTTP_FILES_PART))
    services = open_services(
        settings=settings,
        coordinator=coordinator,
        shards=shards,
        members=members,
        health=health,
        sockets=process.sockets,
        map=shards.map,
        websockets=WebSockets(
            settings.amqp.reachable if process.supervised else None,
            await patiently(process, coordinator.secret),
            admitted,
            settings.proxy_protocol_from,
        ),
        hooks=service_bus.HOOKS,
    )
    gateway = Gateway(services)
    services.directory.refresh()
    await patiently(process, services.callers.refresh)
    loop = asyncio.get_running_loop()
    tls = process.running.serve_tls(settings, loop) if settings.https is not None else None
    health.show(CONNECTION_FAMILIES, admitted)
    # All gateways of the machine share these sockets.
    endpoints = ((settings.http, None), (settings.https, tls))
    runner, ports = await http_server.serve(gateway.application(), admitted, endpoints, shared=True)
    await shards.until_ready()
    await services.hooks.before_ready(services, process.replaces is not None)
    sweeping = asyncio.create_task(sweep(services))
    uses = TopicUses(services.coordinator, services.directory)
    topics = asyncio.create_task(IdleTopics(services, uses).run())
    try:
        here = Endpoint(settings.http.host, ports[0])
        await joining.register(
            http=str(Endpoint(advertised(settings), here.port)) if settings.etcd else str(here.reachable),
            metrics=reachable_metrics(settings, page),
        )
        process.report_ready(http=str(here), metrics=str(here.reachable))
        await process.until_stop()
    finally:
        sweeping.cancel()
        topics.cancel()
        services.receivers.close()
        await runner.cleanup()
        await page_runner.cleanup()
        await joining.leave()


def _health(process: process.Process, members: Members, shards: ShardConnections) -> Health:
    def not_ready() -> str | None:
        if process.supervised and not members.known:
            return "the supervisor has not listed the other processes yet"
        return process.not_ready() or shards.not_ready()

    return Health(process.id, members, not_ready, process.running)


async def _connect(process: process.Process, joining: Joining) -> ShardConnections:
    """Connections to all shards that are known now."""
    loop = asyncio.get_running_loop()
    shards = ShardConnections(joining.coordinator, loop, joining.wiring, name=process.name, boot=process.boot)
    shards.refresh()
    if not process.settings.etcd:
        for shard in range(await joining.coordinator.shards() or process.settings.shards):
            if shard not in shards.peers:
                shards.add(shard, process.shard_address(shard))
    return shards


if __name__ == "__main__":
    sys.exit(process.main("gateway", serve))
