"""KeyedCoordinator: a coordinator over a key space; placements, users and registrations are parts of it.

Its stores (memory, SQLite, etcd) only store entries: `_commit`, `entry`, `entries`, `_changes`. The
keys and their JSON are in docs/formats/coordinator.md.

The stores are subclasses, not arguments: most of the port's methods are methods of the store (`entry`,
`close`, `set_back`, …). With an argument each method would be written three times: in a port of stores, in
the store, and in a method here that forwards the call.

Registrations: entries of this process, until another process overwrites them.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lightrail.cluster.coordinator import (
    ATTEMPTS_MAX,
    WRITES_MAX,
    ConflictError,
    CoordinatorError,
    KeySpace,
    NotSetBackError,
    PutBack,
    SetBack,
    UnknownUserError,
    UserExistsError,
    Write,
)
from lightrail.cluster.counts import CoordinatorCounts
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.keyed_placements import KeyedPlacements
from lightrail.cluster.users import UserRecord
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


@dataclass(eq=False, repr=False)
class KeyedUsers:
    """Users as entries of a key space, ``users/NAME``; Users (coordinator.py) describes the methods."""

    _space: KeySpace

    async def user(self, name: str) -> UserRecord | None:
        found = await self._space.entry(USERS + name)
        if found is None or found.value is None:
            return None
        try:
            return UserRecord.decode(name, found.value)
        except ValueError as error:
            raise CoordinatorError(f"the entry {found.key} can't be read: {error}") from None

    async def users(self) -> list[str]:
        return [each.key.removeprefix(USERS) for each in await self._space.entries(USERS)]

    async def has_users(self) -> bool:
        return bool(await self._space.entries(USERS))

    async def add_user(self, record: UserRecord) -> None:
        try:
            await self._space.write([Write(USERS + record.name, record.encode(), 0)])
        except ConflictError:
            raise UserExistsError(f"the user {record.name!a} exists already") from None

    async def replace_user(self, record: UserRecord) -> None:
        await self._change_user(record.name, record.encode())

    async def remove_user(self, name: str) -> None:
        await self._change_user(name, None)

    async def _change_user(self, name: str, value: str | None) -> None:
        key = USERS + name
        for _ in range(ATTEMPTS_MAX):
            found = await self._space.entry(key)
            if found is None:
                raise UnknownUserError(f"there is no user {name!a}")
            try:
                await self._space.write([Write(key, value, found.revision)])
            except ConflictError:
                continue
            return
        raise CoordinatorError(f"other processes keep changing the user {name!a}: try again")


class KeyedCoordinator(ABC):
    """See the port (coordinator.py) for its methods."""

    def __init__(self) -> None:
        self.counts = CoordinatorCounts()
        self._placements = KeyedPlacements(self)
        self._users = KeyedUsers(self)
        self._registrations = Registrations(self)
        self._on_news: list[Callable[[], None]] = []

    # --- the key space ----------------------------------------------------------------------------------

    @abstractmethod
    async def _commit(self, writes: Sequence[Write]) -> int:
        """One transaction, see `write`; reports to `counts` whether it succeeded, and its time."""

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
        raise NotSetBackError("no entry has to be written again: this coordinator has lost none")

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
        # Called later, not within the write or refresh that found the news.
        for call in self._on_news:
            asyncio.get_running_loop().call_soon(call)

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], *, guard: int | None = None
    ) -> None:
        await self._registrations.register(key, value, displaced, guard)

    async def unregister(self, key: str) -> None:
        await self._registrations.unregister(key)

    # --- placements and users -----------------------------------------------------------------------------

    async def shards(self) -> int:
        return await self._placements.shards()

    async def set_shards(self, count: int) -> None:
        await self._placements.set_shards(count)

    async def place(self, queue: str) -> Placement:
        return await self._placements.place(queue)

    async def placement(self, queue: str) -> Placement | None:
        return await self._placements.placement(queue)

    async def placements(self) -> dict[str, Placement]:
        return await self._placements.placements()

    async def user(self, name: str) -> UserRecord | None:
        return await self._users.user(name)

    async def users(self) -> list[str]:
        return await self._users.users()

    async def has_users(self) -> bool:
        return await self._users.has_users()

    async def add_user(self, record: UserRecord) -> None:
        await self._users.add_user(record)

    async def replace_user(self, record: UserRecord) -> None:
        await self._users.replace_user(record)

    async def remove_user(self, name: str) -> None:
        await self._users.remove_user(name)
