"""Lifetimes: names that are deleted with a connection, a session or a link of this frontend.

Such a name has an owner id, `FRONTEND/BOOT/CONNECTION[/SESSION[/LINK]]`. When the owner ends, the name is
deleted. Names of a process that was killed are deleted when its successor starts, which has another boot
number. While the coordinator does not answer, deletions are tried again.

A dynamic node whose lifetime depends on links or messages (messaging 3.5.11 to 3.5.13) may outlive the
connection that created it, as long as others use it. From the end of the link that created it, shards are
asked for its usage (node_usage.py): when a link of this process ends, and at intervals, since this process is
not notified of the end of messages and of links of other frontends.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.amqp.performatives import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
)
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.node_usage import NodeUsage, Usage
from lightrail.model import limits, names
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import Name
from lightrail.namespace.service import Service

ORPHANED_NODES_MAX: Final[int] = 1_000
"""Dynamic nodes of a frontend that have outlived their connections, as their lifetime-policies ask; the
oldest is deleted for one more."""
DYNAMIC_NODES_CHECK_MS: Final[int] = 1_000
"""How often the shards of dynamic nodes are asked for links and messages."""

log = logging.getLogger("lightrail.frontend.lifetimes")

Policy = DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages
Spawn = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(slots=True)
class DynamicNode:
    """A dynamic node that may end before or after the connection that created it."""

    policy: Policy
    creator: str
    """Owner id of the link that created it."""
    is_left: bool = False
    """Whether that link has ended."""
    closed_at: int = 0
    """Revision at which its queues, or some of them, were closed for its deletion; 0 for none."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One check at a time closes or keeps it."""

    @property
    def closes_without(self) -> Sequence[str]:
        """What it has none of when it is deleted."""
        if isinstance(self.policy, DeleteOnNoLinks):
            return ("links",)
        return ("messages",) if isinstance(self.policy, DeleteOnNoMessages) else ("links", "messages")

    def is_over(self, usage: Usage) -> bool:
        if isinstance(self.policy, DeleteOnNoLinks):
            return not usage.links
        if isinstance(self.policy, DeleteOnNoMessages):
            return self.is_left and not usage.messages
        return not usage.links and not usage.messages


