"""Routing: what becomes of a batch that is sent to a router, from the subscriptions that the directory knows.

A router with everything behind it is flattened once, into a plan, and thrown away when a name or subscription
on the way changes. The rules:

- `all`: every subscription whose filter matches. `one`: one of them, chosen at random for each message among
  those that are there: a queue always is, the queue of a receiver while it exists, a router if it would
  itself send the message somewhere.
- An action rewrites the message for what lies behind its subscription, filters further on included.
- A queue gets a message once for each different content, however many ways lead there.
- Each queue gets its messages in the order of the batch: a group is closed for a set of queues as soon as a
  later group has one of them.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lightrail.filters.action import Action, compile_action
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import Filter, compile_filter, joined
from lightrail.filters.matcher import Matcher
from lightrail.filters.message import MessageView
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import Policy, Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Subscription

log = logging.getLogger("lightrail.namespace.routing")

Choose = Callable[[int], int]
"""A whole number from 0 to below the argument, at random."""
Queues = frozenset[str]


def at_random(count: int) -> int:
    """What `one` chooses by."""
    return int(random.random() * count)


class Group:
    """Messages of one batch that go to the same queues: their places in the batch and what they became."""

    __slots__ = ("indices", "is_closed", "payloads", "queues")

    def __init__(self, queues: Queues, indices: list[int], payloads: list[bytes]) -> None:
        self.queues = queues
        self.indices = indices
        """Rising; one comes twice where an action made a second message of it for the same queues."""
        self.payloads = payloads
        self.is_closed = False


class Routed(NamedTuple):
    """What a plan says of a batch."""

    groups: list[Group]
    """In the order in which they have to be sent."""
    unroutable: Sequence[int]
    """Places of the messages that nobody gets."""


class Branch:
    """A way on that has to be walked for each message: behind an action, or into a router that chooses."""

    __slots__ = ("action", "target")

    def __init__(self, action: Action | None, target: "str | Node") -> None:
        self.action = action
        self.target = target


Key = str | Branch
Contents = dict[bytes, dict[str, None]]
"""The queues that get each content, in the order in which they were found."""


class Node:
    """A router: what its subscriptions lead to, those of plain routers behind it included."""

    __slots__ = ("chooses", "entries", "matcher", "paths")

    def __init__(self, chooses: bool, entries: Sequence[tuple[Key, Filter | None]], paths: int) -> None:
        self.chooses = chooses
        self.entries = entries
        self.matcher: Matcher[Key] = Matcher(entries)
        self.paths = paths
        """Ways from here to queues."""

    def spread(self, view: MessageView, contents: Contents, choose: Choose) -> bool:
        """Adds what becomes of a message; False when nobody gets it."""
        keys: Sequence[Key] = self.matcher.targets(view)
        if self.chooses:
            left = list(keys)
            while left:
                if _follow(left.pop(choose(len(left))), view, contents, choose):
                    return True
            return False
        found = False
        for key in keys:
            if _follow(key, view, contents, choose):
                found = True
        return found


def _follow(key: Key, view: MessageView, contents: Contents, choose: Choose) -> bool:
    if type(key) is str:
        queue: str | Node = key
    else:
        assert isinstance(key, Branch)
        queue = key.target
        if key.action is not None:
            view = MessageView(key.action.apply(bytes(view.data)))
    if isinstance(queue, Node):
        return queue.spread(view, contents, choose)
    contents.setdefault(bytes(view.data), {})[queue] = None
    return True


class Plan:
    """A router flattened: answers for batches until something on the way changes."""

    __slots__ = ("_choose", "_fixed", "_known", "_node", "_sets", "names", "policy", "problem", "until_ms")

    def __init__(
        self,
        node: Node | None,
        *,
        policy: Policy,
        names: frozenset[str],
        until_ms: int | None,
        choose: Choose,
        problem: str = "",
    ) -> None:
        self.policy = policy
        """Of the router that messages are sent to."""
        self.names = names
        """Everything that was looked at: a change of any of them makes the plan void."""
        self.until_ms = until_ms
        """When the first subscription on the way expires, or None."""
        self.problem = problem
        """Why no message can be routed at all, for people; empty where there is no problem."""
        self._node = node
        self._choose = choose
        self._known: dict[int, tuple[Sequence[Key], Queues | None]] = {}
        """By identity of what the matcher gave: the queues, or None where ways have to be walked."""
        self._sets: dict[tuple[str, ...], Queues] = {}
        self._fixed: Queues | None = None
        if node is not None and not node.chooses and not node.matcher.looks_at_messages:
            keys = [key for key, _ in node.entries]
            if all(type(key) is str for key in keys):
                self._fixed = frozenset(str(key) for key in keys)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there who could get any message."""
        return self._node is None

    def route(self, payloads: list[bytes]) -> Routed:
        """What becomes of the messages of a batch. Never raises for what is in them."""
        node = self._node
        if node is None:
            return Routed([], range(len(payloads)))
        if self._fixed is not None:
            return Routed([Group(self._fixed, list(range(len(payloads))), payloads)], ())
        groups: list[Group] = []
        unroutable: list[int] = []
        by_queues: dict[Queues, Group] = {}
        by_queue: dict[str, Group] = {}
        known = self._known
        targets = node.matcher.targets
        walks = node.chooses
        for index, payload in enumerate(payloads):
            view = MessageView(payload)
            if not walks:
                keys = targets(view)
                found = known.get(id(keys))
                queues = self._learn(keys) if found is None else found[1]
                if queues is not None:
                    if not queues:
                        unroutable.append(index)
                        continue
                    group = by_queues.get(queues)
                    if group is not None and not group.is_closed:
                        group.indices.append(index)
                        group.payloads.append(payload)
                    else:
                        groups.append(_begin(queues, index, payload, by_queues, by_queue))
                    continue
            contents: Contents = {}
            if not node.spread(view, contents, self._choose):
                unroutable.append(index)
            for content, names in contents.items():
                queues = self._set(tuple(names))
                group = by_queues.get(queues)
                if group is not None and not group.is_closed:
                    group.indices.append(index)
                    group.payloads.append(content)
                else:
                    groups.append(_begin(queues, index, content, by_queues, by_queue))
        return Routed(groups, unroutable)

    def _learn(self, keys: Sequence[Key]) -> Queues | None:
        if len(self._known) >= limits.TARGET_SETS_MAX:
            self._known.clear()
        plain = all(type(key) is str for key in keys)
        queues = self._set(tuple(str(key) for key in keys)) if plain else None
        # The keys are kept beside it: their identity can't become that of others.
        self._known[id(keys)] = keys, queues
        return queues

    def _set(self, names: tuple[str, ...]) -> Queues:
        found = self._sets.get(names)
        if found is None:
            if len(self._sets) >= limits.TARGET_SETS_MAX:
                self._sets.clear()
            found = self._sets[names] = frozenset(names)
        return found


