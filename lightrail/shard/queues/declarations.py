"""Declarations: the shard's interface to the names of the directory.

`Names` is the port to the directory; `EveryName` is the one in memory, for which every name is a plain queue
until a test changes it.

`Deletions` writes to the directory: it deletes names whose last consumer has detached, or that nobody has
used for their time, and keeps names.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, Protocol

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import QUEUE, Role
from lightrail.model.policy import Policy as NamePolicy
from lightrail.namespace.directory import Changes
from lightrail.namespace.records import (
    Name,
    Right,
    Subscription,
    dead_letter_policy,
    refused_by_status,
    undefined,
)
from lightrail.namespace.service import Service
from lightrail.shard.queue.values.policy import Policy

LAST_CONSUMER: Final = "last_consumer"
_KNOWN: Final = frozenset(field.name for field in fields(Policy) if field.init)


class Names(Protocol):
    """The directory as a shard uses it; `lightrail.namespace.directory.Directory` is one."""

    @property
    def history(self) -> str:
        """The coordinator's history; `created` of different ones can't be compared (cluster/history.py)."""

    def refresh(self) -> None:
        """Follows changes, and calls the listeners. Raises CoordinatorError."""

    def get(self, name: str) -> Name:
        """The record of a name; its role is none if the name has no role."""

    def subscription(self, router: str, id: str) -> Subscription | None:
        """A subscription of a router; None if there is none."""

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """Adds a listener for later changes."""


@dataclass(eq=False, repr=False)
class EveryName:
    """A directory in memory: every name is a queue with the default policy, unless another one is set."""

    history: str = ""
    _given: dict[str, Name] = field(default_factory=dict)
    _subscriptions: dict[tuple[str, str], Subscription] = field(default_factory=dict)
    _changed: dict[str, Name | None] = field(default_factory=dict)
    _routers: set[str] = field(default_factory=set)
    """Routers whose subscriptions have changed."""
    _listeners: list[Callable[[Changes], None]] = field(default_factory=list)
    _revision: int = 1

    def give(self, name: str, policy: NamePolicy) -> None:
        """Sets another policy; creates a name again that was dropped."""
        before = self.get(name)
        self._revision += 1
        created = before.created if before.role is policy.role else self._revision
        self._changed.setdefault(name, before)
        self._given[name] = Name(name, policy, created, self._revision)

    def drop(self, name: str) -> None:
        """Removes the role of the name."""
        self._revision += 1
        self._changed.setdefault(name, self.get(name))
        self._given[name] = undefined(name)

    def subscribe(self, router: str, id: str, target: str) -> None:
        """Makes a subscription, or writes it anew."""
        self._revision += 1
        self._subscriptions[router, id] = Subscription(router, id, target, revision=self._revision)
        self._routers.add(router)

    def subscription(self, router: str, id: str) -> Subscription | None:
        """See `Names`."""
        return self._subscriptions.get((router, id))

    def refresh(self) -> None:
        """See `Names`."""
        if self._changed or self._routers:
            changes = Changes(names=self._changed, routers=self._routers)
            self._changed, self._routers = {}, set()
            for listener in self._listeners:
                listener(changes)

    def get(self, name: str) -> Name:
        """See `Names`."""
        found = self._given.get(name)
        if found is not None:
            return replace(found, history=self.history)
        owner = rules.owner(name)
        if owner != name:
            above = self.get(owner)
            if above.role is not Role.QUEUE:
                return undefined(name)
            policy = dead_letter_policy(self.get(rules.transferring(owner)).policy)
            return Name(name, policy, above.created, history=self.history)
        return Name(name, QUEUE, 1, history=self.history)

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """See `Names`."""
        self._listeners.append(listener)


def shard_policy(record: Name, max_delivery_count: int) -> Policy:
    """The policy of the machine of a queue, whose durations are milliseconds.

    Args:
        max_delivery_count: the default for queues whose policy has none.
    """
    given = record.policy
    dead = rules.is_dead_letter(record.name)
    count = given["max_delivery_count"]
    forwards = given["forward_to"] is not None
    values: dict[str, Any] = {
        "max_delivery_count": 0 if dead else max_delivery_count if count is None else count,
        "dead_letter": not dead,
        "expired_to_dead_letter": given["expired"] == "dead_letter",
        # Gateways send what waits for a router to other queues when it is due.
        "enqueues_due": rules.scheduled_router(record.name) is None,
        "retry_delay_ms": given.milliseconds("retry_delay"),
        "retry_delay_max_ms": given.milliseconds("retry_delay_max"),
        "max_age_ms": given.milliseconds("max_age"),
        # A gateway passes messages on in transactions, however long it waits for a target: a lock whose time
        # is over would count as a failed delivery.
        "lock_ms": None if forwards else given.milliseconds("lock_duration"),
        "enqueue_timeout_ms": given.milliseconds("enqueue_timeout"),
        "duplicate_window_ms": given.milliseconds("duplicate_window"),
        "order_key": given["order_key"] or "",
        "discard_to_dead_letter": not dead and given["dead_letter"] is not None,
        "captured": given["capture"],
        # Gateways take turns, so that messages are forwarded in their order, and nobody else receives them.
        "single_active": given["single_active"] or forwards,
        "exclusive": given["exclusive"] and not forwards,
        "max_consumers": None if forwards else given["max_consumers"],
        "send_disabled": bool(refused_by_status(given, Right.SEND)),
        "receive_disabled": bool(refused_by_status(given, Right.LISTEN)),
    }
    # All other fields have the name that they have in the policy of the directory.
    values |= {name: given[name] for name in _KNOWN.difference(values)}
    if dead and given["retry_delay"] is None:
        values |= {
            "retry_delay_ms": limits.DEAD_LETTER_RETRY_MS,
            "retry_growth": 2,
            "retry_delay_max_ms": limits.DEAD_LETTER_RETRY_MS_MAX,
        }
    return Policy(**values)


log = logging.getLogger("lightrail.shard.queues.declarations")


class ExpiredName(NamedTuple):
    """A name to be deleted at its revision."""

    record: Name
    guards: Mapping[str, int]
    """Revisions that other entries have to have: the subscription whose own queue it may be, 0 if there must
    be none, and the placement, as another shard that has the queue by then keeps it."""


@dataclass(eq=False, repr=False)
class Deletions:
    """The deletions under way; the shard requests a failed one again."""

    _service: Service
    when_ended: Callable[[ExpiredName, CoordinatorError | None], None] = lambda attempt, error: None
    """Called with an attempt to delete a name and its error, or None."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, names: Iterable[ExpiredName]) -> None:
        for name in names:
            self._spawn(self._delete(name))

    def keep(self, names: Iterable[Name]) -> None:
        """Keeps names that a lost frontend was about to delete, unless it has deleted them."""
        for name in names:
            self._spawn(self._keep(name))

    async def close(self) -> None:
        """Waits for all deletions."""
        await asyncio.gather(*self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, record: Name) -> None:
        try:
            await self._service.keep(record)
        except CoordinatorError as error:
            log.warning(
                "%s stays closed: whether a lost frontend deletes it is not known: %s", record.name, error
            )

    async def _delete(self, expired: ExpiredName) -> None:
        failure: CoordinatorError | None = None
        try:
            await self._service.expire(*expired)
        except CoordinatorError as error:
            log.warning("%s is not used any more and can't be deleted yet: %s", expired.record.name, error)
            failure = error
        self.when_ended(expired, failure)
