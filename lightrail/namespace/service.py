"""Service: what may be done to the namespace, the same for HTTP, AMQP management and the broker itself.

Every method checks first and writes in one transaction guarded by what it had read, so that two callers who
change the same name can't both win; the loser gets Changed.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, Coordinator, Write
from lightrail.filters.action import compile_action
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.clock import wall_ms
from lightrail.model.destinations import NOWHERE, Destinations
from lightrail.model.policy import InvalidPolicy, Policy, Role, fields_of
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, Name, Permission, Right, Subscription
from lightrail.namespace.rights import Caller, Forbidden, demand, may, rights_of

PLACED: Final = frozenset({Role.QUEUE, Role.CONNECTION_POINT})
"""Roles that live on a shard."""
PUSHED: Final = Policy(Role.QUEUE, {"max_delivery_count": 0, "description": "messages on their way to a URL"})
"""The queue of a subscription that is pushed: only the gateway says when a message has failed too often."""
_OWNER_PARTS: Final = {"connection": 3, "session": 4, "link": 5}
"""Lifetimes of what goes with an AMQP client, and how much of its owner they take (see `Name.owner`)."""


class Refused(Exception):
    """What was asked can't be done as it is; the message says what was expected and what was found."""


class LimitExceeded(Refused):
    """There are as many names, or subscriptions, as there may be."""


class Taken(Refused):
    """The name has a role already, or the subscription is there already."""


class Missing(Refused):
    """The name has no role, or there is no such subscription."""