def _begin(
    queues: Queues, index: int, payload: bytes, by_queues: dict[Queues, Group], by_queue: dict[str, Group]
) -> Group:
    """A new group; the earlier ones that have a queue of it take no more, for the sake of order."""
    group = Group(queues, [index], [payload])
    by_queues[queues] = group
    for queue in queues:
        earlier = by_queue.get(queue)
        if earlier is not None:
            earlier.is_closed = True
        by_queue[queue] = group
    return group


class Routing:
    """The plans of all routers of one process; as new as the directory was last refreshed."""

    def __init__(self, directory: Directory, choose: Choose = at_random) -> None:
        self._directory = directory
        self._choose = choose
        self._plans: dict[str, Plan] = {}
        directory.listen(self._changed)

    def plan(self, router: str, now_ms: int) -> Plan | None:
        """The plan of a router; None for a name that is none."""
        plan = self._plans.get(router)
        if plan is not None and (plan.until_ms is None or now_ms < plan.until_ms):
            return plan
        record = self._directory.get(router)
        if record.role is not Role.ROUTER:
            return None
        plan = self._plans[router] = _Planner(self._directory, now_ms).plan(router, self._choose)
        return plan

    def _changed(self, changes: Changes) -> None:
        touched = changes.routers.union(changes.names)
        for router in [name for name, plan in self._plans.items() if not plan.names.isdisjoint(touched)]:
            del self._plans[router]


