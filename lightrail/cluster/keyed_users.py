"""Keyed users: users as entries of a key space, ``users/NAME``."""

from typing import Final

from lightrail.cluster.coordinator import (
    ATTEMPTS_MAX,
    ConflictError,
    CoordinatorError,
    KeySpace,
    UnknownUserError,
    UserExistsError,
    Write,
)
from lightrail.cluster.users import UserRecord

USERS: Final = "users/"


class KeyedUsers:
    """See Users (coordinator.py) for its methods."""

    def __init__(self, space: KeySpace) -> None:
        self._space = space

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
