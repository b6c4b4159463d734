"""Calls: the threads of this process's calls to etcd, their counters, and whether etcd has space."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from lightrail.cluster.coordinator import (
    ConflictError,
    CoordinatorError,
    CoordinatorFullError,
    CoordinatorRefusedError,
    Write,
)
from lightrail.cluster.counts import CoordinatorCounts
from lightrail.cluster.entries import Entry
from lightrail.cluster.etcd.channels import EtcdTimes, LeaseLostError, NotAskedError
from lightrail.cluster.etcd.client import IDENTITY, EtcdClient
from lightrail.model import limits

log = logging.getLogger("lightrail.cluster.etcd.calls")

_NO_REVISION: Final = 1
"""Etcd's revision before anything is written to it, so that no entry has it."""
Answer = TypeVar("Answer")


class Calls:
    """Runs blocking calls of one client, a few at a time."""

    def __init__(
        self, client: EtcdClient, loop: asyncio.AbstractEventLoop, times: EtcdTimes, counts: CoordinatorCounts
    ) -> None:
        self.client = client
        self.times = times
        self.full: str | None = None
        """See Coordinator.full."""
        self._loop = loop
        self._counts = counts
        self._threads = ThreadPoolExecutor(limits.ETCD_THREADS, thread_name_prefix="etcd-write")
        # A separate thread: a registration must not wait behind writes.
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix="etcd-lease")
        self._waiting = 0

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Runs a call. Raises CoordinatorError, also if limits.ETCD_CALLS_WAITING calls wait already."""
        if self._waiting >= limits.ETCD_CALLS_WAITING:
            raise CoordinatorError(f"{self._waiting} writes wait for etcd already: nothing was written")
        self._waiting += 1
        try:
            return await self._counted(self._threads, work)
        finally:
            self._waiting -= 1

    async def run_for_lease(self, work: Callable[[], Answer]) -> Answer:
        """Runs a call in the thread that keeps the lease."""
        return await self._counted(self._lease_thread, work)

    async def entry(self, key: str) -> Entry | None:
        """An entry as it is in etcd now, even if the view of this process is older."""
        until = time.monotonic() + self.times.call
        return await self.run(lambda: self.client.get(key, until))

    async def entries(self, keys: Sequence[str]) -> list[Entry | None]:
        """The same for different keys, WRITES_MAX at most, by one call."""
        until = time.monotonic() + self.times.call
        return await self.run(lambda: self.client.get_all(keys, until))

    async def revoke(self, lease: int) -> None:
        """Ends a lease because the process ends; this call is not counted."""
        until = time.monotonic() + self.times.attempt
        await self._loop.run_in_executor(self._lease_thread, lambda: self.client.revoke(lease, until))

    def stop(self) -> None:
        """Waits for the threads to end."""
        self._threads.shutdown()
        self._lease_thread.shutdown()

    async def _counted(self, threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        """Runs a call to etcd, and counts whether etcd has answered."""
        try:
            answer = await self._loop.run_in_executor(threads, work)
        except NotAskedError:
            raise
        except CoordinatorFullError as error:
            self._counts.heard()
            self._has_no_space(str(error))
            raise
        except (ConflictError, CoordinatorRefusedError, LeaseLostError):
            # These errors are answers of etcd.
            self._counts.heard()
            raise
        except CoordinatorError:
            self._counts.failed()
            raise
        self._counts.heard()
        return answer

    # --- an etcd without space ----------------------------------------------------------------------------

    def _has_no_space(self, reason: str) -> None:
        if self.full is None:
            log.error("%s; the known state is used, and writes of this process wait", reason)
        self.full = reason
        self._counts.full = 1

    def has_space(self) -> None:
        """Notes that a write succeeded."""
        if self.full is not None:
            log.info("etcd accepts writes again")
        self.full = None
        self._counts.full = 0

    async def look_for_space(self, within_s: float) -> None:
        """Sends etcd a write that changes nothing, which is refused until there is space again."""
        until = time.monotonic() + within_s
        # No entry has revision 1, at which etcd begins: the answer is a conflict, or that there is no space.
        never = Write(IDENTITY, "", _NO_REVISION)
        with suppress(ConflictError):
            await self.run_for_lease(lambda: self.client.transact([never], until, 0))
        self.has_space()