class _TooManyPaths(Exception):
    pass


class _Planner:
    """Makes one plan."""

    def __init__(self, directory: Directory, now_ms: int) -> None:
        self._directory = directory
        self._now_ms = now_ms
        self._until_ms: int | None = None
        self._names: set[str] = set()
        self._nodes: dict[str, Node | None] = {}
        self._open: set[str] = set()

    def plan(self, router: str, choose: Choose) -> Plan:
        problem = ""
        try:
            node = self._node(router)
        except _TooManyPaths:
            node = None
            problem = (
                f"more than {limits.ROUTE_PATHS_MAX} ways lead from {router} to queues; "
                "let fewer routers feed the same ones"
            )
        return Plan(
            node,
            policy=self._directory.get(router).policy,
            names=frozenset(self._names),
            until_ms=self._until_ms,
            choose=choose,
            problem=problem,
        )

    def _node(self, router: str) -> Node | None:
        """A router that leads somewhere, or None."""
        if router in self._nodes:
            return self._nodes[router]
        self._names.add(router)
        self._open.add(router)
        chooses = self._directory.get(router).policy["distribution"] == "one"
        entries: list[tuple[Key, Filter | None]] = []
        paths = 0
        for subscription in self._directory.subscriptions(router):
            if self._is_over(subscription):
                continue
            target = self._target(subscription)
            if target is None:
                continue
            try:
                spec = subscription.filter
                filter = None if spec is None else compile_filter(spec)
                action = None if subscription.action is None else compile_action(subscription.action)
            except FilterError as error:
                log.error("subscription %s of %s gets nothing: %s", subscription.id, router, error)
                continue
            paths += target.paths if isinstance(target, Node) else 1
            if paths > limits.ROUTE_PATHS_MAX:
                raise _TooManyPaths
            if action is None and isinstance(target, str):
                entries.append((target, filter))
            elif action is None and isinstance(target, Node) and not chooses and not target.chooses:
                entries += [(key, _both(filter, inner)) for key, inner in target.entries]
            else:
                entries.append((Branch(action, target), filter))
        self._open.remove(router)
        node = self._nodes[router] = Node(chooses, entries, paths) if entries else None
        return node

    def _target(self, subscription: Subscription) -> str | Node | None:
        """The queue or router that a subscription leads to, while it is there."""
        name = subscription.target
        if subscription.push:
            name = rules.subscription_name(subscription.router, subscription.id)
        self._names.add(name)
        self._names.add(rules.owner(name))
        role = self._directory.get(name).role
        if role is Role.QUEUE:
            return name
        if role is not Role.ROUTER:
            return None
        if name in self._open:
            # Two who subscribed in the same moment, each before seeing the other.
            log.error(
                "%s feeds itself by subscription %s of %s, which gets nothing: delete it",
                name,
                subscription.id,
                subscription.router,
            )
            return None
        return self._node(name)

    def _is_over(self, subscription: Subscription) -> bool:
        if subscription.expires_at is None:
            return False
        expires = Policy(Role.NONE, {"expires_at": subscription.expires_at}).expires_at_ms
        if expires is None or expires <= self._now_ms:
            return True
        if self._until_ms is None or expires < self._until_ms:
            self._until_ms = expires
        return False


def _both(outer: Filter | None, inner: Filter | None) -> Filter | None:
    if outer is None or inner is None:
        return inner if outer is None else outer
    return joined([outer, inner])


UNROUTABLE: Final = "nobody subscribes to {router}, or no filter lets this message pass"
"""What a sender is told of a message that nobody gets."""
