"""Service: all changes of the namespace, for HTTP, AMQP management and the broker itself.

Every method checks the change and writes it in one transaction, guarded by the revisions that it read. Of two
callers that change the same name at once, one gets ChangedError.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, Coordinator, CoordinatorError, Write
from lightrail.cluster.map import unplacing
from lightrail.model import names as spelling
from lightrail.model.clock import wall_ms
from lightrail.model.endpoint import NOWHERE, Destinations
from lightrail.model.policy import Policy, Role
from lightrail.namespace import checks, deleting
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import (
    NAMES,
    PLACED,
    Name,
    Permission,
    Right,
    Rules,
    Subscription,
    is_url,
    policy_at_first_use,
)
from lightrail.namespace.rights import Caller, ForbiddenError, demand, may_grant
from lightrail.namespace.statuses import ChangedError, MissingError, ServiceError, TakenError
from lightrail.namespace.topic_uses import use_write

CHANGED: Final = "{} was changed by somebody else in the meantime; read it again"
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

    async def give(
        self, caller: Caller, name: str, policy: Policy, *, owner: str = "", rules: Rules = ()
    ) -> Name:
        """Give a name its role, and authorization rules; `owner` is the client whose end deletes it.

        Raises TakenError, ForbiddenError, ServiceError.
        """
        spelling.check(name)
        if spelling.is_dead_letter(name):
            raise ServiceError(f"{name} comes with its queue; give {spelling.owner(name)} a policy")
        self.directory.refresh()
        demand(self.directory, caller, Right.MANAGE, self.directory.get(name))
        if policy.role is Role.NONE and not policy.given:
            raise ServiceError(
                "role none without any field changes nothing; to take a role away, delete the policy"
            )
        checks.check_reach(self.directory, caller, policy)
        checks.check_lifetime(policy, owner)
        return await self._make(Name(name, policy, owner=owner, authorization_rules=rules))

    async def catch_up(self, name: str) -> None:
        """Reads the entry of a name from the coordinator; the directory has it after that.

        Raises CoordinatorError.
        """
        await self._coordinator.current(NAMES + spelling.owner(name))
        self.directory.refresh()

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
            return await self._make(Name(name, policy, owner=owner, automatic=True), before)
        except (TakenError, ChangedError):
            self.directory.refresh()
            return self.directory.get(name)

    async def change(
        self,
        caller: Caller,
        name: str,
        policy: Policy,
        revision: int | None = None,
        rules: Rules | None = None,
    ) -> Name:
        """Change the policy of a name. `revision` is the one that the caller has read, or None for any.

        Args:
            rules: the authorization rules from now on; None for those that it has.

        Raises:
            MissingError, ChangedError, ForbiddenError, ServiceError: also for another role.
        """
        self.directory.refresh()
        record = self._known(caller, name, revision)
        if policy.role is not record.role:
            raise ServiceError(
                f"{name} has role {record.role}, and a change can't make it {policy.role}: delete it first"
            )
        checks.check_reach(self.directory, caller, policy, record.policy)
        checks.check_lifetime(policy, record.owner)
        rules = record.authorization_rules if rules is None else rules
        changed = replace(record, policy=policy, automatic=False, authorization_rules=rules)
        changed = replace(changed, changed_at_ms=self._now_ms())
        if record.policy["lifetime"] in checks.OWNER_PARTS and policy["lifetime"] not in checks.OWNER_PARTS:
            changed = replace(changed, owner="")

        def checked() -> list[Write]:
            checks.check_policy(self.directory, name, policy, self._coordinator.replicas_max)
            write = Write(NAMES + name, changed.to_value(), record.revision)
            return [write, *checks.depends_on(self.directory, name, policy)]

        await self._write_on(checked, name)
        if policy["replicas"] > record.policy["replicas"]:
            await self._coordinator.place(name)
        return self.directory.get(name)

    async def drop(self, caller: Caller, name: str, revision: int | None = None) -> None:
        """Delete a name with its messages and the subscriptions from and to it."""
        self.directory.refresh()
        await self.drop_as_read(self._known(caller, name, revision))

    async def expire(self, record: Name, guards: Mapping[str, int] = deleting.NO_GUARDS) -> None:
        """Delete a name that has expired, or whose owner has ended. A change by somebody else in between
        wins: of the name, or of an entry of the guards; see `drop_as_read`."""
        try:
            await self.drop_as_read(record, guards)
        except ChangedError:
            self.directory.refresh()

    async def drop_as_read(self, record: Name, guards: Mapping[str, int] = deleting.NO_GUARDS) -> None:
        """Delete a name if it has this revision still, with everything that depends on it.

        Args:
            guards: revisions of other entries that have to be as they are, 0 for those that are not there.

        Raises:
            ChangedError: somebody has changed one of them.
        """
        for part in deleting.transactions_of(self.directory, record, guards):
            await self._write(part, record.name)
        try:
            for part in deleting.left_behind(self.directory, record):
                await self._write(part, record.name)
        except CoordinatorError as error:
            error.may_be_written = True  # The name is deleted.
            raise

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
        drop_failed: bool | None = None,
        revision: int | None = None,
    ) -> Subscription:
        """Send messages of a router to a target from now on.

        Args:
            owner: the AMQP link, session or connection whose end deletes the subscription; empty for none.
            replace_it: replace the subscription of this id instead of raising TakenError.
            no_local: container-id of a client whose messages the subscription does not get; empty for none.
            rules: instead of a filter and an action, these by name (rules.py).
            drop_failed: drop messages for which a rule has no result, which become dead letters otherwise.
            revision: of the subscription to replace; None for any.

        Raises:
            MissingError: no such router or target. TakenError: a subscription of this id. ChangedError.
            ForbiddenError. ServiceError: a bad filter or action, a cycle, too many subscribers or filters.
        """
        id = id or secrets.token_hex(8)
        made = Subscription(
            router,
            id,
            target,
            filter,
            action,
            expires_at,
            owner=owner,
            no_local=no_local,
            rules=rules,
            drop_failed=drop_failed or None,
            secret=secrets.token_hex(32) if is_url(target) else "",
        )
        await self._write_on(
            lambda: self._subscribing(caller, made, replace_it, revision), f"subscription {id} of {router}"
        )
        if made.push:
            await self._coordinator.place(spelling.subscription_name(router, id))
        return self.directory.subscription(router, id) or made

    def _subscribing(
        self, caller: Caller, made: Subscription, replace_it: bool, revision: int | None
    ) -> list[Write]:
        """The writes of a new subscription, with the queue of one that is pushed to a URL; see `subscribe`.

        They depend on the router and the target: one that is deleted meanwhile would leave a subscription
        behind, which a later router of this name would have.
        """
        directory = self.directory
        record = directory.get(made.router)
        if record.role is not Role.ROUTER:
            raise MissingError(f"{made.router} has role {record.role}; expected a router to subscribe to")
        if not made.owner:
            demand(directory, caller, Right.MANAGE, record)
        existing = checks.replaceable(directory, record, made.id, replace_it)
        checks.check_replacement(existing, made, revision)
        known = None if existing is None else existing.rules
        checks.check_subscription(made.filter, made.action, made.expires_at, made.rules, known)
        checks.check_filters(directory, existing, made)
        queue = spelling.subscription_name(made.router, made.id)
        spelling.check(queue)
        if not made.push:
            checks.check_target(directory, caller, made.router, made.target)
            depends = checks.subscribed(directory, self._now_ms(), made.router, made.target)
            return [Write(made.key, made.to_value(), existing.revision if existing else 0), *depends]
        problem = self._destinations.problem(made.target)
        if problem is not None:
            raise ServiceError(problem)
        if existing is not None:
            made = replace(made, secret=existing.secret)
        writes = [Write(made.key, made.to_value(), existing.revision if existing else 0)]
        if directory.find(queue) is None:
            now_ms = self._now_ms()
            writes.append(Write(NAMES + queue, Name(queue, PUSHED, 0, 0, now_ms, now_ms).to_value(), 0))
        return writes + checks.subscribed(directory, self._now_ms(), made.router)

    async def unsubscribe(self, caller: Caller, router: str, id: str, *, owner: str = "") -> None:
        """End a subscription; its owner needs no right for that. Raises MissingError, ForbiddenError."""
        self.directory.refresh()
        found = self.directory.subscription(router, id)
        if found is None:
            raise MissingError(f"{router} has no subscription {id}")
        if not owner or owner != found.owner:
            demand(self.directory, caller, Right.MANAGE, self.directory.get(router))
        use = use_write(self.directory.get(router), self._now_ms())
        writes = [Write(found.key, None, found.revision), *use]
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
        if not may_grant(self.directory, caller, prefix):
            raise ForbiddenError(f"user {caller.user} has no right to manage {prefix or 'all names'}")

    # --- inside ----------------------------------------------------------------------------------------

    async def _make(self, record: Name, guard: Name | None = None) -> Name:
        name, policy = record.name, record.policy
        self.directory.refresh()
        checks.check_policy(self.directory, name, policy, self._coordinator.replicas_max)
        checks.check_router(self.directory, name)
        checks.check_new(self.directory, name, guard)
        now_ms = self._now_ms()
        value = replace(record, created_at_ms=now_ms, changed_at_ms=now_ms).to_value()
        write = Write(NAMES + name, value, guard.revision if guard is not None else 0)
        use = use_write(self.directory.get(deleting.topic_of(name)), now_ms)
        try:
            await self._coordinator.write([write, *use, *checks.depends_on(self.directory, name, policy)])
        except ConflictError as conflict:
            if write.key not in conflict.keys:
                # Only what the policy refers to was changed: it is checked anew.
                return await self._make(record, guard)
            # The coordinator still has the entry of an expired name that the directory no longer shows.
            stale = next((each for each in self.directory.expired() if each.name == name), None)
            if stale is None:
                self.directory.refresh()
                raise TakenError(f"{name} got its role from somebody else a moment ago") from None
            await self.expire(stale)
            return await self._make(record)
        if policy.role in PLACED:
            # After the name: a shard that sees the placement knows the policy as well.
            await self._coordinator.place(name)
        self.directory.refresh()
        return self.directory.get(name)

    async def _write_on(self, decide: Callable[[], list[Write]], what: str) -> None:
        """Write what `decide` returns; it decides again if what it only checked has changed meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            self.directory.refresh()
            writes = decide()
            try:
                await self._coordinator.write(writes)
            except ConflictError as conflict:
                self.directory.refresh()
                guards = [each.guard for each in writes if each.key in conflict.keys and not each.is_check]
                if 0 in guards:
                    raise TakenError(f"{what} was made by somebody else a moment ago") from None
                if guards:
                    break
            else:
                return self.directory.refresh()
        raise ChangedError(CHANGED.format(what))

    async def _write(self, writes: list[Write], what: str) -> None:
        try:
            await self._coordinator.write(writes)
        except ConflictError:
            self.directory.refresh()
            raise ChangedError(CHANGED.format(what)) from None
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
