"""Registrations: entries of this process, until another process overwrites them."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, KeySpace, Write
from lightrail.cluster.entries import Entry


class Registration(NamedTuple):
    """One entry of this process."""

    value: str
    revision: int
    displaced: Callable[[str], None]


class Registrations:
    """The registrations of one process, by key; they stay until `unregister` or another process's
    registration."""

    def __init__(self, space: KeySpace) -> None:
        self._space = space
        self.held: dict[str, Registration] = {}

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
