"""Removing: deletes the empty entities that the configuration file has no more.

Only what the file has made is deleted, and nothing that an application needs: a target of others, an entity
with keys of its own, a topic with a subscription that the file did not make. A topic is deleted with all of
its subscriptions or stays with them.

No message is deleted. All queues of an entity, also those of its subscriptions, of its scheduled messages and
of what it could not forward, are retired at their shards if they are empty: they accept nothing more
(lightrail/shard/links/retiring.py). Then one deletion follows, guarded by the revisions of all that was
retired. If a queue is not empty, or the deletion fails, the names of the retired ones are written anew, with
which the shards serve them again; the shards request that themselves if this process ends.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway.resources.queues import COLUMNS, rows_of
from lightrail.model.names import dead_letter_name, scheduled_name, transfer_name
from lightrail.model.policy import Role
from lightrail.namespace.deleting import has_own_queue, own_queue
from lightrail.namespace.records import NAMES, Name, Subscription
from lightrail.namespace.statuses import ServiceError
from lightrail.service_bus.configuration.file import SUBSCRIPTION, TOPIC
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

RETIRED_AT_ONCE_MAX: Final[int] = 16
"""Requests to shards that are under way at a time."""
FORWARDING: Final = ("forward_to", "dead_letter")
COUNTS: Final = ("ready", "in_flight", "delayed", "deferred")
"""Figures that together count the messages of a queue."""


class _StaysError(Exception):
    """The entity stays; the message says why."""


class _Doomed(NamedTuple):
    """A queue, a topic with all of its subscriptions, or a subscription, which the file has no more."""

    root: Name
    """The queue, the topic, or the own queue of the subscription."""
    paths: tuple[str, ...]
    """What the file had of it."""
    subscriptions: tuple[Subscription, ...]
    queues: tuple[Name, ...]
    """Own queues of the subscriptions, or the queue."""


def mark_of(record: Name) -> str:
    """What the entry keeps of a name that the file has made, to know it again: history and revision."""
    return f"{record.history}/{record.created}"


@dataclass(slots=True, eq=False, repr=False)
class Removing:
    """The entities that the file has no more, as the entry of the configuration has them, by path."""

    _services: "Services"
    _removed: Mapping[str, Mapping[str, Any]]
    stays: dict[str, str] = field(default_factory=dict)
    """Why entities stay, by path; the others are deleted."""

    async def remove(self) -> None:
        """Deletes what can be; sources of forwarded messages before their targets."""
        self._services.directory.refresh()
        left = self._find()
        while left:
            before = len(left)
            left = [each for each in left if not await self._is_removed(each)]
            if len(left) == before:
                return

    def _find(self) -> list[_Doomed]:
        found: list[_Doomed] = []
        directory = self._services.directory
        kinds = {path: str(each.get("kind")) for path, each in self._removed.items()}
        for path, kind in kinds.items():
            if kind != SUBSCRIPTION:
                record = directory.find(path)
                if record is None or record.role is not (Role.ROUTER if kind == TOPIC else Role.QUEUE):
                    continue
                its = tuple(directory.subscriptions(path)) if kind == TOPIC else ()
                queues = tuple(map(directory.get, map(_queue_of, its))) if kind == TOPIC else (record,)
                found.append(_Doomed(record, (path, *map(_path_of, its)), its, queues))
                continue
            topic, _, id = path.rpartition("/subscriptions/")
            subscription = directory.subscription(topic, id)
            record = directory.find(own_queue(topic, id))
            if subscription is not None and record is not None and topic not in kinds:
                found.append(_Doomed(record, (path,), (subscription,), (record,)))
        return found

    async def _is_removed(self, doomed: _Doomed) -> bool:
        try:
            self._demand_ours(doomed)
            await self._delete(doomed)
        except _StaysError as error:
            self.stays |= dict.fromkeys(doomed.paths, str(error))
            return False
        for path in doomed.paths:
            self.stays.pop(path, None)
        return True

    # --- what the file has made, and nobody else needs -------------------------------------------------

    def _demand_ours(self, doomed: _Doomed) -> None:
        self._services.directory.refresh()
        for path, record in self._records(doomed):
            if self._removed.get(path, {}).get("made") != mark_of(record):
                raise _StaysError(f"{path} was not made by the file, as far as is known")
            if record.authorization_rules:
                raise _StaysError(f"{path} has keys of its own")
        for each in doomed.subscriptions:
            if not has_own_queue(each):
                raise _StaysError(f"its subscription {each.id} sends to {each.target}")
        ours = {record.name for _, record in self._records(doomed)}
        for name in ours:
            for each in self._services.directory.subscriptions_to(name):
                if each not in doomed.subscriptions:
                    raise _StaysError(f"subscription {each.id} of {each.router} sends to it")
        for source in self._services.directory.below(""):
            if source.name not in ours and ours.intersection(map(source.policy.given.get, FORWARDING)):
                raise _StaysError(f"{source.name} forwards to it")

    @staticmethod
    def _records(doomed: _Doomed) -> Iterable[tuple[str, Name]]:
        if doomed.root in doomed.queues:
            return [(doomed.paths[0], doomed.root)]
        return [(doomed.paths[0], doomed.root), *zip(doomed.paths[1:], doomed.queues, strict=True)]

    # --- the deletion ----------------------------------------------------------------------------------

    async def _delete(self, doomed: _Doomed) -> None:
        directory = self._services.directory
        beside = [transfer_name(each.name) for each in doomed.queues]
        if doomed.root.role is Role.ROUTER:
            beside.append(scheduled_name(doomed.root.name))
        # A queue that is not there yet may be made by the first message, with which the deletion fails.
        guards = {NAMES + name: directory.stored_revision(name) for name in beside}
        guards |= {each.key: each.revision for each in doomed.subscriptions}
        queues = [*doomed.queues, *(found for name in beside if (found := directory.find(name)) is not None)]
        guards |= {NAMES + each.name: each.revision for each in queues if each is not doomed.root}
        await self._demand_empty(queues)
        revisions = {_queue_of(each): each.revision for each in doomed.subscriptions}
        retired: list[Name] = []
        try:
            await self._retire(queues, revisions, retired)
            await self._services.namespace.drop_as_read(doomed.root, guards)
        except BaseException as error:
            await self._keep(retired)
            if isinstance(error, ServiceError | CoordinatorError | ShardDownError | ShardRefusedError):
                raise _StaysError(str(error)) from None
            raise

    async def _demand_empty(self, queues: list[Name]) -> None:
        """Looks before queues are retired, whose senders would wait for a moment."""
        names = [each.name for each in queues]
        names += [dead_letter_name(name) for name in names]
        try:
            rows = await rows_of(self._services, names)
        except (CoordinatorError, ShardRefusedError) as error:
            raise _StaysError(str(error)) from None
        for row in rows:
            if any(row.get(key) is None for key in COLUMNS):
                raise _StaysError(f"the shard of {row['name']} does not answer")
            if any(row[key] for key in COUNTS):
                raise _StaysError(f"{row['name']} has messages")

    async def _retire(self, queues: list[Name], revisions: Mapping[str, int], retired: list[Name]) -> None:
        """Retires queues, and adds them to `retired`. Raises _StaysError, and what `request` raises."""
        for first in range(0, len(queues), RETIRED_AT_ONCE_MAX):
            part = queues[first : first + RETIRED_AT_ONCE_MAX]
            answers = await asyncio.gather(
                *(self._ask(each, max(each.revision, revisions.get(each.name, 0))) for each in part),
                return_exceptions=True,
            )
            # One whose answer was lost may be retired as well.
            retired += [each for each, is_empty in zip(part, answers, strict=True) if is_empty]
            for each, is_empty in zip(part, answers, strict=True):
                if isinstance(is_empty, BaseException):
                    raise is_empty
                if not is_empty:
                    raise _StaysError(f"{each.name} has messages, or was changed")

    async def _ask(self, queue: Name, revision: int) -> bool:
        answer = await self._services.shards.request(queue.name, "retire", {"revision": revision})
        return bool(answer.fields["retired"])

    async def _keep(self, retired: list[Name]) -> None:
        """Lets shards serve queues again: a later revision of a name shows that it is not deleted."""
        for each in retired:
            try:
                await self._services.namespace.keep(each)
            except CoordinatorError:
                # Its shard requests that in some seconds.
                return


def _queue_of(subscription: Subscription) -> str:
    return own_queue(subscription.router, subscription.id)


def _path_of(subscription: Subscription) -> str:
    return f"{subscription.router}/subscriptions/{subscription.id}"
