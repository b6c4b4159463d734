"""KeyedCoordinator: a coordinator over a key space, whose entries are placements, users, registrations.

Its stores (memory, SQLite, etcd) only store entries: `_commit`, `entry`, `entries`, `_changes`. The
keys and their JSON are in docs/formats/coordinator.md.

The stores are subclasses, not arguments: most of the port's methods are methods of the store (`entry`,
`close`, `set_back`, …). With an argument each method would be written three times: in a port of stores, in
the store, and in a method here that forwards the call.

Placements are read from a `Map`, which is refreshed first; changes are guarded by the revisions that they
were decided on, and decided again after a conflict. Registrations are the entries of this process, until
another process overwrites them.
"""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lightrail.cluster import moves
from lightrail.cluster.coordinator import (
    ATTEMPTS_MAX,
    WRITES_MAX,
    ConflictError,
    Coordinator,
    CoordinatorError,
    Fence,
    KeySpace,
    NotSetBackError,
    PutBack,
    SetBack,
    ShardsInUseError,
    UnknownUserError,
    UserExistsError,
    Write,
)
from lightrail.cluster.counts import CoordinatorCounts
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.map import PLACEMENT, SHARD_SETS, Map, Placed, ShardRecord
from lightrail.cluster.placement import NowhereError, demanded, members_of, place, replicas_max
from lightrail.cluster.users import UserRecord
from lightrail.model import names
from lightrail.model.clock import wall_ms
from lightrail.model.placement import Placement


class Registration(NamedTuple):
    """One entry of this process."""

    value: str
    revision: int
    displaced: Callable[[str], None]


@dataclass(eq=False, repr=False)
class Registrations:
    """The registrations of one process, by key; they stay until `unregister` or another process's
    registration."""

    _space: KeySpace
    held: dict[str, Registration] = field(default_factory=dict)

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], guard: int | None = None
    ) -> None:
        """See the port."""
        # News of the new value may arrive before its revision is known here: the entry is not checked
        # meanwhile.
        before = self.held.pop(key, None)
        try:
            revision = await self._write(key, value, guard)
        except CoordinatorError:
            if before is not None:
                self.held[key] = before
            raise
        self.held[key] = Registration(value, revision, displaced)
        found = await self._space.entry(key)
        if found is not None:
            self.look_for_another(found)

    async def _write(self, key: str, value: str, guard: int | None) -> int:
        return await self._space.write([Write(key, value, guard)])

    async def unregister(self, key: str) -> None:
        """See the port."""
        registration = self.held.pop(key, None)
        found = await self._space.entry(key)
        if registration is None or found is None or found.value != registration.value:
            return
        # After a conflict the entry belongs to another process.
        with contextlib.suppress(ConflictError):
            await self._space.write([Write(key, None, found.revision)])

    def look_for_another(self, entry: Entry) -> None:
        """Checks a changed entry: reports it if another process has overwritten the entry of this process."""
        registration = self.held.get(entry.key)
        if (
            registration is not None
            and entry.value is not None
            and entry.value != registration.value
            and entry.revision > registration.revision
        ):
            del self.held[entry.key]
            # Called later, since the caller is in the middle of a refresh.
            asyncio.get_running_loop().call_soon(registration.displaced, entry.value)


USERS: Final = "users/"
NAMES: Final = "names/"
"""``names/NAME``: the policy of a name (namespace/records.py)."""


