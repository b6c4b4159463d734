"""``lightrail frontend``, ``shard`` and ``gateway``: one process of a broker, started separately.

Processes that share a data directory, or a cluster in etcd, form one broker, however they are started.
"""

import asyncio
import importlib
import logging
import sys

from lightrail import native
from lightrail.cli.serve import ServeError, refuse_without_users, say_if_interpreted
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.opening import open_coordinator
from lightrail.model.settings import Settings
from lightrail.telemetry import directories, logs, process
from lightrail.telemetry.interpreter import OPTIMISED, UNOPTIMISED

log = logging.getLogger(__name__)


def run(
    role: str,
    id: int | None,
    settings: Settings,
    *,
    optimised: bool = OPTIMISED,
    compiled: native.MachineCode | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status: 0 after an orderly end, 1 if it could not serve.

    ``id`` None: the process chooses its number. ``compiled`` None: machine code is looked for.
    """
    logs.configure(role, settings.log_level, settings.log_format)
    if not optimised:
        log.warning(UNOPTIMISED)
    if role in native.ROLES:
        say_if_interpreted(compiled or native.find())
    try:
        directories.make_data_directory(settings.data)
        if settings.etcd:
            # etcd may not be reachable yet: the process waits for it, and checks for users later.
            settings = settings.resolved()
        else:
            settings, has_users = asyncio.run(_prepare(role, id or 0, settings))
            if role != "shard":
                refuse_without_users(settings, has_users)
        serve: process.Serve = importlib.import_module(f"lightrail.{role}.main").serve
        return process.alone(role, id, settings, serve)
    except (ServeError, CoordinatorError, directories.DirectoryRefusedError) as error:
        print(f"lightrail {role}: {error}", file=sys.stderr)
        return 1


async def _prepare(role: str, id: int, settings: Settings) -> tuple[Settings, bool]:
    """Settings with the number of shards in the data directory; a shard adds itself."""
    coordinator = await open_coordinator(settings)
    try:
        known = await coordinator.shards()
        if role == "shard" and id >= known:
            known = id + 1
            await coordinator.set_shards(known)
        return settings.resolved(known), await coordinator.has_users()
    finally:
        await coordinator.close()
