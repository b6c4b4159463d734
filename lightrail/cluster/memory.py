"""The coordinator in memory: for tests, and for one process that needs no other one."""

import secrets

from lightrail.cluster.coordinator import CoordinatorError, ShardsInUse, UserExists, UserUnknown
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