class KeyedCoordinator(Coordinator):
    """See the port (coordinator.py) for its methods."""

    def __init__(self) -> None:
        self.counts = CoordinatorCounts()
        self.fence = Fence()
        self._map = Map(self)
        self._wanted: dict[str, asyncio.Future[Placement]] = {}
        """Queues that wait to be placed."""
        self._placer: asyncio.Task[None] | None = None
        self._registrations = Registrations(self)
        self._on_news: list[Callable[[], None]] = []

    # --- the key space ----------------------------------------------------------------------------------

    @abstractmethod
    async def _commit(self, writes: Sequence[Write]) -> int:
        """One transaction with the checks of the fence, see `write`; reports to `counts` whether it
        succeeded, and its time."""

    @abstractmethod
    def _changes(self, since: int) -> News | None:
        """See `news`."""

    @property
    def full(self) -> str | None:
        return None

    @property
    def set_back(self) -> SetBack | None:
        return None

    async def put_back(self) -> PutBack:
        raise NotSetBackError("no entry has to be written again: this coordinator has lost none")

    async def remaining_ms(self, key: str) -> int | None:
        return None

    async def members(self) -> int | None:
        return None

    async def write(self, writes: Sequence[Write]) -> int:
        if len(writes) > WRITES_MAX:
            raise ValueError(f"expected at most {WRITES_MAX} writes in a transaction, got {len(writes)}")
        if len({each.key for each in writes}) != len(writes):
            raise ValueError("expected one write per key in a transaction")
        return await self.fence.write(writes, self._commit)

    def news(self, since: int) -> News | None:
        news = self._changes(since)
        if news is not None and self._registrations.held:
            for entry in news.entries:
                self._registrations.look_for_another(entry)
        return news

    def on_news(self, call: Callable[[], None]) -> None:
        self._on_news.append(call)

    def _tell_news(self) -> None:
        # Called later, not within the write or refresh that found the news.
        for call in self._on_news:
            asyncio.get_running_loop().call_soon(call)

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], *, guard: int | None = None
    ) -> None:
        await self._registrations.register(key, value, displaced, guard)

    async def unregister(self, key: str) -> None:
        await self._registrations.unregister(key)

    # --- shards and placements ----------------------------------------------------------------------------

    async def shards(self) -> int:
        # Not from the map, which has all placements: most processes only need the number.
        return len(await self.entries(SHARD_SETS))

    async def set_shards(self, count: int) -> None:
        entries = await self.entries(SHARD_SETS)
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
                    await self.write(writes[start : start + WRITES_MAX])
            except ConflictError:
                continue
            return
        raise CoordinatorError("other processes keep changing the shards: try again")

    async def place(self, queue: str) -> Placement:
        owner = names.owner(queue)
        self._map.refresh()
        placed = self._map.placed(owner)
        if placed is not None:
            await self._replicate(owner, placed)
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
            wanted = {owner: await self._demanded(owner) for owner in owners}
            self._map.refresh()
            placed = {owner: there.placement for owner in owners if (there := self._map.placed(owner))}
            chosen = self._choose({owner: wanted[owner] for owner in owners if owner not in placed})
            writes = [Write(PLACEMENT + owner, Placed.encode(shard), 0) for owner, shard in chosen.items()]
            try:
                if writes:
                    # The revision that makes the entries is their epoch.
                    epoch = await self.write(writes)
                    placed |= {owner: Placement(shard, epoch) for owner, shard in chosen.items()}
            except ConflictError:
                continue
            return placed
        raise ConflictError(PLACEMENT + owners[0])

    def _choose(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """See `placement.place`. Raises CoordinatorError."""
        try:
            return place(self._map, wanted)
        except NowhereError as error:
            raise CoordinatorError(str(error)) from None

    async def _demanded(self, queue: str) -> int:
        """The replicas that a queue demands, as far as this process knows the policy of its name."""
        found = await self.entry(NAMES + queue)
        return demanded(None if found is None else found.value)

    def replicas_max(self) -> int:
        self._map.refresh()
        return replicas_max(self._map)

    async def _replicate(self, queue: str, placed: Placed) -> None:
        """Begins the move of a queue whose shard has fewer members than its policy demands."""
        replicas = await self._demanded(queue)
        move = self._map.moves.get(queue)
        if move is not None and move.phase != "frozen" and members_of(self._map, move.to) < replicas:
            # It was begun before the policy demanded so many. One that is frozen is about to end.
            with contextlib.suppress(ConflictError):
                await moves.give_up(self, move, placed)
            self._map.refresh()
        if members_of(self._map, placed.shard) < replicas:
            chosen = self._choose({queue: replicas})
            await moves.begin(self, self._map, list(chosen.items()), now_ms=wall_ms())

    async def placement(self, queue: str) -> Placement | None:
        self._map.refresh()
        placed = self._map.placed(queue)
        return placed.placement if placed is not None else None

    async def placements(self) -> dict[str, Placement]:
        self._map.refresh()
        return {queue: placed.placement for queue, placed in self._map.placements().items()}

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
        except ConflictError:
            raise UserExistsError(f"the user {record.name!a} exists already") from None

    async def replace_user(self, record: UserRecord) -> None:
        await self._change_user(record.name, record.encode())

    async def remove_user(self, name: str) -> None:
        await self._change_user(name, None)

    async def _change_user(self, name: str, value: str | None) -> None:
        key = USERS + name
        for _ in range(ATTEMPTS_MAX):
            found = await self.entry(key)
            if found is None:
                raise UnknownUserError(f"there is no user {name!a}")
            try:
                await self.write([Write(key, value, found.revision)])
            except ConflictError:
                continue
            return
        raise CoordinatorError(f"other processes keep changing the user {name!a}: try again")
