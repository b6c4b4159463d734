"""An etcd in memory as each process sees it: transactions are instant and guarded, news of them come later.

Every process has a view of its own that lags behind, answers get lost after the transaction went through, the
whole service goes away for a while, and what is registered on a lease goes when its process does. A
transaction that a process has sent arrives although the process has died or is cut off meanwhile, maybe
seconds later, or when etcd is back.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write, holds
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.keyed import KeyedCoordinator, Registrations
from tests.support.sim.loop import OUTSIDE, SimLoop
from tests.support.sim.network import Host

LATENCY_S: Final = (0.0002, 0.003)
LATE_S: Final = (0.02, 8.0)
"""Travel time of a late transaction, of any length equally often: what it meets lasts for milliseconds or
seconds. Its process waits for TIMEOUT_S."""
TIMEOUT_S: Final = 5.0
LEASE_S: Final = 10.0


class Etcd:
    """The service."""

    def __init__(self, loop: SimLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.is_down = False
        self.answers_lost = 0.0
        """Share of transactions whose answer does not arrive."""
        self.late = 0.0
        """Share of transactions that arrive late."""
        self.arrived_after_death = 0
        """Transactions that were made when their process had died."""
        self.log: list[Entry] = []
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.views: list[SimCoordinator] = []
        self.leases: dict[str, Lease] = {}
        """With which entries end, by key."""

    def latency_s(self) -> float:
        return self.chance.uniform(*LATENCY_S) * (20 if self.chance.random() < 0.02 else 1)

    def travel_s(self) -> float:
        """Time until a transaction arrives."""
        if self.late and self.chance.random() < self.late:
            shortest_s, longest_s = LATE_S
            return shortest_s * float((longest_s / shortest_s) ** self.chance.random())
        return self.latency_s()

    def commit(self, writes: Sequence[Write]) -> int:
        """One transaction."""
        for write in writes:
            found = self.entries.get(write.key)
            there = found.revision if found is not None and found.value is not None else 0
            if not holds(write, there, None if found is None else found.value):
                raise ConflictError(write.key)
        self.revision += 1
        for key, value, _, is_check, _was in writes:
            if is_check:
                continue
            old = self.entries.get(key)
            fresh = old is None or old.value is None
            if value is None and fresh:
                continue
            created = self.revision if old is None or fresh else old.created
            entry = self.entries[key] = Entry(key, value, created, self.revision)
            self.log.append(entry)
        for view in self.views:
            self.loop.call_later(self.latency_s(), view.look, context=view.host.context)
        return self.revision

    def expire(self, lease: "Lease") -> None:
        """A lease ends, with its entries."""
        lease.is_over = True
        for key in [key for key, each in self.leases.items() if each is lease]:
            del self.leases[key]
            self.commit([Write(key, None)])


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """Of one process."""

    is_over: bool = False


class LeasedRegistrations(Registrations):
    """Registrations of one process, which end with its lease."""

    async def _write(self, key: str, value: str, guard: int | None) -> int:
        space = self._space
        assert isinstance(space, SimCoordinator)
        space.renew()
        return await space.fence.write(
            [Write(key, value, guard)], lambda writes: space.transact(writes, space.lease)
        )


class SimCoordinator(KeyedCoordinator):
    """What one process sees of it."""

    def __init__(self, etcd: Etcd, host: Host) -> None:
        super().__init__()
        self._registrations = LeasedRegistrations(self)
        self._etcd = etcd
        self.host = host
        self._seen = 0
        """Entries of the log that have arrived."""
        self._view: dict[str, Entry] = {}
        """The same, by key."""
        self._revision = 0
        self._arrived: asyncio.Event = asyncio.Event()
        self.closed = False
        self.lease = Lease()
        self._refreshed_s = 0.0
        self._registering: asyncio.Task[None] | None = None
        self._is_unregistered = False
        """Whether not all of its registrations were written again."""
        self._began = 0
        """Revision at which the last accepted history began: what is older displaces nobody."""
        self.was_deposed = False
        etcd.views.append(self)
        # A process lists everything before it does anything.
        self._take_in()

    @property
    def is_away(self) -> bool:
        return self._etcd.is_down or self.host.is_cut_off or bool(self.host.etcd)

    @property
    def is_mute(self) -> bool:
        """Whether nothing that it sends arrives."""
        return self._etcd.is_down or self.host.is_cut_off or self.host.etcd == "mute"

    @property
    def is_deposed(self) -> bool:
        """Whether another process owns what this one owned: nothing that it has sent may be made."""
        return self.was_deposed

    def look(self) -> None:
        """A piece of news has arrived, or all of them after an outage."""
        if self.closed:
            return
        if self.is_away:
            self._etcd.loop.call_later(0.1, self.look)
            return
        if self._take_in():
            self._tell_news()

    def _take_in(self) -> bool:
        log = self._etcd.log
        if self._seen == len(log):
            return False
        self._view |= {each.key: each for each in log[self._seen :]}
        self._seen = len(log)
        self._revision = log[-1].revision
        self._arrived.set()
        self._arrived = asyncio.Event()
        return True

    async def _commit(self, writes: Sequence[Write]) -> int:
        return await self.transact(writes)

    async def transact(self, writes: Sequence[Write], lease: "Lease | None" = None) -> int:
        """One transaction; its entries end with a lease."""
        arrived: asyncio.Future[int] = self._etcd.loop.create_future()
        travel_s = self._etcd.travel_s()
        if not self.is_mute:
            self._etcd.loop.call_later(travel_s, self._arrive, writes, lease, arrived, context=OUTSIDE)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                revision = await arrived
        except TimeoutError:
            raise CoordinatorError("no answer: whether it went through is not known") from None
        except ConflictError as conflict:
            guard = next(each.guard for each in writes if each.key == conflict.key)
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    while self._revision_of(conflict.key) == guard and not self.closed:
                        await self._arrived.wait()
            raise
        if self._etcd.chance.random() < self._etcd.answers_lost:
            await asyncio.sleep(TIMEOUT_S)
            raise CoordinatorError("no answer: whether it went through is not known")
        await self._travel()
        await self._until_seen(revision)
        return revision

    async def _until_seen(self, revision: int) -> None:
        """Waits for the news of a revision."""
        while self._revision < revision and not self.is_away and not self.closed:
            await self._arrived.wait()

    def _arrive(self, writes: Sequence[Write], lease: "Lease | None", arrived: "asyncio.Future[int]") -> None:
        """A transaction arrives, whether its process still lives or not."""
        etcd = self._etcd
        if etcd.is_down:
            if etcd.late and etcd.chance.random() < etcd.late:
                etcd.loop.call_later(etcd.travel_s(), self._arrive, writes, lease, arrived)
            return
        if lease is not None and lease.is_over:
            return
        is_heard = not self.host.etcd and not arrived.done()
        is_deposed = self.is_deposed
        try:
            revision = etcd.commit(writes)
        except ConflictError as error:
            if is_heard:
                arrived.set_exception(error)
            return
        for key in [each.key for each in writes if not each.is_check]:
            etcd.leases.pop(key, None)
            if lease is not None:
                etcd.leases[key] = lease
        if is_deposed:
            message = f"a process that was deposed has written {[each.key for each in writes]}"
            etcd.loop.call_exception_handler({"message": message})
        etcd.arrived_after_death += self.closed
        if is_heard:
            arrived.set_result(revision)

    def _revision_of(self, key: str) -> int:
        found = self._view.get(key)
        return found.revision if found is not None and found.value is not None else 0

    async def _travel(self) -> None:
        await asyncio.sleep(self._etcd.latency_s())
        if self.is_away or self.closed:
            await asyncio.sleep(TIMEOUT_S)
            raise CoordinatorError("etcd does not answer")

    def _changes(self, since: int) -> News | None:
        if since == self._revision:
            return None
        changed: dict[str, Entry] = {}
        for entry in self._etcd.log[: self._seen]:
            if entry.revision > since:
                changed.pop(entry.key, None)
                changed[entry.key] = entry
        entries = [entry for entry in changed.values() if since or entry.value is not None]
        return News(self._revision, entries, since == 0)

    async def entry(self, key: str) -> Entry | None:
        found = self._view.get(key)
        return found if found is not None and found.value is not None else None

    async def current(self, key: str) -> Entry | None:
        await self._travel()
        revision = self._etcd.revision
        found = self._etcd.entries.get(key)
        await self._until_seen(revision)
        return found if found is not None and found.value is not None else None

    async def entries(self, prefix: str) -> list[Entry]:
        found = [each for key, each in self._view.items() if key.startswith(prefix)]
        return sorted((each for each in found if each.value is not None), key=lambda each: each.key)

    async def cluster_id(self) -> str:
        return "5" * 32

    async def secret(self) -> bytes:
        return bytes(32)

    async def close(self) -> None:
        self.die()

    async def remaining_ms(self, key: str) -> int | None:
        await self._travel()
        holder = self._etcd.leases.get(key)
        if holder is None:
            return None if self._etcd.entries.get(key) is not None else 0
        return int(LEASE_S * 1000)

    def die(self) -> None:
        """The process is gone; what it registered goes with its lease."""
        self.closed = True
        if self in self._etcd.views:
            self._etcd.views.remove(self)
            self._etcd.loop.call_later(LEASE_S, self._etcd.expire, self.lease, context=OUTSIDE)

    # --- the lease, for processes that refresh it ----------------------------------------------------------

    def keep_lease(self) -> None:
        """From now on it loses its lease unless it reaches etcd, and registers again when it does."""
        self._refreshed_s = self._etcd.loop.time()
        self._etcd.loop.call_soon(self._refresh)
        self._etcd.loop.call_later(LEASE_S, self._look_at_lease, context=OUTSIDE)

    def renew(self) -> None:
        """Gets another lease, if the one that it has is over."""
        if self.lease.is_over and not self.is_away:
            self.lease = Lease()

    def _refresh(self) -> None:
        """In the process."""
        if self.closed:
            return
        if not self.is_away:
            self._refreshed_s = self._etcd.loop.time()
            is_over = self.lease.is_over
            self.renew()
            if is_over or self._is_unregistered:
                self._is_unregistered = False
                self._registering = asyncio.ensure_future(self._register_again())
        self._etcd.loop.call_later(LEASE_S / 3, self._refresh)

    def _look_at_lease(self) -> None:
        """In etcd."""
        if self.closed:
            return
        left_s = self._refreshed_s + LEASE_S - self._etcd.loop.time()
        if left_s <= 0:
            self._etcd.expire(self.lease)
        self._etcd.loop.call_later(max(left_s, 1.0), self._look_at_lease, context=OUTSIDE)

    async def _register_again(self) -> None:
        """See LeasedRegistrations of cluster/etcd/leases.py."""
        for key, registration in list(self._registrations.held.items()):
            there = self._etcd.entries.get(key)
            if there is not None and there.value is None:
                there = None
            is_old = there is not None and there.revision <= self._began
            if there is not None and there.value != registration.value and not is_old:
                found = await self.entry(key)
                if found is not None:
                    self._registrations.look_for_another(found)
                self._is_unregistered |= key in self._registrations.held
                continue
            guard = there.revision if there is not None else 0
            try:
                revision = await self._registrations._write(key, registration.value, guard)
            except CoordinatorError:
                self._is_unregistered = True
                return
            self._registrations.held[key] = registration._replace(revision=revision)
