"""An etcd that is set back to an earlier state while all run, and what its processes make of that (ADR 14).

Each process has the product's view of it, doubts a list that does not continue its history, goes on with
what it knows, and writes nothing until an operator has put back what is lost.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

from lightrail.cluster.coordinator import CoordinatorError, PutBack, SetBack, Write
from lightrail.cluster.entries import HISTORY, Entry, News
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from lightrail.cluster.etcd.view import View
from lightrail.cluster.history import History, Version, doubt
from tests.support.sim.coordinator import LEASE_S, TIMEOUT_S, Etcd, Lease, SimCoordinator
from tests.support.sim.loop import OUTSIDE
from tests.support.sim.network import Host


class Snapshot(NamedTuple):
    """What an etcd had at one moment."""

    revision: int
    entries: dict[str, Entry]
    log: list[Entry]
    leases: dict[str, Lease]
    known: list[Lease]
    """All leases that there were, also those without entries."""


class RestorableEtcd(Etcd):
    """The service."""

    generation = 0
    """How often it was set back."""

    def save(self) -> Snapshot:
        known = [*dict.fromkeys([*(view.lease for view in self.views), *self.leases.values()])]
        return Snapshot(self.revision, dict(self.entries), [*self.log], dict(self.leases), known)

    def set_back(self, saved: Snapshot) -> None:
        """It has the state of then, and its next revision is that after it."""
        self.generation += 1
        self.revision, self.entries, self.log = saved.revision, dict(saved.entries), [*saved.log]
        # Leases that have ended since then, with their entries, end once more.
        again = {lease: Lease() for lease in saved.known if lease.is_over}
        self.leases = {key: again.get(lease, lease) for key, lease in saved.leases.items()}
        for lease in again.values():
            self.loop.call_later(LEASE_S, self.expire, lease, context=OUTSIDE)
        for view in self.views:
            if view.lease not in saved.known:
                view.lease.is_over = True
            self.loop.call_later(self.latency_s(), view.look, context=view.host.context)

    def versions(self, revision: int) -> list[Version] | None:
        """All entries at a revision; None for one that it has not reached."""
        if revision > self.revision:
            return None
        found: dict[str, Entry] = {each.key: each for each in self.log if each.revision <= revision}
        return [(key, each.created, each.revision) for key, each in found.items() if each.value is not None]

    def everything(self) -> list[Entry]:
        return [each for each in self.entries.values() if each.value is not None]


class DoubtingCoordinator(SimCoordinator):
    """What one process sees of it."""

    _etcd: RestorableEtcd

    def __init__(self, etcd: RestorableEtcd, host: Host) -> None:
        self._view_of_it = View()
        self._generation = etcd.generation
        self._set_back: SetBack | None = None
        super().__init__(etcd, host)

    # --- the view ----------------------------------------------------------------------------------------

    def _take_in(self) -> bool:
        etcd, view = self._etcd, self._view_of_it
        if self._generation == etcd.generation and view.revision:
            log = etcd.log[self._seen :]
            changed = view.take_changes([(e.key, e.value, e.created, e.revision) for e in log], etcd.revision)
        else:
            found = self._list()
            if found is None:
                return False
            changed = found
        self._generation, self._seen = etcd.generation, len(etcd.log)
        for entry in changed if self._registrations.held else ():
            self._registrations.look_for_another(entry)
            # The lease may still exist, if etcd has lost the entry alone.
            self._is_unregistered |= entry.value is None and entry.key in self._registrations.held
        self._revision = view.revision
        self._arrived.set()
        self._arrived = asyncio.Event()
        return bool(changed)

    def _list(self) -> list[Entry] | None:
        """The changes that a list of all entries shows; None if it is doubted. See etcd/following.py."""
        etcd, view = self._etcd, self._view_of_it
        entries, new_history = etcd.everything(), False
        if view.revision:
            now = History.decode(next((each for each in entries if each.key == HISTORY), None))
            new_history = now.continues(History.decode(view.entries.get(HISTORY)))
        if view.revision and not new_history:
            known_at, then = view.known_at, None
            if etcd.revision < view.revision:
                known_at = view.revision
            else:
                then = etcd.versions(known_at)
            reason = doubt(view.entries, known_at, entries, etcd.revision, then)
            if reason:
                self._set_back = SetBack(known_at, etcd.revision, reason)
                return None
        self._set_back = None
        if new_history:
            self._begin(etcd.revision)
        return view.take_list(entries, etcd.revision, new_history=new_history)

    def _begin(self, revision: int) -> None:
        """See LeasedRegistrations.new_history of etcd/leases.py."""
        held = self._registrations.held
        for key, registration in held.items():
            held[key] = registration._replace(revision=revision)
        self._is_unregistered, self._began = True, revision

    async def _until_seen(self, revision: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await super()._until_seen(revision)

    def _changes(self, since: int) -> News | None:
        return self._view_of_it.news(since)

    def _revision_of(self, key: str) -> int:
        found = self._view_of_it.entries.get(key)
        return found.revision if found is not None else 0

    async def entry(self, key: str) -> Entry | None:
        return self._view_of_it.entries.get(key)

    async def entries(self, prefix: str) -> list[Entry]:
        return sorted(each for key, each in self._view_of_it.entries.items() if key.startswith(prefix))

    # --- an etcd that was set back -------------------------------------------------------------------------

    @property
    def set_back(self) -> SetBack | None:
        return self._set_back

    async def transact(self, writes: Sequence[Write], lease: Lease | None = None) -> int:
        if self._set_back is not None:
            raise CoordinatorError(f"nothing was written: {self._set_back.reason}")
        return await super().transact(writes, lease)

    async def put_back(self) -> PutBack:
        """The program's own, which lists and writes this etcd."""

        async def run(work: Any) -> Any:
            await self._travel()
            return work()

        async def write(writes: Sequence[Write], _: int, *, putting_back: bool) -> int:
            assert putting_back
            return await SimCoordinator.transact(self, writes)

        operator: Any = SimpleNamespace(
            _set_back=self._set_back,
            _view=self._view_of_it,
            _times=SimpleNamespace(call=TIMEOUT_S),
            _calls=SimpleNamespace(run=run),
            _client=SimpleNamespace(everything=lambda until: (self._etcd.everything(), self._etcd.revision)),
            _transact=write,
        )
        return await EtcdCoordinator.put_back(operator)
