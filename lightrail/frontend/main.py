"""The frontend process, started by the supervisor or by `lightrail frontend`."""

import asyncio
import gc
import logging
import sys

from prometheus_client import CollectorRegistry

from lightrail import native

if __name__ == "__main__":
    # Before the modules that a message passes are imported.
    native.install()

from lightrail.amqp.compiled import COMPILED
from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.joining import Joining, patiently, reachable_metrics
from lightrail.cluster.map import FRONTENDS
from lightrail.frontend.auth import Authenticator
from lightrail.frontend.engine import Frontend
from lightrail.frontend.listener import Listener, listen
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint
from lightrail.service_bus import frontend as service_bus
from lightrail.telemetry import exposition
from lightrail.telemetry.frontend import FRONTEND_FAMILIES
from lightrail.telemetry.metrics import FamilyCollector, registry
from lightrail.telemetry.process import Process, main
from lightrail.wire.control import address as control_address

log = logging.getLogger("lightrail.frontend")

USERS_REFRESH_S = 1.0
"""How long new connections may be accepted without a user after the first user was defined."""
STOP_WAIT_S = 5.0
"""How long a stop waits for shards to answer, and for clients to close."""


async def serve(process: Process) -> None:
    """Serves until the process has to stop."""
    settings = process.settings
    metrics = registry((), None)
    runner, page = await exposition.of_process(process, metrics)
    joining = await Joining.begin(process)
    await joining.take_number(FRONTENDS)
    authenticator = await _authenticator(process, joining)
    frontend = await _frontend(process, joining, authenticator, metrics)
    try:
        control = frontend.listen_to_gateways(joining.wire or control_address(process.sockets, process.id))
    except OSError as error:
        raise joining.cannot_bind(error) from None
    process.running.show(COORDINATOR_FAMILIES, joining.coordinator.counts)
    listeners = await _listeners(process, frontend)
    tasks = [asyncio.create_task(_refresh(authenticator)), asyncio.create_task(_poll(frontend))]
    endpoints = [str(Endpoint(host, each.sockets[0].getsockname()[1])) for host, each in listeners]
    details = {"amqp": endpoints[0], "metrics": str(page), "control": joining.reachable(control)}
    if settings.amqps is not None:
        details["amqps"] = endpoints[1]
    await joining.register(address=details["control"], metrics=reachable_metrics(settings, page))
    process.check = frontend.not_ready
    process.report_ready(**details)
    await process.until_stop()
    refresh, poll = tasks
    refresh.cancel()
    for _, listener in listeners:
        listener.close()
    await frontend.stop(STOP_WAIT_S)
    poll.cancel()
    await runner.cleanup()
    await joining.leave()


async def _authenticator(process: Process, joining: Joining) -> Authenticator:
    """Checks clients by the users that are defined now."""
    authenticator = Authenticator(
        joining.coordinator,
        process.settings,
        service_bus.HOOKS.anonymous_mechanisms,
        service_bus.HOOKS.keys,
    )
    await patiently(process, authenticator.refresh)
    joining.refuse_strangers(authenticator.has_users)
    if not authenticator.has_users:
        log.warning(
            "no user is defined: every client on this machine is accepted, with any password; see "
            "`lightrail-admin user add`"
        )
    return authenticator


async def _frontend(
    process: Process, joining: Joining, authenticator: Authenticator, metrics: CollectorRegistry
) -> Frontend:
    """The frontend, connected to the shards that are known."""
    settings = process.settings
    frontend = Frontend(
        name=process.name,
        boot=process.boot,
        settings=settings,
        coordinator=joining.coordinator,
        authenticator=authenticator,
        loop=asyncio.get_running_loop(),
        wiring=joining.wiring,
        hooks=service_bus.HOOKS,
    )
    # `serve` starts a gateway beside its frontends.
    frontend.http.gateway = settings.http.reachable if process.supervised else None
    log.info(native.described())
    frontend.counts.scanner_compiled = int(COMPILED)
    if not COMPILED:
        log.warning("no compiled code reads transfers: messages cost more CPU (docs/operate/running.md)")
    metrics.register(FamilyCollector(FRONTEND_FAMILIES, frontend.counts))
    await patiently(process, frontend.lifetimes.sweep)
    await patiently(process, frontend.sole_connections.sweep)
    frontend.shard_connections.refresh()
    if not settings.etcd:
        for shard in range(await joining.coordinator.shards() or settings.shards):
            if shard not in frontend.shards:
                frontend.add_shard(shard, process.shard_address(shard))
    return frontend


async def _listeners(process: Process, frontend: Frontend) -> list[tuple[str, Listener]]:
    """The listening sockets with their hosts: plain, and TLS where it is served."""
    settings = process.settings
    loop = asyncio.get_running_loop()
    tls = process.running.serve_tls(settings, loop) if settings.amqps is not None else None
    # Batches and events are freed by reference counting; full collections would only walk idle connections.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    listeners = [(settings.amqp.host, await listen(frontend, settings.amqp, None))]
    if settings.amqps is not None:
        listeners.append((settings.amqps.host, await listen(frontend, settings.amqps, tls)))
    return listeners


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
                log.warning("the users can't be read; this is tried again: %s", error)
            failed = True


if __name__ == "__main__":
    sys.exit(main("frontend", serve))
