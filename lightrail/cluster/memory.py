"""The coordinator in memory: for tests, and for a single process."""

import secrets
from collections.abc import Sequence

from lightrail.cluster.coordinator import ConflictError, Write, holds
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.keyed import KeyedCoordinator


class MemoryCoordinator(KeyedCoordinator):
    """See the port for its methods."""

    def __init__(self) -> None:
        super().__init__()
        self._cluster_id = secrets.token_hex(16)
        self._secret = secrets.token_bytes(32)
        # In the order of their revisions: an entry that changes is moved to the end.
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def cluster_id(self) -> str:
        return self._cluster_id

    async def secret(self) -> bytes:
        return self._secret

    async def _commit(self, writes: Sequence[Write]) -> int:
        for write in writes:
            found = self._entries.get(write.key)
            there = found.revision if found is not None and found.value is not None else 0
            if not holds(write, there, None if found is None else found.value):
                raise ConflictError(write.key)
        self._revision += 1
        for key, value, _, is_check, _was in writes:
            if is_check:
                continue
            old = self._entries.get(key)
            fresh = old is None or old.value is None
            if value is None and fresh:
                continue
            created = self._revision if old is None or fresh else old.created
            self._entries.pop(key, None)
            self._entries[key] = Entry(key, value, created, self._revision)
        self._tell_news()
        return self._revision

    async def entry(self, key: str) -> Entry | None:
        found = self._entries.get(key)
        return found if found is not None and found.value is not None else None

    async def current(self, key: str) -> Entry | None:
        return await self.entry(key)

    async def entries(self, prefix: str) -> list[Entry]:
        found = [entry for key, entry in self._entries.items() if key.startswith(prefix)]
        return sorted((entry for entry in found if entry.value is not None), key=lambda entry: entry.key)

    def _changes(self, since: int) -> News | None:
        if since == self._revision:
            return None
        whole = since == 0
        changed: list[Entry] = []
        for entry in reversed(self._entries.values()):
            if entry.revision <= since:
                break
            if not whole or entry.value is not None:
                changed.append(entry)
        changed.reverse()
        return News(self._revision, changed, whole)

    async def close(self) -> None:
        pass
