"""Leases: registrations of this process under its lease in etcd, which a task refreshes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError, KeySpace, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.etcd.calls import Calls
from lightrail.cluster.etcd.channels import LeaseLostError
from lightrail.cluster.etcd.client import IDENTITY
from lightrail.cluster.keyed import Registrations

log = logging.getLogger("lightrail.cluster.etcd.leases")


class LeasedRegistrations(Registrations):
    """Registrations that are written again when the lease was lost.

    Args:
        transact: writes entries under a lease, and returns the revision.
    """

    def __init__(
        self, space: KeySpace, calls: Calls, transact: Callable[[Sequence[Write], int], Awaitable[int]]
    ) -> None:
        super().__init__(space)
        self._calls = calls
        self._times = calls.times
        self._transact = transact
        self._lease = 0
        self._began = 0
        """Revision at which the last accepted history began: older registrations are outdated."""
        self._is_missing = False
        """The lease was lost, and not all of its registrations are written again."""
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts to refresh the lease."""
        self._keeper = loop.create_task(self._keep())

    async def close(self) -> None:
        """Deletes the registrations if etcd answers; otherwise their lease expires."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        lease, self._lease = self._lease, 0
        self.held.clear()
        if lease:
            try:
                await self._calls.revoke(lease)
            except CoordinatorError as error:
                log.info("the lease of this process is left to expire: %s", error)

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], guard: int | None = None
    ) -> None:
        async with self._lock:
            await super().register(key, value, displaced, guard)

    async def unregister(self, key: str) -> None:
        async with self._lock:
            await super().unregister(key)

    async def _write(self, key: str, value: str, guard: int | None) -> int:
        if not self._lease:
            self._lease = await self._grant()
        try:
            return await self._transact([Write(key, value, guard)], self._lease)
        except LeaseLostError:
            # Other registrations under this lease are written again at the next refresh.
            self._is_missing = True
            self._lease = await self._grant()
            return await self._transact([Write(key, value, guard)], self._lease)

    # --- from the view ------------------------------------------------------------------------------------

    def changed(self, entries: Sequence[Entry]) -> None:
        """Handles changed entries of the view."""
        for entry in entries if self.held else ():
            self.look_for_another(entry)
            if entry.value is None and entry.key in self.held:
                # The lease may still exist, if etcd has lost the entry alone.
                self._is_missing = True

    def new_history(self, revision: int) -> None:
        """A new history was accepted at a revision.

        Entries under the keys of this process are older than the process; only later ones may displace it.
        """
        for key, registration in self.held.items():
            self.held[key] = registration._replace(revision=revision)
        self._is_missing = True
        self._began = revision

    # --- the lease ----------------------------------------------------------------------------------------

    async def _grant(self) -> int:
        until = time.monotonic() + self._times.call
        return await self._calls.run_for_lease(lambda: self._calls.client.grant(self._times.lease, until))

    async def _refresh(self, within_s: float) -> bool:
        """Refreshes the lease; returns False if it was lost. A process without a lease sends a small request
        instead."""
        lease, until = self._lease, time.monotonic() + within_s
        client = self._calls.client
        if not lease:
            await self._calls.run_for_lease(lambda: client.get(IDENTITY, until))
            return True
        return await self._calls.run_for_lease(lambda: client.refresh(lease, until))

    async def _keep(self) -> None:
        """Refreshes the lease; creates a new one, and registers again, if it was lost."""
        third = self._times.lease / 3
        reached = True
        while True:
            soon = not reached or self._calls.full is not None
            await asyncio.sleep(min(third, self._times.pause_max) if soon else third)
            try:
                if not await self._refresh(third):
                    log.warning("the lease of this process was lost; it registers again")
                    self._is_missing = True
                    async with self._lock:
                        self._lease = await self._grant()
                if self._is_missing:
                    async with self._lock:
                        await self._register_again()
                if self._calls.full is not None:
                    with suppress(CoordinatorFullError):
                        await self._calls.look_for_space(third)
            except CoordinatorError as error:
                if reached and self._lease:
                    log.warning("the registration of this process can't be refreshed: %s", error)
                reached = False
            else:
                if not reached and self._lease:
                    log.info("etcd answers again; this process is registered")
                reached = True

    async def _register_again(self) -> None:
        others = 0
        for key, registration in list(self.held.items()):
            there = await self._calls.entry(key)
            if self.held.get(key) is not registration:
                continue
            if (
                there is not None
                and there.value != registration.value
                and not (self._began and there.revision <= self._began)
            ):
                # The view decides whether it is a later one: an etcd that was set back has the registrations
                # of former processes again, and is not followed.
                found = await self._space.entry(key)
                if found is not None:
                    self.look_for_another(found)
                others += key in self.held
                continue
            guard = there.revision if there is not None else 0
            revision = await self._transact([Write(key, registration.value, guard)], self._lease)
            self.held[key] = registration._replace(revision=revision)
        self._is_missing = others > 0
