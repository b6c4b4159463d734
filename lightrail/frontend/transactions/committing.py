"""Committing: finds the queues of a transaction's messages, and sends the transaction to its shards."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.resolving import resolve
from lightrail.frontend.links.scheduling import NO_DELAY, asks_for_delay, due_ms, make_delay
from lightrail.frontend.links.terminus import left_out, name_of, node_of_message
from lightrail.frontend.transactions.part_requests import Batch, request_of
from lightrail.frontend.transactions.transaction import LockRetirement, Post, Retirement, Transaction
from lightrail.model import conditions, limits
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import InvalidPolicyError, Role
from lightrail.namespace.ages import expiry
from lightrail.namespace.records import Right
from lightrail.namespace.router_plan import CopyGroup
from lightrail.namespace.routing import NO_ROUTER, UNROUTABLE
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.namespace.statuses import ServiceError
from lightrail.shard_client.commits import CommitParts, CommitRefusedError, Request, UncertainError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

TRANSACTION_PARTS_AT_ONCE: Final[int] = 250
"""Batches for which a frontend finds queues and shards, at a commit, before it does other work."""
TRANSACTION_COMMIT_MS: Final[int] = 60_000
"""How long a commit looks for queues that move before the transaction is rolled back."""
RETURNED: Final = (
    "a link whose deliveries the transaction settles was stolen, or has ended with an error, with its queue "
    "or with its shard; its deliveries are in their queue again"
)


class Committing:
    """Commits the transactions of one coordinator, one after the other.

    Args:
        link: number of the coordinator's link, unique in the lifetime of the process.
    """

    __slots__ = ("_at_sources", "_connection", "_forwards", "_frontend", "_parts_at_shards")

    def __init__(self, connection: "ClientConnection", link: int) -> None:
        self._connection = connection
        frontend = self._frontend = connection.frontend
        self._parts_at_shards = CommitParts(
            frontend.shard_connections.owners,
            frontend.boot << 32 | link,
            frontend.now_ms,
            # A connected client waits until its shard serves again; without a client the wait is limited.
            is_waiting=lambda: connection.is_open,
        )
        self._at_sources = False
        """Whether copies for queues at the ends of chains are stored in the sources of these (ADR 66)."""
        self._forwards = False
        """Whether there are such copies."""

    async def commit(self, transaction: Transaction) -> None:
        """Returns when all of it is on disk. Raises ConditionError: it had no effect."""
        if not (
            transaction.posts or transaction.retirements or transaction.locks or transaction.cancellations
        ):
            return
        commits = self._parts_at_shards
        commits.begin()
        owners = self._frontend.shard_connections.owners
        pause_ms = limits.OWNER_RETRY_MS
        gives_up_ms = self._frontend.now_ms() + TRANSACTION_COMMIT_MS
        self._at_sources = self._forwards = False
        while True:
            parts = await self._parts(transaction)
            try:
                user = self._connection.client.user_name
                if not parts or await commits.commit(parts, gives_up_ms, user):
                    return
            except UncertainError as refused:
                raise ConditionError(conditions.TRANSACTION_ROLLBACK, str(refused)) from None
            except CommitRefusedError as refused:
                if self._at_sources or not self._forwards:
                    raise ConditionError(conditions.TRANSACTION_ROLLBACK, str(refused)) from None
                # A queue to which copies are forwarded may have refused them: once more, in their sources.
                self._at_sources = True
                continue
            if any(each.consumer.settlements.is_lost for each in transaction.retirements):
                raise ConditionError(conditions.TRANSACTION_ROLLBACK, RETURNED)
            if self._frontend.now_ms() > gives_up_ms:
                raise ConditionError(
                    conditions.TRANSACTION_ROLLBACK, "a queue of the transaction is moving; try again"
                )
            pause_ms = await owners.change(pause_ms)

    def _check_rights(self, transaction: Transaction) -> None:
        """Checks that the names still exist, and the rights of the client there. Raises ConditionError.

        Links that sent to them may have ended since. A link that received and lost its right has ended, and
        its deliveries are returned, which fails the transaction, unless they are locked under a key.
        """
        guard = self._frontend.guard
        for post in transaction.posts:
            if post.hold is not None:
                guard.check_hold(post.hold)
        locked = {lock.queue for lock in transaction.locks.values()}
        consumers = {each.consumer for each in transaction.retirements}
        locked.update(each.queue for each in consumers if each.settlements.has_key)
        for queue in locked:
            guard.check(self._connection.client, Right.LISTEN, self._frontend.directory.get(queue))
        for record in transaction.senders.values():
            guard.demand_open(Right.SEND, guard.check(self._connection.client, Right.SEND, record))

    # --- queues and parts ------------------------------------------------------------------------------

    async def _batches(self, transaction: Transaction) -> list[Batch]:
        """The messages by their queues. Raises ConditionError."""
        found: list[Batch] = []
        for count, post in enumerate(transaction.posts, 1):
            if count % TRANSACTION_PARTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            name = await self._name(post) if post.is_address else post.name
            role = self._frontend.directory.get(name).role
            if role is Role.QUEUE:
                await self._delays(name, post)
                found.append((frozenset((name,)), post, post.payloads))
            elif role is Role.ROUTER:
                rest = post
                if post.may_schedule:
                    later, rest = _parted(post, self._frontend.now_ms())
                    if later.payloads:
                        found.append((await self._scheduled(name), later, later.payloads))
                if rest.payloads:
                    found += await self._routed(name, rest)
            else:
                raise ConditionError(
                    conditions.TRANSACTION_ROLLBACK, f"{name} is no queue or router: it has role {role}"
                )
        return found

    async def _name(self, post: Post) -> str:
        """The name in the address of messages, after a check that the client may send to it."""
        connection = self._connection
        try:
            name = name_of(post.name)
            role = node_of_message(post.payloads[0], post.name)
            owner = connection.client.owner
            record = await resolve(connection, name, Right.SEND, owner, role, entity=post.is_entity)
            if post.is_entity:
                connection.frontend.hooks.admit_address(self._frontend.directory, record, name)
        except ConditionError as error:
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, str(error)) from None
        except ServiceError as error:
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, str(error)) from None
        most = record.policy["max_message_bytes"]
        largest = max(map(len, post.payloads))
        if most is not None and largest > most:
            raise ConditionError(
                conditions.TRANSACTION_ROLLBACK,
                f"{name} takes messages of at most {most} bytes, one of the transaction has {largest}",
            )
        return record.name

    async def _delays(self, queue: str, post: Post) -> None:
        """Makes a queue delay messages if some request it (ADR 43). Raises ConditionError."""
        if not post.may_delay or not asks_for_delay(post.payloads):
            return
        try:
            await make_delay(self._frontend, queue)
        except (
            ServiceError,
            InvalidPolicyError,
            CoordinatorError,
            ShardDownError,
            ShardRefusedError,
        ) as error:
            description = f"{queue} can't be made to delay messages: {error}"
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, description) from None

    async def _scheduled(self, router: str) -> frozenset[str]:
        """The queue of a router's scheduled messages. Raises ConditionError."""
        try:
            return frozenset(((await scheduled_queue(self._frontend.service, router)).name,))
        except (ServiceError, InvalidNameError, CoordinatorError) as error:
            description = f"messages can't be scheduled in {router}: {error}"
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, description) from None

    async def _routed(self, router: str, post: Post) -> Iterable[Batch]:
        """The messages, distributed by the plan of a router."""
        frontend, routers = self._frontend, self._frontend.routers
        plan = await routers.plan(router)
        if plan is None:
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, NO_ROUTER.format(router=router))
        if plan.problem:
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, plan.problem.description)
        if post.may_delay and asks_for_delay(post.payloads):
            raise ConditionError(conditions.TRANSACTION_ROLLBACK, NO_DELAY)
        now_ms = frontend.now_ms()
        routed = await routers.routed(plan.begin(post.payloads, routers.looks, now_ms))
        groups, unroutable = left_out(routed, plan, post.container)
        if plan.forwarded:
            self._forwards = self._forwards or any(plan.forwards(group.queues) for group in groups)
            if self._at_sources:
                groups = [replace(group, queues=plan.at_sources(group.queues)) for group in groups]
        if unroutable:
            frontend.counts.messages_unroutable += len(unroutable)
            if plan.policy["unroutable"] == "reject":
                raise ConditionError(conditions.TRANSACTION_ROLLBACK, UNROUTABLE.format(router=router))
        frontend.counts.messages_routed += sum(len(group.indices) * len(group.queues) for group in groups)
        if not plan.ages_ms:
            return [(group.queues, post, group.payloads) for group in groups]
        return _aged(groups, post, plan.ages_ms, now_ms)

    async def _parts(self, transaction: Transaction) -> dict[int, Request]:
        """The parts of the transaction by the shards of its queues. Raises ConditionError."""
        # Names that other processes deleted, and rights that they revoked, up to now.
        self._frontend.poll()
        self._check_rights(transaction)
        batches: dict[int, list[Batch]] = {}
        for count, (queues, post, payloads) in enumerate(await self._batches(transaction), 1):
            if count % TRANSACTION_PARTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            by_shard: dict[int, set[str]] = {}
            for name in queues:
                by_shard.setdefault((await self._frontend.find(name)).shard, set()).add(name)
            for shard, names in by_shard.items():
                batches.setdefault(shard, []).append((frozenset(names), post, payloads))
        retirements: dict[int, list[Retirement]] = {}
        for each in transaction.retirements:
            shard = (await self._frontend.find(each.consumer.queue)).shard
            retirements.setdefault(shard, []).append(each)
        locks: dict[int, list[LockRetirement]] = {}
        for lock in transaction.locks.values():
            locks.setdefault((await self._frontend.find(lock.queue)).shard, []).append(lock)
        cancelled: dict[int, list[tuple[str, int]]] = {}
        for queue, sequence in transaction.cancellations:
            cancelled.setdefault((await self._frontend.find(queue)).shard, []).append((queue, sequence))
        return {
            shard: request_of(
                batches.get(shard, []),
                retirements.get(shard, []),
                locks.get(shard, []),
                cancelled.get(shard, []),
            )
            for shard in batches.keys() | retirements.keys() | locks.keys() | cancelled.keys()
        }


def _parted(post: Post, now_ms: int) -> tuple[Post, Post]:
    """The messages that are scheduled for later, whose ttl begins then, and the others."""
    later = [message for message in post.payloads if due_ms(message) > now_ms]
    if not later:
        return replace(post, payloads=[]), post
    others = [message for message in post.payloads if due_ms(message) <= now_ms]
    return (
        replace(post, payloads=later, attributes=post.attributes._replace(expires_at_ms=0)),
        replace(post, payloads=others),
    )


def _aged(groups: Iterable[CopyGroup], post: Post, ages_ms: Mapping[str, int], now_ms: int) -> list[Batch]:
    """The messages for queues in which they expire at an age, by this age."""
    found: list[Batch] = []
    for group in groups:
        by_age: dict[int | None, set[str]] = {}
        for queue in group.queues:
            by_age.setdefault(ages_ms.get(queue), set()).add(queue)
        for age_ms, queues in by_age.items():
            part = post
            if age_ms is not None:
                expires = expiry(post.attributes.expires_at_ms, now_ms, age_ms, group.payloads[0])
                part = replace(post, attributes=post.attributes._replace(expires_at_ms=expires))
            found.append((frozenset(queues), part, group.payloads))
    return found