class Lifetimes:
    """The names whose owners are in this process."""

    def __init__(self, service: Service, frontend: str, boot: int, spawn: Spawn, usage: NodeUsage) -> None:
        self._service = service
        self._frontend = frontend
        self._prefix = f"{frontend}/{boot:08x}/"
        self._spawn = spawn
        self._usage = usage
        self._live: set[str] = set()
        """Owner ids of connections that have not ended."""
        self._owned: dict[str, dict[str, None]] = {}
        """Names that a connection, its sessions or its links own, by connection."""
        self._nodes: dict[str, DynamicNode] = {}
        """Dynamic nodes whose lifetime depends on links or messages."""
        self._watched: dict[str, None] = {}
        """Dynamic nodes whose link has ended, which are deleted when their usage ends."""
        self._watching = False
        self._orphans: dict[str, None] = {}
        """Dynamic nodes whose connection has ended, the oldest first."""
        self._due: dict[str, int] = {}
        """Names to delete, and the revision that created them."""
        self._working = False
        service.directory.listen(self._changed)

    def connection(self, number: int) -> str:
        """The owner id of a connection of this process, which has begun."""
        owner = f"{self._prefix}{number}"
        self._live.add(owner)
        return owner

    def temporary_count(self, owner: str) -> int:
        """Number of dynamic nodes of a connection."""
        return sum(map(names.is_dynamic_node, self._owned.get(owner, ())))

    def follow(self, name: str, policy: Policy, creator: str) -> None:
        """Follows a dynamic node that was created by the link with the owner id `creator`."""
        if not isinstance(policy, DeleteOnClose):
            self._nodes[name] = DynamicNode(policy, creator)
            self._usage.follow(name)

    def ended(self, owner: str) -> None:
        """A connection, session or link has ended: deletes names of this owner, or of a part of it."""
        self._live.discard(owner)
        for name in list(self._owned.get(self._connection_of(owner), ())):
            record = self._service.directory.find(name)
            if record is None:
                continue
            node = self._nodes.get(name)
            if node is not None:
                if _is_part(node.creator, owner):
                    self._leave(name, node, record.owner == owner)
            elif _is_part(record.owner, owner):
                self.expire(record)

    def is_ending(self, record: Name) -> bool:
        """Whether the name is about to be deleted, and may be made anew after that.

        An attach that is answered after the end of its connection makes a name that is deleted at once.
        """
        if self._due.get(record.name) == record.created:
            return True
        if names.owner(record.name) in self._nodes:
            # It may outlive its connection: until it is due, it is to be used.
            return False
        return record.owner.startswith(self._prefix) and self._connection_of(record.owner) not in self._live

    async def end_of(self, *records: Name) -> None:
        """Waits for the deletion of names, no longer than limits.ATTACH_REPEATED_MS for all of them."""
        directory, left = self._service.directory, [*records]
        for _ in range(limits.ATTACH_REPEATED_MS // limits.ATTACH_AGAIN_MS):
            left = [each for each in left if directory.get(each.name).created == each.created]
            if not left:
                return
            await asyncio.sleep(limits.ATTACH_AGAIN_MS / 1000)

    def has_names(self, owner: str) -> bool:
        """Whether names are deleted with a connection or session, or a part of it."""
        return any(_is_part(record.owner, owner) for record in self._names_of(owner))

    def _names_of(self, owner: str) -> Iterator[Name]:
        """The names of the connection of an owner."""
        for name in self._owned.get(self._connection_of(owner), ()):
            record = self._service.directory.find(name)
            if record is not None:
                yield record

    def after_end(self, owner: str, call: Callable[[], None]) -> bool:
        """Makes a call when the names of a connection or session that has ended are deleted; False if it has
        none.

        The close or end is answered then: its client, or another one, may use them at another frontend.
        """
        ending = [
            record
            for record in self._names_of(owner)
            if _is_part(record.owner, owner) and self.is_ending(record)
        ]
        if ending:
            self._spawn(self._call_after(ending, call))
        return bool(ending)

    async def _call_after(self, ending: list[Name], call: Callable[[], None]) -> None:
        await self.end_of(*ending)
        call()

    def unused(self, name: str) -> None:
        """The last link of this process to a name has ended."""
        node = self._nodes.get(name)
        if node is not None and node.is_left:
            self._spawn(self._check(name))

    def _leave(self, name: str, node: DynamicNode, is_orphan: bool) -> None:
        """The link that created a dynamic node has ended, or its connection."""
        if is_orphan:
            self._orphans[name] = None
            if len(self._orphans) > ORPHANED_NODES_MAX:
                oldest = next(iter(self._orphans))
                record = self._service.directory.find(oldest)
                del self._orphans[oldest]
                self._watched.pop(oldest, None)
                if record is not None:
                    self.expire(record)
        node.is_left = True
        self._watched[name] = None
        self._spawn(self._check(name))
        if not self._watching:
            self._watching = True
            self._spawn(self._watch())

    async def _watch(self) -> None:
        """Checks nodes whose creating link has ended, at intervals."""
        try:
            while self._watched:
                await asyncio.sleep(DYNAMIC_NODES_CHECK_MS / 1000)
                for name in list(self._watched):
                    await self._check(name)
        finally:
            self._watching = False

    async def _check(self, name: str) -> None:
        """Deletes a dynamic node whose lifetime is over."""
        node = self._nodes.get(name)
        if node is None:
            return
        async with node.lock:
            usage = await self._usage.of(name, node.is_over)
            record = self._service.directory.find(name)
            if usage is None or record is None or name in self._due:
                return
            if node.is_over(usage):
                node.closed_at = record.revision
                usage = await self._usage.close(record, node.is_over, node.closes_without)
                if usage is not None and node.is_over(usage):
                    self.expire(record)
                    return
            if usage is not None and node.closed_at:
                await self._keep(record, node)

    async def _keep(self, record: Name, node: DynamicNode) -> None:
        """Opens a node that is used again, once no deletion at the revision of its closing can be applied."""
        try:
            if node.closed_at == record.revision:
                await self._service.keep(record)
            node.closed_at = 0
        except CoordinatorError as error:
            log.warning("%s stays closed: whether it is deleted is not known: %s", record.name, error)

    def expire_all(self) -> None:
        """The process shuts down: deletes all names whose owner is in it."""
        self._watched.clear()
        for owned in list(self._owned.values()):
            for name in list(owned):
                record = self._service.directory.find(name)
                if record is not None:
                    self.expire(record)

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
        node = self._nodes.get(name) if name in self._watched else None
        try:
            if node is None or node.closed_at == record.revision:
                await self._service.expire(record)
        except CoordinatorError as error:
            log.warning("%s can't be deleted now, though its owner has ended: %s", name, error)
            if node is None:
                await asyncio.sleep(limits.EXPIRE_AGAIN_MS / 1000)
        if node is not None:
            # If it was not deleted, its usage decides anew; meanwhile its queues stay closed.
            self._due.pop(name, None)

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
                if self._nodes.pop(name, None) is not None:
                    self._usage.forget(name)
                self._watched.pop(name, None)
                self._orphans.pop(name, None)


def _is_part(owner: str, whole: str) -> bool:
    """Whether an owner is a connection, session or link, or a part of it."""
    return owner == whole or owner.startswith(whole + "/")
