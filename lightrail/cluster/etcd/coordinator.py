"""EtcdCoordinator: the key space of a cluster in etcd, below ``/lightrail/CLUSTER/``.

Imported only if etcd is used: the etcd3 package, gRPC and protobuf cost memory. Never fork after it was
opened.

A thread lists and watches entries (following.py) and passes them to the loop, which has the view (view.py):
`news`, `entry` and `entries` are answered from the view, also while etcd cannot be reached. Writes run in a
few threads (calls.py), and end when the view has seen them (`ViewWaits`). A task keeps the lease of this
process's registrations (leases.py), or pings etcd if there are none, so that `counts` soon shows that etcd
cannot be reached.
"""

import asyncio
import heapq
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from lightrail.cluster.coordinator import (
    WRITES_MAX,
    ConflictError,
    CoordinatorError,
    NotSetBackError,
    PutBack,
    SetBack,
    Write,
)
from lightrail.cluster.entries import HISTORY, Entry, News
from lightrail.cluster.etcd.calls import Calls
from lightrail.cluster.etcd.channels import EtcdSettings, EtcdTimes
from lightrail.cluster.etcd.client import IDENTITY, EtcdClient, Identity, identify
from lightrail.cluster.etcd.following import Follower, explained
from lightrail.cluster.etcd.grouping import GroupedReads, Grouping
from lightrail.cluster.etcd.leases import LeasedRegistrations
from lightrail.cluster.etcd.view import Change, View
from lightrail.cluster.history import History, restoring
from lightrail.cluster.keyed import KeyedCoordinator

log = logging.getLogger("lightrail.cluster.etcd")


@dataclass(eq=False, repr=False)
class ViewWaits:
    """Writers that wait until the view has their write, or the write that theirs conflicted with.

    Each wait takes at most `times.behind` seconds.

    Args:
        problem: returns why the view does not follow etcd now, or an empty text; for the log.
    """

    _view: View
    _loop: asyncio.AbstractEventLoop
    _times: EtcdTimes
    _problem: Callable[[], str]
    _behind: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    """A heap by revision."""
    _behind_count: int = 0
    _stale: list[tuple[str, int, asyncio.Future[None]]] = field(default_factory=list)

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


