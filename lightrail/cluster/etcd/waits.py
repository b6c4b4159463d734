"""Waits: writers that wait until the view of this process has their write, or the write that they conflicted
with."""

import asyncio
import heapq
import logging
from collections.abc import Callable

from lightrail.cluster.etcd.channels import EtcdTimes
from lightrail.cluster.etcd.view import View

log = logging.getLogger("lightrail.cluster.etcd.waits")


class ViewWaits:
    """Waits of at most `times.behind` seconds each.

    Args:
        problem: returns why the view does not follow etcd now, or an empty text; for the log.
    """

    def __init__(
        self, view: View, loop: asyncio.AbstractEventLoop, times: EtcdTimes, problem: Callable[[], str]
    ) -> None:
        self._view = view
        self._loop = loop
        self._times = times
        self._problem = problem
        self._behind: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap by revision."""
        self._behind_count = 0
        self._stale: list[tuple[str, int, asyncio.Future[None]]] = []

    def wake(self) -> None:
        """Ends the waits whose revision the view has reached."""
        while self._behind and self._behind[0][0] <= self._view.revision:
            _, _, future = heapq.heappop(self._behind)
            if not future.done():
                future.set_result(None)
        for key, guard, future in self._stale:
            if self._revision_of(key) != guard and not future.done():
                future.set_result(None)

    async def seen(self, revision: int) -> None:
        """Waits until the view has reached a revision."""
        if self._view.revision >= revision:
            return
        future = self._loop.create_future()
        self._behind_count += 1
        heapq.heappush(self._behind, (revision, self._behind_count, future))
        await self._wait(future)

    async def seen_another(self, key: str, guard: int) -> None:
        """Waits until the view has another revision of a key than the writer's guard."""
        if self._revision_of(key) != guard:
            return
        waiting = (key, guard, self._loop.create_future())
        self._stale.append(waiting)
        try:
            await self._wait(waiting[2])
        finally:
            self._stale.remove(waiting)

    def _revision_of(self, key: str) -> int:
        found = self._view.entries.get(key)
        return found.revision if found is not None else 0

    async def _wait(self, future: "asyncio.Future[None]") -> None:
        try:
            async with asyncio.timeout(self._times.behind):
                await future
        except TimeoutError:
            why = self._problem() or "etcd is slow"
            log.warning("a write to etcd is not in this process's view yet: %s", why)
