"""Lifetimes: names that are deleted with a connection, a session or a link of this frontend.

Such a name has an owner id, `FRONTEND/BOOT/CONNECTION[/SESSION[/LINK]]`. When the owner ends, the name is
deleted. Names of a process that was killed are deleted when its successor starts, which has another boot
number. While the coordinator is away, deletions are tried again until they are done.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from lightrail.amqp.performatives import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
)
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import limits, names
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service

log = logging.getLogger("lightrail.frontend.lifetimes")

Policy = DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Lifetimes:
    """The names whose owners live in this process.

    Args:
        empty: whether a queue holds no message; False where that can't be known.
    """

    def __init__(
        self,
        service: Service,
        frontend: str,
        boot: int,
        spawn: Spawn,
        empty: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._service = service
        self._frontend = frontend
        self._prefix = f"{frontend}/{boot:08x}/"
        self._spawn = spawn
        self._empty = empty
        self._owned: dict[str, dict[str, None]] = {}
        """By connection: names that the connection, its sessions or its links own."""
        self._policies: dict[str, Policy] = {}
        """Of dynamic nodes that may end before their connection does (messaging 3.5.11 to 3.5.13)."""
        self._due: dict[str, int] = {}
        """Names to delete, and the revision that made them."""
        self._working = False
        service.directory.listen(self._changed)

    def connection(self, number: int) -> str:
        """The owner id of a connection of this process."""
        return f"{self._prefix}{number}"

    def temporary_count(self, owner: str) -> int:
        """Number of dynamic nodes of a connection."""
        return sum(map(names.is_dynamic_node, self._owned.get(owner, ())))

    def follow(self, name: str, policy: Policy) -> None:
        """A dynamic node was made that may end before its owner."""
        if not isinstance(policy, DeleteOnClose):
            self._policies[name] = policy

    def ended(self, owner: str) -> None:
        """A connection, session or link has ended: deletes names of this owner, or of a part of it."""
        for name in list(self._owned.get(self._connection_of(owner), ())):
            record = self._service.directory.find(name)
            if record is not None and (record.owner == owner or record.owner.startswith(owner + "/")):
                self.expire(record)

    def unused(self, name: str) -> None:
        """The last link of this process to a name has ended."""
        policy = self._policies.get(name)
        if isinstance(policy, DeleteOnNoLinks):
            record = self._service.directory.find(name)
            if record is not None:
                self.expire(record)
        elif policy is not None:
            self._spawn(self._expire_empty(name))

    async def sweep(self) -> None:
        """Deletes names of a former process with this frontend's name."""
        self._service.directory.refresh()
        for record in list(self._service.directory.below("")):
            if record.owner.startswith(self._frontend + "/") and not record.owner.startswith(self._prefix):
                self._due[record.name] = record.created
        await self.finish()

    def expire(self, record: Name) -> None:
        """Deletes a name, now or as soon as the coordinator allows."""
        self._due[record.name] = record.created
        if not self._working:
            self._working = True
            self._spawn(self.finish())

    async def finish(self) -> None:
        """Deletes all names that are due."""
        self._working = True
        try:
            while self._due:
                await self._delete(next(iter(self._due)))
        finally:
            self._working = False

    async def _delete(self, name: str) -> None:
        record = self._service.directory.find(name)
        if record is None or record.created != self._due.get(name):
            self._due.pop(name, None)
            return
        try:
            await self._service.expire(record)
        except CoordinatorError as error:
            log.warning("%s can't be deleted now, though its owner has ended: %s", name, error)
            await asyncio.sleep(limits.EXPIRE_AGAIN_MS / 1000)

    async def _expire_empty(self, name: str) -> None:
        if await self._empty(name) and (record := self._service.directory.find(name)) is not None:
            self.expire(record)

    def _connection_of(self, owner: str) -> str:
        return "/".join(owner.split("/")[:3])

    def _changed(self, changes: Changes) -> None:
        for name, before in changes.names.items():
            record = self._service.directory.find(name)
            for each in (before, record):
                if each is None or not each.owner.startswith(self._prefix):
                    continue
                connection = self._connection_of(each.owner)
                owned = self._owned.setdefault(connection, {})
                if each is record:
                    owned[name] = None
                else:
                    owned.pop(name, None)
                if not owned:
                    del self._owned[connection]
            if record is None:
                self._policies.pop(name, None)