class Changed(Refused):
    """Somebody else changed it since it was read (the If-Match does not hold)."""


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
        """Give a name its role; `owner` is whom it goes with. Raises Taken, Forbidden, Refused."""
        rules.check(name)
        if rules.is_dead_letter(name):
            raise Refused(f"{name} comes with its queue; give {rules.owner(name)} a policy")
        self._demand(caller, name)
        if policy.role is Role.NONE and not policy.given:
            raise Refused(
                "role none without any field changes nothing; to take a role away, delete the policy"
            )
        self._check_dead_letter_target(caller, policy)
        _check_lifetime(policy, owner)
        return await self._make(name, policy, owner=owner, automatic=False)

    async def first_use(self, name: str, client: str = "", role: Role = Role.QUEUE) -> Name:
        """The record of a name in use; where names above allow it, one without a role is given one.

        Args:
            client: the AMQP link that uses it, as an owner: what the template's lifetime says goes with it.
            role: what it becomes, a queue or a router.

        Raises:
            Refused: among others that the template wants such a client, and there is none; or that a name
                without a role is not in composed form, where it may be meant for one that has one.
        """
        self.directory.refresh()
        found = self.directory.get(name)
        if found.role is not Role.NONE or rules.is_dead_letter(name) or rules.is_system(name):
            return found
        _check_spelling(name)
        template = self.directory.template(name)
        if template is None:
            return found
        before = self.directory.find(name)
        policy = policy_at_first_use(role, template, found)
        lifetime = policy["lifetime"]
        parts = _OWNER_PARTS.get(lifetime, 0)
        if parts and not client:
            raise Refused(f"{name} goes with the {lifetime} of the AMQP client that makes it: attach to it")
        owner = "/".join(client.split("/")[:parts])
        try:
            return await self._make(name, policy, owner=owner, automatic=True, guard=before)
        except (Taken, Changed):
            self.directory.refresh()
            return self.directory.get(name)

    async def change(self, caller: Caller, name: str, policy: Policy, revision: int | None = None) -> Name:
        """Another policy for a name that has one; `revision` is what the caller had read, or None.

        Raises:
            Missing, Changed, Forbidden, Refused: among these that the role would be another one.
        """
        self.directory.refresh()
        record = self._known(caller, name, revision)
        if policy.role is not record.role:
            raise Refused(
                f"{name} has role {record.role}, and a change can't make it {policy.role}: delete it first"
            )
        if _dead_letter_target(policy) != _dead_letter_target(record.policy):
            self._check_dead_letter_target(caller, policy)
        self._check_policy(name, policy)
        _check_lifetime(policy, record.owner)
        changed = replace(record, policy=policy, changed_at_ms=self._now_ms(), automatic=False)
        if record.policy["lifetime"] in _OWNER_PARTS and policy["lifetime"] not in _OWNER_PARTS:
            changed = replace(changed, owner="")
        await self._write([Write(NAMES + name, changed.to_value(), record.revision)], name)
        return self.directory.get(name)

    async def drop(self, caller: Caller, name: str, revision: int | None = None) -> None:
        """Take the role of a name away, with everything in it; subscriptions from and to it go too."""
        self.directory.refresh()
        await self._drop(self._known(caller, name, revision))

    async def expire(self, record: Name) -> None:
        """Delete a name whose time is over, or whose owner is gone. Another's change in between wins."""
        try:
            await self._drop(record)
        except Changed:
            self.directory.refresh()

    def names(self, caller: Caller, prefix: str = "") -> Iterable[Name]:
        """The names below a prefix (the prefix itself included) that the caller may know of, sorted."""
        self.directory.refresh()
        return sorted(
            (record for record in self.directory.below(prefix) if self.visible(caller, record)),
            key=lambda record: record.name.split("/"),
        )

    def visible(self, caller: Caller, record: Name) -> bool:
        """Whether a list shows the name to the caller."""
        directory = self.directory
        if may(directory, caller, Right.MANAGE, record):
            return True
        if record.policy["discoverability"] == "managers":
            return False
        return may(directory, caller, Right.SEND, record) or may(directory, caller, Right.LISTEN, record)

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
    ) -> Subscription:
        """Messages of a router go to a target from now on.

        Raises:
            Missing: no such router or target. Taken: a subscription of this id. Forbidden. Refused: a bad
                filter or action, a cycle, too many subscribers.
        """
        directory = self.directory
        directory.refresh()
        record = directory.get(router)
        if record.role is not Role.ROUTER:
            raise Missing(f"{router} has role {record.role}; expected a router to subscribe to")
        if not owner:
            demand(directory, caller, Right.MANAGE, record)
        existing = directory.subscription(router, id) if id else None
        if existing is None:
            _check_spelling(id)
        if existing is not None and not replace_it:
            raise Taken(f"{router} has a subscription {id} already")
        most = record.policy["max_subscribers"]
        if most is None:
            most = limits.SUBSCRIPTIONS_MAX
        if existing is None and len(directory.subscriptions(router)) >= most:
            raise LimitExceeded(f"{router} has {most} subscriptions, which is its max_subscribers")
        try:
            compile_filter(filter)
            if action is not None:
                compile_action(action)
            if expires_at is not None:
                Policy.parse({"role": "none", "expires_at": expires_at})
        except (FilterError, InvalidPolicy) as error:
            raise Refused(str(error)) from None
        made = Subscription(
            router,
            id or secrets.token_hex(8),
            target,
            filter,
            action,
            expires_at,
            owner=owner,
        )
        if existing is not None and existing.push != made.push:
            raise Refused(
                f"subscription {made.id} of {router} goes to {existing.target}; a URL can't become a name "
                "or a name a URL: make another subscription, and delete this one"
            )
        queue = rules.subscription_name(router, made.id)
        rules.check(queue)
        guard = 0 if existing is None else existing.revision
        if made.push:
            problem = self._destinations.problem(target)
            if problem is not None:
                raise Refused(problem)
            made = replace(made, secret=existing.secret if existing else secrets.token_hex(32))
        else:
            self._check_target(caller, router, target)
        writes = [Write(made.key, made.to_value(), guard)]
        placed_later = made.push and directory.find(queue) is None
        if placed_later:
            now_ms = self._now_ms()
            writes.append(Write(NAMES + queue, Name(queue, PUSHED, 0, 0, now_ms, now_ms).to_value(), 0))
        await self._write(writes, f"subscription {made.id} of {router}")
        if placed_later:
            await self._coordinator.place(queue)
        return directory.subscription(router, made.id) or made

    async def unsubscribe(self, caller: Caller, router: str, id: str, *, owner: str = "") -> None:
        """Raises Missing, Forbidden. With the owner that made it no right is asked for."""
        self.directory.refresh()
        found = self.directory.subscription(router, id)
        if found is None:
            raise Missing(f"{router} has no subscription {id}")
        if not owner or owner != found.owner:
            demand(self.directory, caller, Right.MANAGE, self.directory.get(router))
        writes = [Write(found.key, None, found.revision)]
        queue = rules.subscription_name(router, id)
        if found.push:
            writes.append(Write(NAMES + queue, None))
        await self._write(writes, f"subscription {id} of {router}")
        if found.push:
            await self._coordinator.unplace([queue, rules.dead_letter_name(queue)])

    # --- permissions -----------------------------------------------------------------------------------

    async def permit(self, caller: Caller, user: str, prefix: str, rights: frozenset[Right]) -> Permission:
        """Set what a user may do at and below a prefix; no rights at all clear it."""
        self.check_permit(caller, prefix)
        granted = (each.prefix for each in self.directory.permissions(user))
        if rights and prefix not in granted and self.directory.find(prefix) is None:
            _check_spelling(prefix)
        permission = Permission(user, prefix, rights)
        await self._write(
            [Write(permission.key, permission.to_value() if rights else None)], f"permission of {user}"
        )
        return permission

    def check_permit(self, caller: Caller, prefix: str) -> None:
        """Raises Forbidden unless the caller may say what users may do at and below a prefix."""
        if prefix:
            rules.check(prefix)
        self.directory.refresh()
        if Right.MANAGE not in rights_of(self.directory, caller, prefix):
            raise Forbidden(f"user {caller.user} has no right to manage {prefix or 'all names'}")

    # --- inside ----------------------------------------------------------------------------------------

    async def _make(
        self, name: str, policy: Policy, *, owner: str, automatic: bool, guard: Name | None = None
    ) -> Name:
        self.directory.refresh()
        self._check_policy(name, policy)
        found = self.directory.find(name)
        if found is None and not rules.is_system(name):
            _check_spelling(name)
        if found is not None and found is not guard:
            raise Taken(
                f"{name} has role {found.role} already; change its policy at {name}/!policy, or delete it"
            )
        if self.directory.count() >= limits.NAMES_MAX:
            raise LimitExceeded(f"there are {limits.NAMES_MAX} names with a role already, which is the most")
        now_ms = self._now_ms()
        record = Name(name, policy, 0, 0, now_ms, now_ms, owner, automatic)
        write = Write(NAMES + name, record.to_value(), guard.revision if guard is not None else 0)
        try:
            await self._coordinator.write([write])
        except ConflictError:
            # An expired name that nobody has swept yet is there for the coordinator, and for nobody else.
            stale = next((each for each in self.directory.expired() if each.name == name), None)
            if stale is None:
                self.directory.refresh()
                raise Taken(f"{name} was given a role by somebody else a moment ago") from None
            await self.expire(stale)
            return await self._make(name, policy, owner=owner, automatic=automatic)
        if policy.role in PLACED:
            # After the name: a shard that knows what is placed with it knows what it is, too.
            await self._coordinator.place(name)
        self.directory.refresh()
        return self.directory.get(name)

    async def _drop(self, record: Name) -> None:
        name = record.name
        leaving = [record]
        if record.role is Role.ROUTER:
            # The queues of its subscriptions have no other purpose.
            leaving += self.directory.below(f"{name}/{rules.SUBSCRIPTIONS_SEGMENT}")
        gone = {each.name for each in leaving} | {rules.dead_letter_name(each.name) for each in leaving}
        writes = [Write(NAMES + each.name, None) for each in leaving[1:]]
        writes += [
            Write(each.key, None)
            for each in self.directory.every_subscription()
            if each.router == name
            or each.target in gone
            or (each.push and rules.subscription_name(each.router, each.id) in gone)
        ]
        # The name itself goes in the last transaction: until then the deletion can be asked for again.
        writes.append(Write(NAMES + name, None, record.revision))
        first = len(writes) % WRITES_MAX or WRITES_MAX
        for end in range(first, len(writes) + 1, WRITES_MAX):
            await self._write(writes[max(0, end - WRITES_MAX) : end], name)
        placed = [each.name for each in leaving if each.role in PLACED]
        if placed:
            await self._coordinator.unplace(sorted({*placed, *map(rules.dead_letter_name, placed)}))

    async def _write(self, writes: list[Write], what: str) -> None:
        try:
            await self._coordinator.write(writes)
        except ConflictError:
            self.directory.refresh()
            raise Changed(f"{what} was changed by somebody else in the meantime; read it again") from None
        self.directory.refresh()

    def _known(self, caller: Caller, name: str, revision: int | None) -> Name:
        record = self.directory.find(name)
        if record is None:
            raise Missing(f"{name} has no role")
        demand(self.directory, caller, Right.MANAGE, record)
        if revision is not None and revision != record.revision:
            raise Changed(
                f"{name} is at revision {record.revision}, and {revision} was expected; read it again"
            )
        return record

    def _demand(self, caller: Caller, name: str) -> None:
        self.directory.refresh()
        demand(self.directory, caller, Right.MANAGE, self.directory.get(name))

    def _check_dead_letter_target(self, caller: Caller, policy: Policy) -> None:
        """Whoever has dead letters sent somewhere could as well send there."""
        target = _dead_letter_target(policy)
        record = None if target is None else self.directory.get(target)
        # Who may manage a name may as well give himself the right to send there.
        if record is not None and not may(self.directory, caller, Right.MANAGE, record):
            demand(self.directory, caller, Right.SEND, record)

    def _check_policy(self, name: str, policy: Policy) -> None:
        """What only the whole namespace can tell about a policy."""
        target = _dead_letter_target(policy)
        if target is not None:
            if self.directory.get(target).role is Role.NONE:
                _check_spelling(target)
            seen = {name}
            while target is not None and target not in seen:
                seen.add(target)
                record = self.directory.get(target)
                target = record.policy["dead_letter"] if record.role is Role.QUEUE else None
            if target is not None:
                raise InvalidPolicy(
                    "dead_letter", policy["dead_letter"], f"a name whose dead letters do not end in {name}"
                )

    def _check_target(self, caller: Caller, router: str, target: str) -> None:
        rules.check(target)
        record = self.directory.get(target)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            raise Missing(f"{target} has role {record.role}; expected a queue, a router or a URL as target")
        demand(self.directory, caller, Right.SEND, record)
        path = self._path(target, router)
        if path is not None:
            raise Refused(
                f"{router} can't feed {target}: messages would go round in a cycle, "
                + " -> ".join([router, *path])
            )

    def _path(self, start: str, goal: str) -> list[str] | None:
        """How messages at `start` would reach `goal`, or None."""
        if start == goal:
            return [start]
        seen = {start}
        waiting = [[start]]
        while waiting:
            path = waiting.pop()
            for each in self.directory.subscriptions(path[-1]):
                if each.target == goal:
                    return [*path, goal]
                if each.target not in seen and not each.push:
                    seen.add(each.target)
                    waiting.append([*path, each.target])
        return None


