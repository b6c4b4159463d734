"""``lightrail frontend``, ``shard`` and ``gateway``: one process of a broker, started by hand.

Processes that share a data directory are one broker, whoever starts them.
"""

import asyncio
import importlib
import os
import sys

from lightrail.cli.serve import Refused, refuse_without_users
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.model.settings import Settings
from lightrail.telemetry import directories, process


def run(role: str, id: int, settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; the exit status: 0 in order, 1 when it could not serve."""
    try:
        directories.make_data_directory(settings.data)
        settings, has_users = asyncio.run(_prepare(role, id, settings))
        if role != "shard":
            refuse_without_users(settings, has_users)
        serve: process.Serve = importlib.import_module(f"lightrail.{role}.main").serve
        return process.alone(role, id, settings, serve)
    except (Refused, CoordinatorError, directories.DirectoryRefused) as error:
        print(f"lightrail {role}: {error}", file=sys.stderr)
        return 1


async def _prepare(role: str, id: int, settings: Settings) -> tuple[Settings, bool]:
    """Settings with the number of shards that the data directory knows; a shard makes itself known."""
    coordinator = await SqliteCoordinator.open(os.path.join(settings.data, FILE_NAME))
    try:
        known = await coordinator.shards()
        if role == "shard" and id >= known:
            known = id + 1
            await coordinator.set_shards(known)
        return settings.resolved(known), await coordinator.has_users()
    finally:
        await coordinator.close()
