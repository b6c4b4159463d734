"""Service: all changes of the namespace, for HTTP, AMQP management and the broker itself.

Every method checks the change and writes it in one transaction, guarded by the revisions that it read. Of two
callers that change the same name at once, one gets ChangedError.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, Coordinator, Write
from lightrail.cluster.map import unplacing
from lightrail.model import limits
from lightrail.model import names as spelling
from lightrail.model.clock import wall_ms
from lightrail.model.destinations import NOWHERE, Destinations
from lightrail.model.policy import InvalidPolicyError, Policy, Role, fields_of
from lightrail.namespace import checks, entity_paths
from lightrail.namespace.directory import Directory
from lightrail.namespace.errors import (
    ChangedError,
    LimitExceededError,
    MissingError,
    ServiceError,
    TakenError,
)
from lightrail.namespace.records import NAMES, Name, Permission, Right, Subscription
from lightrail.namespace.rights import Caller, ForbiddenError, demand, rights_of

PLACED: Final = frozenset({Role.QUEUE, Role.CONNECTION_POINT})
"""Roles that live on a shard."""
PUSHED: Final = Policy(Role.QUEUE, {"max_delivery_count": 0, "description": "messages on their way to a URL"})
"""Policy of the queue of a pushed subscription. The gateway counts failures, so the queue does not."""


class Service:
    """Changes names, subscriptions and permissions."""

    def __init__(
        self,
        coordinator: Coordinator,
        directory: Directory,
        *,
        now_ms: Callable[[], int] = wall_ms,
        destinations: Destinations = NOWHERE,
    ) -> None:
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._destinations = destinations
        self.directory = directory

    # --- names -----------------------------------------------------------------------------------------

    async def give(self, caller: Caller, name: str, policy: Policy, *, owner: str = "") -> Name:
        """Give a name its role; `owner` is the client whose end deletes it.

        Raises TakenError, ForbiddenError, ServiceError.
        """
        spelling.check(name)
        if spelling.is_dead_letter(name):
            raise ServiceError(f"{name} comes with its queue; give {spelling.owner(name)} a policy")
        self._demand(caller, name)
        if policy.role is Role.NONE and not policy.given:
            raise ServiceError(
                "role none without any field changes nothing; to take a role away, delete the policy"
            )
        checks.check_dead_letter_target(self.directory, caller, policy)
        checks.check_lifetime(policy, owner)
        return await self._make(name, policy, owner=owner, automatic=False)

    async def first_use(self, name: str, client: str = "", role: Role = Role.QUEUE) -> Name:
        """The record of a name at its use; a name without a role gets one where the names above it allow
        that.

        Args:
            client: the AMQP link that uses the name, as an owner for templates with a client's lifetime.
            role: of the new name, a queue or a router.

        Raises:
            ServiceError: the template needs a client and there is none, the name is not in composed form, and
            others.
        """
        self.directory.refresh()
        found = self.directory.get(name)
        if found.role is not Role.NONE or spelling.is_dead_letter(name) or spelling.is_system(name):
            return found
        checks.check_spelling(name)
        template = self.directory.template(name)
        if template is None:
            return found
        before = self.directory.find(name)
        policy = policy_at_first_use(role, template, found)
        lifetime = policy["lifetime"]
        parts = checks.OWNER_PARTS.get(lifetime, 0)
        if parts and not client:
            raise ServiceError(
                f"{name} goes with the {lifetime} of the AMQP client that makes it: attach to it"
            )
        owner = "/".join(client.split("/")[:parts])
        try:
            return await self._make(name, policy, owner=owner, automatic=True, guard=before)
        except (TakenError, ChangedError):
            self.directory.refresh()
            return self.directory.get(name)

    async def change(self, caller: Caller, name: str, policy: Policy, revision: int | None = None) -> Name:
        """Change the policy of a name. `revision` is the one that the caller has read, or None for any.

        Raises:
            MissingError, ChangedError, ForbiddenError, ServiceError: also for another role.
        """
        self.directory.refresh()
        record = self._known(caller, name, revision)
        if policy.role is not record.role:
            raise ServiceError(
                f"{name} has role {record.role}, and a change can't make it {policy.role}: delete it first"
            )
        if checks.dead_letter_target(policy) != checks.dead_letter_target(record.policy):
            checks.check_dead_letter_target(self.directory, caller, policy)
        checks.check_policy(self.directory, name, policy)
        checks.check_lifetime(policy, record.owner)
        changed = replace(record, policy=policy, changed_at_ms=self._now_ms(), automatic=False)
        if record.policy["lifetime"] in checks.OWNER_PARTS and policy["lifetime"] not in checks.OWNER_PARTS:
            changed = replace(changed, owner="")
        await self._write([Write(NAMES + name, changed.to_value(), record.revision)], name)
        return self.directory.get(name)

    async def drop(self, caller: Caller, name: str, revision: int | None = None) -> None:
        """Delete a name with its messages and the subscriptions from and to it."""
        self.directory.refresh()
        await self._drop(self._known(caller, name, revision))

    async def expire(self, record: Name) -> None:
        """Delete a name that has expired, or whose owner has ended. A change by somebody else in between
        wins."""
        try:
            await self._drop(record)
        except ChangedError:
            self.directory.refresh()

    async def keep(self, record: Name) -> None:
        """Write the entry of a name anew, so that no deletion at its present revision is applied after that.

        A deletion or a change by somebody else in between wins.
        """
        try:
            await self._write([Write(NAMES + record.name, record.to_value(), record.revision)], record.name)
        except ChangedError:
            self.directory.refresh()

    # --- subscriptions ---------------------------------------------------------------------------------

    async def subscribe(
        self,
        caller: Caller,
        router: str,
        target: str,
        *,
        filter: Mapping[str, Any] | None = None,
        action: Mapping[str, Any] | None = None,
        expires_at: str | None = None,
        id: str = "",
        owner: str = "",
        replace_it: bool = False,
        no_local: str = "",
        rules: Mapping[str, Any] | None = None,
        revision: int | None = None,
    ) -> Subscription:
        """Send messages of a router to a target from now on.

        Args:
            owner: the AMQP link, session or connection whose end deletes the subscription; empty for none.
            replace_it: replace the subscription of this id instead of raising TakenError.
            no_local: container-id of a client whose messages the subscription does not get; empty for none.
            rules: instead of a filter and an action, these by name (rules.py).
            revision: of the subscription to replace; None for any.

        Raises:
            MissingError: no such router or target. TakenError: a subscription of this id. ChangedError.
            ForbiddenError. ServiceError: a bad filter or action, a cycle, too many subscribers.
        """
        directory = self.directory
        directory.refresh()
        record = directory.get(router)
        if record.role is not Role.ROUTER:
            raise MissingError(f"{router} has role {record.role}; expected a router to subscribe to")
        if not owner:
            demand(directory, caller, Right.MANAGE, record)
        existing = self._replaceable(record, id, replace_it)
        made = Subscription(
            router,
            id or secrets.token_hex(8),
            target,
            filter,
            action,
            expires_at,
            owner=owner,
            no_local=no_local,
            rules=rules,
        )
        checks.check_replacement(existing, made, revision)
        checks.check_subscription(filter, action, expires_at, rules)
        spelling.check(spelling.subscription_name(router, made.id))
        if made.push:
            problem = self._destinations.problem(target)
            if problem is not None:
                raise ServiceError(problem)
            made = replace(made, secret=existing.secret if existing else secrets.token_hex(32))
        else:
            checks.check_target(directory, caller, router, target)
        await self._store(made, 0 if existing is None else existing.revision)
        return directory.subscription(router, made.id) or made

    def _replaceable(self, router: Name, id: str, replace_it: bool) -> Subscription | None:
        """The subscription that a new one of this id replaces. Raises TakenError, LimitExceededError,
        ServiceError."""
        existing = self.directory.subscription(router.name, id) if id else None
        if existing is not None:
            if not replace_it:
                raise TakenError(f"{router.name} has a subscription {id} already")
            return existing
        checks.check_spelling(id)
        most = router.policy["max_subscribers"]
        if most is None:
            most = limits.SUBSCRIPTIONS_MAX
        if len(self.directory.subscriptions(router.name)) >= most:
            raise LimitExceededError(f"{router.name} has {most} subscriptions, which is its max_subscribers")
        return None

    async def _store(self, subscription: Subscription, revision: int) -> None:
        """Write a subscription over the given revision, with the queue of one that is pushed to a URL."""
        writes = [Write(subscription.key, subscription.to_value(), revision)]
        queue = spelling.subscription_name(subscription.router, subscription.id)
        is_queue_new = subscription.push and self.directory.find(queue) is None
        if is_queue_new:
            now_ms = self._now_ms()
            writes.append(Write(NAMES + queue, Name(queue, PUSHED, 0, 0, now_ms, now_ms).to_value(), 0))
        await self._write(writes, f"subscription {subscription.id} of {subscription.router}")
        if is_queue_new:
            await self._coordinator.place(queue)

    async def unsubscribe(self, caller: Caller, router: str, id: str, *, owner: str = "") -> None:
        """End a subscription; its owner needs no right for that. Raises MissingError, ForbiddenError."""
        self.directory.refresh()
        found = self.directory.subscription(router, id)
        if found is None:
            raise MissingError(f"{router} has no subscription {id}")
        if not owner or owner != found.owner:
            demand(self.directory, caller, Right.MANAGE, self.directory.get(router))
        writes = [Write(found.key, None, found.revision)]
        queue = spelling.subscription_name(router, id)
        if found.push:
            writes += [Write(NAMES + queue, None), *unplacing([queue])]
        await self._write(writes, f"subscription {id} of {router}")

    # --- permissions -----------------------------------------------------------------------------------

    async def permit(self, caller: Caller, user: str, prefix: str, rights: frozenset[Right]) -> Permission:
        """Set a user's rights at and below a prefix; an empty set clears them."""
        self.check_permit(caller, prefix)
        granted = (each.prefix for each in self.directory.permissions(user))
        if rights and prefix not in granted and self.directory.find(prefix) is None:
            checks.check_spelling(prefix)
        permission = Permission(user, prefix, rights)
        await self._write(
            [Write(permission.key, permission.to_value() if rights else None)], f"permission of {user}"
        )
        return permission

    def check_permit(self, caller: Caller, prefix: str) -> None:
        """Raises ForbiddenError unless the caller may grant rights at and below a prefix."""
        if prefix:
            spelling.check(prefix)
        self.directory.refresh()
        if Right.MANAGE not in rights_of(self.directory, caller, prefix):
            raise ForbiddenError(f"user {caller.user} has no right to manage {prefix or 'all names'}")

    # --- inside ----------------------------------------------------------------------------------------

    async def _make(
        self, name: str, policy: Policy, *, owner: str, automatic: bool, guard: Name | None = None
    ) -> Name:
        self.directory.refresh()
        checks.check_policy(self.directory, name, policy)
        found = self.directory.find(name)
        if found is None and not spelling.is_system(name):
            checks.check_spelling(name)
        if found is not None and found is not guard:
            raise TakenError(
                f"{name} has role {found.role} already; change its policy at {name}/!policy, or delete it"
            )
        if self.directory.count() >= limits.NAMES_MAX:
            raise LimitExceededError(
                f"there are {limits.NAMES_MAX} names with a role already, which is the most"
            )
        now_ms = self._now_ms()
        record = Name(name, policy, 0, 0, now_ms, now_ms, owner, automatic)
        write = Write(NAMES + name, record.to_value(), guard.revision if guard is not None else 0)
        try:
            await self._coordinator.write([write])
        except ConflictError:
            # The coordinator still has the entry of an expired name that the directory no longer shows.
            stale = next((each for each in self.directory.expired() if each.name == name), None)
            if stale is None:
                self.directory.refresh()
                raise TakenError(f"{name} got its role from somebody else a moment ago") from None
            await self.expire(stale)
            return await self._make(name, policy, owner=owner, automatic=automatic)
        if policy.role in PLACED:
            # After the name: a shard that sees the placement knows the policy as well.
            await self._coordinator.place(name)
        self.directory.refresh()
        return self.directory.get(name)

    async def _drop(self, record: Name) -> None:
        name = record.name
        leaving = [record]
        if record.role is Role.ROUTER:
            # The queues of its subscriptions are deleted as well.
            leaving += self.directory.below(f"{name}/{spelling.SUBSCRIPTIONS_SEGMENT}")
            leaving += entity_paths.own_queues(self.directory, name)
            leaving += self.directory.below(spelling.scheduled_name(name))
        gone = {each.name for each in leaving} | {spelling.dead_letter_name(each.name) for each in leaving}
        writes = [Write(NAMES + each.name, None) for each in leaving[1:]]
        ended = {each.key: None for each in self.directory.subscriptions(name)}
        for each in gone:
            ended |= {found.key: None for found in self.directory.subscriptions_to(each)}
            # The queue of a subscription that is pushed to a URL.
            router, _, id = each.rpartition(f"/{spelling.SUBSCRIPTIONS_SEGMENT}/")
            if (pushed := self.directory.subscription(router, id)) and pushed.push:
                ended[pushed.key] = None
        writes += [Write(key, None) for key in ended]
        writes += unplacing(each.name for each in reversed(leaving) if each.role in PLACED)
        # The name itself is deleted in the last transaction, so that a deletion that fails can be repeated.
        writes.append(Write(NAMES + name, None, record.revision))
        first = len(writes) % WRITES_MAX or WRITES_MAX
        for end in range(first, len(writes) + 1, WRITES_MAX):
            await self._write(writes[max(0, end - WRITES_MAX) : end], name)

    async def _write(self, writes: list[Write], what: str) -> None:
        try:
            await self._coordinator.write(writes)
        except ConflictError:
            self.directory.refresh()
            raise ChangedError(
                f"{what} was changed by somebody else in the meantime; read it again"
            ) from None
        self.directory.refresh()

    def _known(self, caller: Caller, name: str, revision: int | None) -> Name:
        record = self.directory.find(name)
        if record is None:
            raise MissingError(f"{name} has no role")
        demand(self.directory, caller, Right.MANAGE, record)
        if revision is not None and revision != record.revision:
            raise ChangedError(
                f"{name} is at revision {record.revision}, and {revision} was expected; read it again"
            )
        return record

    def _demand(self, caller: Caller, name: str) -> None:
        self.directory.refresh()
        demand(self.directory, caller, Right.MANAGE, self.directory.get(name))


def policy_at_first_use(role: Role, template: Policy, before: Name) -> Policy:
    """The policy of a name without a role that is used as a queue, or as a router.

    Templates are policies of queues: a router gets those of their fields that it has. It drops messages
    without a subscriber, as senders to a topic expect it (JMS 2.0, 4.2).
    """
    given = {**template.given, **before.policy.given}
    if role is Role.ROUTER:
        known = {field.name for field in fields_of(Role.ROUTER)}
        given = {"unroutable": "drop"} | {name: value for name, value in given.items() if name in known}
    return Policy(role, given)


def policy_from(text: bytes | str) -> Policy:
    """A policy from JSON text. Raises InvalidPolicyError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicyError("", str(error), 'a JSON object such as {"role": "queue"}') from None
    return Policy.parse(value)
