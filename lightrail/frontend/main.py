"""The frontend process, started by the supervisor or by `lightrail frontend`."""

import asyncio
import gc
import logging
import sys

import zmq

from lightrail.amqp.compiled import COMPILED
from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.joining import Joining, patiently, reachable_metrics
from lightrail.cluster.map import FRONTENDS
from lightrail.frontend.auth import Authenticator
from lightrail.frontend.engine import Frontend
from lightrail.frontend.listener import listen
from lightrail.model import limits
from lightrail.model.settings import Endpoint
from lightrail.model.tls import tls_context
from lightrail.telemetry import exposition
from lightrail.telemetry.frontend import FRONTEND_FAMILIES
from lightrail.telemetry.metrics import FamilyCollector, registry
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
    metrics = registry((), None)
    runner, page = await exposition.of_process(process, metrics)
    joining = await Joining.begin(process)
    coordinator = joining.coordinator
    await joining.take_number(FRONTENDS)
    authenticator = Authenticator(coordinator, settings)
    await patiently(process, authenticator.refresh)
    joining.refuse_strangers(authenticator.has_users)
    if not authenticator.has_users:
        log.warning("no user is defined: everybody on this machine gets in; see `lightrail-admin user add`")
    frontend = Frontend(
        name=process.name,
        boot=process.boot,
        settings=settings,
        coordinator=coordinator,
        authenticator=authenticator,
        loop=loop,
        key=joining.key,
    )
    frontend.counts.scanner_compiled = int(COMPILED)
    if not COMPILED:
        log.warning("no compiled code reads transfers: messages cost more CPU (docs/operate/running.md)")
    metrics.register(FamilyCollector(FRONTEND_FAMILIES, frontend.counts))
    await patiently(process, frontend.lifetimes.sweep)
    frontend.shard_connections.refresh()
    if not settings.etcd:
        for shard in range(await coordinator.shards() or settings.shards):
            if shard not in frontend.shards:
                frontend.add_shard(shard, process.shard_address(shard))
    try:
        control = frontend.listen_to_gateways(joining.wire or control_address(process.sockets, process.id))
    except zmq.ZMQError as error:
        raise joining.cannot_bind(error) from None
    process.running.show(COORDINATOR_FAMILIES, coordinator.counts)
    if settings.amqps is not None and settings.tls_certificate is not None:
        process.running.serves_with(settings.tls_certificate)
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
        "metrics": str(page),
        "control": joining.reachable(control),
    }
    if settings.amqps is not None:
        details["amqps"] = str(Endpoint(settings.amqps.host, ports[1]))
    await joining.register(address=details["control"], metrics=reachable_metrics(settings, page))
    process.check = frontend.not_ready
    process.report_ready(**details)
    await process.until_stop()
    refresh.cancel()
    for server in servers:
        server.close()
    await frontend.stop(STOP_WAIT_S)
    poll.cancel()
    await runner.cleanup()
    await joining.leave()


async def _poll(frontend: Frontend) -> None:
    while True:
        await asyncio.sleep(limits.DIRECTORY_POLL_MS / 1000)
        frontend.poll()


async def _refresh(authenticator: Authenticator) -> None:
    failed = False
    while True:
        await asyncio.sleep(USERS_REFRESH_S)
        try:
            await authenticator.refresh()
            failed = False
        except Exception as error:
            if not failed:
                log.warning("the users can't be read, tried again from now on: %s", error)
            failed = True


if __name__ == "__main__":
    sys.exit(main("frontend", serve))
