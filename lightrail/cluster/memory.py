"""The coordinator in memory: for tests, and for one process that needs no other one."""

import secrets
from collections.abc import Sequence

from lightrail.cluster.coordinator import (
    Conflict,
    CoordinatorError,
    Entry,
    News,
    ShardsInUse,
    UserExists,
    UserUnknown,
    Write,
)
from lightrail.cluster.placement import Placement, choose
from lightrail.cluster.users import UserRecord
from lightrail.model import names


class MemoryCoordinator:
    """See the port for what its methods promise."""

    def __init__(self) -> None:
        self._cluster_id = secrets.token_hex(16)
        self._secret = secrets.token_bytes(32)
        self._loads: dict[int, int] = {}
        self._placements: dict[str, Placement] = {}
        self._users: dict[str, UserRecord] = {}
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def cluster_id(self) -> str:
        return self._cluster_id

    async def secret(self) -> bytes:
        return self._secret

    async def shards(self) -> int:
        return len(self._loads)

    async def set_shards(self, count: int) -> None:
        used = 1 + max((shard for shard, load in self._loads.items() if load), default=-1)
        if count < used:
            raise ShardsInUse(in_use(count, used))
        self._loads = {shard: self._loads.get(shard, 0) for shard in range(count)}

    async def place(self, queue: str) -> Placement:
        found = self._placements.get(queue)
        if found is None:
            if not self._loads:
                raise CoordinatorError(NO_SHARDS)
            owner = names.owner(queue)
            found = self._placements.get(owner) or Placement(choose(owner, self._loads), 1)
            for name in {owner, queue} - self._placements.keys():
                self._placements[name] = found
                self._loads[found.shard] += 1
        return found

    async def placement(self, queue: str) -> Placement | None:
        return self._placements.get(queue)

    async def placements(self) -> dict[str, Placement]:
        return dict(self._placements)

    async def unplace(self, queues: Sequence[str]) -> None:
        for queue in queues:
            found = self._placements.pop(queue, None)
            if found is not None:
                self._loads[found.shard] -= 1

    async def write(self, writes: Sequence[Write]) -> int:
        for write in writes:
            found = self._entries.get(write.key)
            there = found.revision if found is not None and found.value is not None else 0
            if write.guard is not None and write.guard != there:
                raise Conflict(write.key)
        self._revision += 1
        for key, value, _ in writes:
            old = self._entries.get(key)
            fresh = old is None or old.value is None
            if value is None and fresh:
                continue
            created = self._revision if old is None or fresh else old.created
            self._entries[key] = Entry(key, value, created, self._revision)
        return self._revision

    async def entry(self, key: str) -> Entry | None:
        found = self._entries.get(key)
        return found if found is not None and found.value is not None else None

    async def entries(self, prefix: str) -> list[Entry]:
        found = [entry for key, entry in self._entries.items() if key.startswith(prefix)]
        return sorted((entry for entry in found if entry.value is not None), key=lambda entry: entry.key)

    def news(self, since: int) -> News | None:
        if since == self._revision:
            return None
        changed = [entry for entry in self._entries.values() if entry.revision > since]
        whole = since == 0
        if whole:
            changed = [entry for entry in changed if entry.value is not None]
        return News(self._revision, sorted(changed, key=lambda entry: entry.revision), whole)

    async def user(self, name: str) -> UserRecord | None:
        return self._users.get(name)

    async def users(self) -> list[str]:
        return sorted(self._users)

    async def has_users(self) -> bool:
        return bool(self._users)

    async def add_user(self, record: UserRecord) -> None:
        if record.name in self._users:
            raise UserExists(f"the user {record.name!a} is there already")
        self._users[record.name] = record

    async def replace_user(self, record: UserRecord) -> None:
        if record.name not in self._users:
            raise UserUnknown(f"there is no user {record.name!a}")
        self._users[record.name] = record

    async def remove_user(self, name: str) -> None:
        if self._users.pop(name, None) is None:
            raise UserUnknown(f"there is no user {name!a}")

    async def close(self) -> None:
        pass


NO_SHARDS = "no queue can be placed: the number of shards was never set"


def in_use(count: int, used: int) -> str:
    return (
        f"{count} shards were asked for, but shard {used - 1} holds queues: "
        f"start with --shards {used} or more"
    )
