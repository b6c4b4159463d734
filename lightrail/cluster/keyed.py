"""KeyedCoordinator: shards, placements, users and registrations as entries of a key space.

What is below it (memory, SQLite, etcd) only keeps entries: `_commit`, `entry`, `entries`, `_changes`. The
keys and their JSON are in docs/formats/coordinator.md. Questions are answered from a `Map` of its own, which
is brought up to date first; changes are guarded by the revisions that they were decided on, and decided anew
on a conflict.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lightrail.cluster.coordinator import (
    WRITES_MAX,
    Conflict,
    CoordinatorError,
    Entry,
    News,
    NotSetBack,
    PutBack,
    SetBack,
    ShardsInUse,
    UserExists,
    UserUnknown,
    Write,
)
from lightrail.cluster.counts import CoordinatorCounts
from lightrail.cluster.map import MOVES, PLACEMENT, SHARD_SETS, Map, Placed, ShardSet
from lightrail.cluster.placement import NOWHERE, Near, Placement, choose
from lightrail.cluster.registrations import Registrations
from lightrail.cluster.users import UserRecord
from lightrail.model import names

USERS: Final = "users/"
ATTEMPTS_MAX: Final = 100
"""Conflicts in a row after which a change is given up; each one means that somebody else got through."""


class KeyedCoordinator(ABC):
    """See the port (coordinator.py) for what its methods promise."""

    def __init__(self) -> None:
        self.counts = CoordinatorCounts()
        self._map = Map(self)
        self._wanted: dict[str, asyncio.Future[Placement]] = {}
        """Queues that are to be placed."""
        self._placer: asyncio.Task[None] | None = None
        self._registrations = Registrations(self)
        self._on_news: list[Callable[[], None]] = []

    # --- what a key space is ----------------------------------------------------------------------------

    @abstractmethod
    async def _commit(self, writes: Sequence[Write]) -> int:
        """One transaction, see `write`. Who asks somebody tells `counts` what came of it and how
        long it took.
        """

    @abstractmethod
    def _changes(self, since: int) -> News | None:
        """See `news`."""

    @abstractmethod
    async def entry(self, key: str) -> Entry | None:
        """See the port."""

    @abstractmethod
    async def entries(self, prefix: str) -> list[Entry]:
        """See the port."""

    @abstractmethod
    async def cluster_id(self) -> str:
        """See the port."""

    @abstractmethod
    async def secret(self) -> bytes:
        """See the port."""

    @abstractmethod
    async def close(self) -> None:
        """See the port."""

    @property
    def full(self) -> str | None:
        return None

    @property
    def set_back(self) -> SetBack | None:
        return None

    async def put_back(self) -> PutBack:
        raise NotSetBack("nothing is to be put back: this coordinator continues what is known of it")

    async def remaining_ms(self, key: str) -> int | None:
        return None

    async def write(self, writes: Sequence[Write]) -> int:
        if len(writes) > WRITES_MAX:
            raise ValueError(f"expected at most {WRITES_MAX} writes in a transaction, got {len(writes)}")
        if len({each.key for each in writes}) != len(writes):
            raise ValueError("expected one write per key in a transaction")
        return await self._commit(writes)

    def news(self, since: int) -> News | None:
        news = self._changes(since)
        if news is not None and self._registrations.held:
            for entry in news.entries:
                self._registrations.look_for_another(entry)
        return news

    def on_news(self, call: Callable[[], None]) -> None:
        self._on_news.append(call)

    def _tell_news(self) -> None:
        # Not from within a write or a refresh, whose business is not theirs.
        for call in self._on_news:
            asyncio.get_running_loop().call_soon(call)

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], *, guard: int | None = None
    ) -> None:
        await self._registrations.register(key, value, displaced, guard)

    async def unregister(self, key: str) -> None:
        await self._registrations.unregister(key)

    # --- shards -------------------------------------------------------------------------------------------

    async def shards(self) -> int:
        self._map.refresh()
        return len(self._map.shard_sets)

    async def set_shards(self, count: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            self._map.refresh()
            known = self._map.shard_sets
            used = 1 + max((shard for shard, load in self._map.loads.items() if load), default=-1)
            if count < used:
                raise ShardsInUse(
                    f"{count} shards were asked for, but shard {used - 1} holds queues: "
                    f"start with --shards {used} or more"
                )
            writes = [
                Write(f"{SHARD_SETS}{id}", ShardSet(id).encode(), 0) for id in range(count) if id not in known
            ]
            writes += [
                Write(f"{SHARD_SETS}{id}", None, known[id].revision) for id in sorted(known) if id >= count
            ]
            try:
                for start in range(0, len(writes), WRITES_MAX):
                    await self.write(writes[start : start + WRITES_MAX])
            except Conflict:
                continue
            return
        raise CoordinatorError("the shards are being changed by others all the time: try again")

    # --- placements ---------------------------------------------------------------------------------------

    async def place(self, queue: str) -> Placement:
        owner = names.owner(queue)
        self._map.refresh()
        placed = self._map.placed(owner)
        if placed is not None:
            return placed.placement
        future = self._wanted.get(owner)
        if future is None:
            future = self._wanted[owner] = asyncio.get_running_loop().create_future()
        if self._placer is None or self._placer.done():
            self._placer = asyncio.create_task(self._place_wanted())
        # Others may wait for it, too.
        return await asyncio.shield(future)

    async def _place_wanted(self) -> None:
        """Places what gathers while the placements before are written, many in one transaction."""
        while self._wanted:
            owners = list(self._wanted)[:WRITES_MAX]
            if not await self._place_these(owners):
                for owner in owners:
                    await self._place_these([owner])

    async def _place_these(self, owners: Sequence[str]) -> bool:
        """Tells those who wait for them; False when several were not placed because of one of them."""
        try:
            placed = await self._place_all(owners)
        except Conflict as conflict:
            if len(owners) > 1:
                return False
            self._fail(owners, conflict)
        except Exception as error:
            # Whatever it is belongs to those who wait.
            self._fail(owners, error)
        else:
            for owner in owners:
                self._wanted.pop(owner).set_result(placed[owner])
        return True

    def _fail(self, owners: Sequence[str], error: Exception) -> None:
        for owner in owners:
            future = self._wanted.pop(owner)
            future.set_exception(error)
            # Who waited for it may have been cancelled.
            future.exception()

    async def _place_all(self, owners: Sequence[str]) -> dict[str, Placement]:
        """Raises Conflict when others were faster, again and again where it is one queue."""
        for _ in range(ATTEMPTS_MAX if len(owners) == 1 else 1):
            self._map.refresh()
            placed = {owner: there.placement for owner in owners if (there := self._map.placed(owner))}
            loads = Counter(self._map.loads)
            families: dict[str, Counter[int]] = {}
            chosen: dict[str, int] = {}
            writes = []
            for owner in owners:
                if owner not in placed:
                    parent = owner.rpartition("/")[0]
                    if parent not in families:
                        families[parent] = Counter(self._map.siblings(owner))
                    shard = self._choose(owner, loads, families[parent])
                    loads[shard] += 1
                    if parent:
                        families[parent][shard] += 1
                    chosen[owner] = shard
                    writes.append(Write(PLACEMENT + owner, Placed.encode(shard), 0))
            try:
                if writes:
                    # The revision that makes the entries is their epoch.
                    epoch = await self.write(writes)
                    placed |= {owner: Placement(shard, epoch) for owner, shard in chosen.items()}
            except Conflict:
                continue
            return placed
        raise Conflict(PLACEMENT + owners[0])

    def _choose(self, queue: str, loads: Counter[int], siblings: Mapping[int, int]) -> int:
        takers = self._map.takers()
        if not takers:
            raise CoordinatorError(NO_TAKERS if self._map.shard_sets else NO_SHARDS)
        return choose(queue, {shard: loads[shard] for shard in takers}, self._near(siblings, takers))

    def _near(self, siblings: Mapping[int, int], takers: Sequence[int]) -> Near:
        """Siblings in the zone of each shard and on its host; nobody is near where these are not known."""
        if not siblings:
            return NOWHERE
        zones: Counter[str] = Counter()
        hosts: Counter[str] = Counter()
        members = self._map.shards
        for shard, count in siblings.items():
            if shard in members:
                zones[members[shard].zone] += count
                hosts[members[shard].host] += count
        return {
            shard: (zones[members[shard].zone], hosts[members[shard].host])
            for shard in takers
            if shard in members
        }

    async def placement(self, queue: str) -> Placement | None:
        self._map.refresh()
        placed = self._map.placed(queue)
        return placed.placement if placed is not None else None

    async def placements(self) -> dict[str, Placement]:
        self._map.refresh()
        return {queue: placed.placement for queue, placed in self._map.placements().items()}

    async def unplace(self, queues: Sequence[str]) -> None:
        owners = [queue for queue in dict.fromkeys(queues) if not names.is_dead_letter(queue)]
        writes = [Write(prefix + queue, None) for queue in owners for prefix in (PLACEMENT, MOVES)]
        for start in range(0, len(writes), WRITES_MAX):
            await self.write(writes[start : start + WRITES_MAX])

    # --- users --------------------------------------------------------------------------------------------

    async def user(self, name: str) -> UserRecord | None:
        found = await self.entry(USERS + name)
        if found is None or found.value is None:
            return None
        try:
            return UserRecord.decode(name, found.value)
        except ValueError as error:
            raise CoordinatorError(f"the entry {found.key} can't be read: {error}") from None

    async def users(self) -> list[str]:
        return [each.key.removeprefix(USERS) for each in await self.entries(USERS)]

    async def has_users(self) -> bool:
        return bool(await self.entries(USERS))

    async def add_user(self, record: UserRecord) -> None:
        try:
            await self.write([Write(USERS + record.name, record.encode(), 0)])
        except Conflict:
            raise UserExists(f"the user {record.name!a} is there already") from None

    async def replace_user(self, record: UserRecord) -> None:
        await self._change_user(record.name, record.encode())

    async def remove_user(self, name: str) -> None:
        await self._change_user(name, None)

    async def _change_user(self, name: str, value: str | None) -> None:
        key = USERS + name
        for _ in range(ATTEMPTS_MAX):
            found = await self.entry(key)
            if found is None:
                raise UserUnknown(f"there is no user {name!a}")
            try:
                await self.write([Write(key, value, found.revision)])
            except Conflict:
                continue
            return
        raise CoordinatorError(f"the user {name!a} is being changed by others all the time: try again")


NO_SHARDS: Final = "no queue can be placed: the number of shards was never set"
NO_TAKERS: Final = (
    "no queue can be placed: every shard is draining; start another one, or take one back with "
    "`lightrail-admin shard revive`"
)
