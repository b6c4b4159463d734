"""Deletions: names whose last consumer has detached are deleted in the directory; and names that are kept."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service

log = logging.getLogger("lightrail.shard.queues.deletions")


class Deletions:
    """The deletions under way; the shard requests a failed one again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, names: Iterable[Name]) -> None:
        for name in names:
            self._spawn(self._delete(name))

    def keep(self, names: Iterable[Name]) -> None:
        """Keeps names that a lost frontend was about to delete, unless it has deleted them."""
        for name in names:
            self._spawn(self._keep(name))

    async def close(self) -> None:
        """Waits for all deletions."""
        await asyncio.gather(*self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, record: Name) -> None:
        try:
            await self._service.keep(record)
        except CoordinatorError as error:
            log.warning(
                "%s stays closed: whether a lost frontend deletes it is not known: %s", record.name, error
            )

    async def _delete(self, record: Name) -> None:
        try:
            await self._service.expire(record)
        except CoordinatorError as error:
            log.warning("%s has lost its last consumer and can't be deleted yet: %s", record.name, error)
