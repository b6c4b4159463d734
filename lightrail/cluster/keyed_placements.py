"""Keyed placements: shards and placements as entries of a key space.

Reads are answered from a `Map`, which is refreshed first; changes are guarded by the revisions
that they were decided on, and decided again after a conflict.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from lightrail.cluster.coordinator import (
    ATTEMPTS_MAX,
    WRITES_MAX,
    ConflictError,
    CoordinatorError,
    KeySpace,
    ShardsInUseError,
    Write,
)
from lightrail.cluster.map import PLACEMENT, SHARD_SETS, Map, Placed, ShardRecord
from lightrail.cluster.placement import NOWHERE, Near, choose
from lightrail.model import names
from lightrail.model.placement import Placement

NO_SHARDS: Final = "no queue can be placed: the number of shards was never set"
NO_TAKERS: Final = (
    "no queue can be placed: every shard is draining; start another one, or end the drain of one with "
    "`lightrail-admin shard revive`"
)


class KeyedPlacements:
    """See Placements (coordinator.py) for its methods."""

    def __init__(self, space: KeySpace) -> None:
        self._space = space
        self._map = Map(space)
        self._wanted: dict[str, asyncio.Future[Placement]] = {}
        """Queues that wait to be placed."""
        self._placer: asyncio.Task[None] | None = None

    async def shards(self) -> int:
        # Not from the map, which has all placements: most processes only need the number.
        return len(await self._space.entries(SHARD_SETS))

    async def set_shards(self, count: int) -> None:
        entries = await self._space.entries(SHARD_SETS)
        if {entry.key for entry in entries} == {f"{SHARD_SETS}{id}" for id in range(count)}:
            return
        for _ in range(ATTEMPTS_MAX):
            self._map.refresh()
            known = self._map.shard_records
            used = 1 + max((shard for shard, load in self._map.loads.items() if load), default=-1)
            if count < used:
                raise ShardsInUseError(
                    f"{count} shards were requested, but shard {used - 1} has queues: "
                    f"start with --shards {used} or more"
                )
            writes = [
                Write(f"{SHARD_SETS}{id}", ShardRecord(id).encode(), 0)
                for id in range(count)
                if id not in known
            ]
            writes += [
                Write(f"{SHARD_SETS}{id}", None, known[id].revision) for id in sorted(known) if id >= count
            ]
            try:
                for start in range(0, len(writes), WRITES_MAX):
                    await self._space.write(writes[start : start + WRITES_MAX])
            except ConflictError:
                continue
            return
        raise CoordinatorError("other processes keep changing the shards: try again")

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
        # Other calls may wait for the same queue.
        return await asyncio.shield(future)

    async def _place_wanted(self) -> None:
        """Places the queues that have waited while earlier placements were written, many per transaction."""
        while self._wanted:
            owners = list(self._wanted)[:WRITES_MAX]
            if not await self._place_these(owners):
                for owner in owners:
                    await self._place_these([owner])

    async def _place_these(self, owners: Sequence[str]) -> bool:
        """Answers the waiting calls; False if several were not placed because of one of them."""
        try:
            placed = await self._place_all(owners)
        except ConflictError as conflict:
            if len(owners) > 1:
                return False
            self._fail(owners, conflict)
        except Exception as error:
            # Every error is raised by the waiting calls.
            self._fail(owners, error)
        else:
            for owner in owners:
                self._wanted.pop(owner).set_result(placed[owner])
        return True

    def _fail(self, owners: Sequence[str], error: Exception) -> None:
        for owner in owners:
            future = self._wanted.pop(owner)
            future.set_exception(error)
            # The call that waited may have been cancelled.
            future.exception()

    async def _place_all(self, owners: Sequence[str]) -> dict[str, Placement]:
        """Raises ConflictError if other writers were faster; for a single queue after repeated attempts."""
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
                    epoch = await self._space.write(writes)
                    placed |= {owner: Placement(shard, epoch) for owner, shard in chosen.items()}
            except ConflictError:
                continue
            return placed
        raise ConflictError(PLACEMENT + owners[0])

    def _choose(self, queue: str, loads: Counter[int], siblings: Mapping[int, int]) -> int:
        takers = self._map.takers()
        if not takers:
            raise CoordinatorError(NO_TAKERS if self._map.shard_records else NO_SHARDS)
        return choose(queue, {shard: loads[shard] for shard in takers}, self._near(siblings, takers))

    def _near(self, siblings: Mapping[int, int], takers: Sequence[int]) -> Near:
        """Numbers of siblings in the zone of each shard and on its host; 0 where these are unknown."""
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
