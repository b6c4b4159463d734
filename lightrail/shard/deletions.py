"""Deletions: names whose last consumer has detached are deleted in the directory."""

import asyncio
import logging
from collections.abc import Iterable

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service

log = logging.getLogger("lightrail.shard.deletions")


class Deletions:
    """The deletions under way; the shard requests a failed one again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, names: Iterable[Name]) -> None:
        for name in names:
            task = asyncio.create_task(self._delete(name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Waits for all deletions."""
        await asyncio.gather(*self._tasks)

    async def _delete(self, record: Name) -> None:
        try:
            await self._service.expire(record)
        except CoordinatorError as error:
            log.warning("%s has lost its last consumer and can't be deleted yet: %s", record.name, error)