def _dead_letter_target(policy: Policy) -> str | None:
    target: str | None = policy["dead_letter"] if policy.role is Role.QUEUE else None
    return target


def policy_at_first_use(role: Role, template: Policy, before: Name) -> Policy:
    """The policy of a name without a role that is used as a queue, or as a router.

    Templates are policies of queues: a router gets those of their fields that it has. It drops what nobody
    subscribes to, as senders to a topic expect it (JMS 2.0, 4.2).
    """
    given = {**template.given, **before.policy.given}
    if role is Role.ROUTER:
        known = {field.name for field in fields_of(Role.ROUTER)}
        given = {"unroutable": "drop"} | {name: value for name, value in given.items() if name in known}
    return Policy(role, given)


def policy_from(text: bytes | str) -> Policy:
    """A policy from JSON text. Raises InvalidPolicy."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicy("", str(error), 'a JSON object such as {"role": "queue"}') from None
    return Policy.parse(value)


def _check_spelling(name: str) -> None:
    try:
        rules.check_spelling(name)
    except rules.InvalidName as error:
        raise Refused(str(error)) from None


def _check_lifetime(policy: Policy, owner: str) -> None:
    """What goes with a client needs one; otherwise it would be there for ever."""
    if policy["lifetime"] in _OWNER_PARTS and not owner:
        raise InvalidPolicy(
            "lifetime",
            policy["lifetime"],
            "permanent or last_consumer here; only what an AMQP client makes goes with it: a dynamic node, "
            "or a name that it is the first to use, below a template with this lifetime",
        )