class EtcdCoordinator(KeyedCoordinator):
    """See the port for its methods. Create it with ``await EtcdCoordinator.open(settings)``."""

    def __init__(self, settings: EtcdSettings, loop: asyncio.AbstractEventLoop, times: EtcdTimes) -> None:
        super().__init__()
        self._times = times
        self._loop = loop
        self._client = EtcdClient(settings, times)
        self._calls = Calls(self._client, loop, times, self.counts)
        self._grouping = Grouping(self._call, loop, times.call)
        self._reading = GroupedReads(self._calls.entries, loop)
        self._leases = self._registrations = LeasedRegistrations(self, self._calls, self._register)
        self._identity = Identity("", b"")
        self._view = View()
        self._has_view = asyncio.Event()
        self._follower = Follower(settings, times, loop, self._view, self)
        self._waits = ViewWaits(self._view, loop, times, lambda: self._follower.problem)
        self._set_back: SetBack | None = None

    @classmethod
    async def open(
        cls,
        settings: EtcdSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        wait_s: float = 10.0,
        times: EtcdTimes | None = None,
    ) -> "EtcdCoordinator":
        """Reads all entries; the first process creates the identity of the cluster.

        Raises:
            CoordinatorError: etcd did not answer within `wait_s` seconds, or it refused.
        """
        coordinator = cls(settings, loop or asyncio.get_running_loop(), times or EtcdTimes())
        client, follower = coordinator._client, coordinator._follower
        try:
            until = time.monotonic() + wait_s
            identity = await coordinator._calls.run(lambda: identify(client, settings.prefix, until))
            coordinator._identity = identity
            follower.start(identity)
            try:
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    await coordinator._has_view.wait()
            except TimeoutError:
                where = ", ".join(settings.endpoints)
                raise CoordinatorError(f"etcd at {where} can't be read: {follower.problem}") from None
            coordinator._leases.start(coordinator._loop)
        except BaseException:
            await coordinator.close()
            raise
        return coordinator

    async def close(self) -> None:
        """Deletes the registrations if etcd answers; otherwise their lease expires."""
        await self._leases.close()
        self._follower.end()
        self._client.close()
        await self._loop.run_in_executor(None, self._join)

    def _join(self) -> None:
        self._calls.stop()
        self._follower.join()

    async def cluster_id(self) -> str:
        return self._identity.cluster

    async def secret(self) -> bytes:
        return self._identity.secret

    # --- the key space ------------------------------------------------------------------------------------

    async def _commit(self, writes: Sequence[Write]) -> int:
        return await self._transact(writes)

    async def _register(self, writes: Sequence[Write], lease: int) -> int:
        return await self.fence.write(writes, lambda fenced: self._transact(fenced, lease))

    async def _transact(self, writes: Sequence[Write], lease: int = 0, *, putting_back: bool = False) -> int:
        if self._set_back is not None and not putting_back:
            raise CoordinatorError(f"nothing was written: {explained(self._set_back)}")
        started = time.monotonic()
        try:
            if lease or putting_back:
                revision, changed = await self._call(writes, lease)
            else:
                revision, changed = await self._grouping.write(writes)
        except ConflictError as conflict:
            # A caller that reads again must see the entry that it conflicted with.
            guard = next(each.guard for each in writes if each.key == conflict.key)
            await self._waits.seen_another(conflict.key, guard or 0)
            raise
        self.counts.wrote(time.monotonic() - started)
        self._calls.has_space()
        if changed:
            await self._waits.seen(revision)
        return revision

    async def _call(self, writes: Sequence[Write], lease: int = 0) -> tuple[int, bool]:
        """One call to etcd; its time begins when a thread sends it."""
        client, call_s = self._client, self._times.call
        return await self._calls.run(lambda: client.transact(writes, time.monotonic() + call_s, lease))

    async def entry(self, key: str) -> Entry | None:
        return self._view.entries.get(key)

    async def current(self, key: str) -> Entry | None:
        found = await self._reading.entry(key)
        if found is not None:
            await self._waits.seen(found.revision)
        return found

    async def entries(self, prefix: str) -> list[Entry]:
        return sorted(entry for key, entry in self._view.entries.items() if key.startswith(prefix))

    def _changes(self, since: int) -> News | None:
        return self._view.news(since)

    @property
    def full(self) -> str | None:
        return self._calls.full

    async def members(self) -> int | None:
        until = time.monotonic() + self._times.attempt
        return await self._calls.run(lambda: self._client.members(until))

    async def remaining_ms(self, key: str) -> int | None:
        until = time.monotonic() + self._times.call
        return await self._calls.run(lambda: self._client.remaining_ms(key, until))

    # --- an etcd that was set back ------------------------------------------------------------------------

    @property
    def set_back(self) -> SetBack | None:
        return self._set_back

    async def put_back(self) -> PutBack:
        if self._set_back is None:
            raise NotSetBackError(
                "nothing has to be put back: etcd has all revisions that this process knows. A process that "
                "was started after etcd was set back does not know the lost entries"
            )
        known = dict(self._view.entries)
        follows = History.decode(known.get(HISTORY))
        written: dict[str, Write] = {}
        while True:
            until = time.monotonic() + self._times.call
            listed, _ = await self._calls.run(partial(self._client.everything, until))
            there = [each for each in listed if each.key != IDENTITY]
            plan = restoring(known, there)
            found = next((each for each in there if each.key == HISTORY), None)
            made = History(secrets.token_hex(8), follows.id, True)
            last = Write(HISTORY, made.encode(), found.revision if found is not None else 0)
            try:
                for start in range(0, len(plan.writes), WRITES_MAX):
                    batch = plan.writes[start : start + WRITES_MAX]
                    await self._transact(batch, 0, putting_back=True)
                    written |= {each.key: each for each in batch}
                # The last write makes all processes continue with this etcd.
                await self._transact([last], 0, putting_back=True)
            except ConflictError as conflict:
                # Processes that were started since then also write.
                log.info("etcd is read again: %s", conflict)
                continue
            again = [key for key in plan.again if key not in written]
            log.warning("%d entries that etcd had lost were written again", len(written))
            return PutBack(list(written.values()), plan.kept, again)

    def doubted(self, found: SetBack) -> None:
        """Etcd's list is not used, because etcd was set back."""
        self.counts.heard()
        if self._set_back is None:
            log.error("%s", explained(found))
        self._set_back = found
        self.counts.set_back = 1

    def _believe(self) -> None:
        if self._set_back is not None:
            log.warning("etcd is no longer set back; its entries are followed again")
        self._set_back = None
        self.counts.set_back = 0

    # --- results of the follower, on the loop ---------------------------------------------------------------

    def listed(self, entries: list[Entry], revision: int, new_history: bool) -> None:
        """All entries at a revision; they begin a new history, or continue the known one."""
        self.counts.heard()
        if self._has_view.is_set():
            self.counts.watch_restarted()
        self._believe()
        if new_history:
            self._leases.new_history(revision)
        self._applied(self._view.take_list(entries, revision, new_history=new_history))
        self._has_view.set()

    def changed(self, changes: list[Change], revision: int) -> None:
        """Changes up to a revision."""
        self.counts.heard()
        self._applied(self._view.take_changes(changes, revision))

    def unfollowed(self, lost: bool) -> None:
        """Changes do not arrive now; `lost`: etcd can't be reached."""
        self.counts.watch_ended()
        if lost:
            self.counts.failed()

    def _applied(self, changed: list[Entry]) -> None:
        self._leases.changed(changed)
        self._waits.wake()
        if changed:
            self._tell_news()
