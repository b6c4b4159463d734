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
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from lightrail.filters.action import Action, compile_action
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import Filter, compile_filter, joined
from lightrail.filters.looks import COMPILING, Looks, unlimited
from lightrail.filters.matcher import Matcher
from lightrail.filters.message import MessageView
from lightrail.model import limits
from lightrail.model import names as rules
from lightrail.model.policy import Policy, Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Subscription

log = logging.getLogger("lightrail.namespace.routing")

_STEP: Final = 10
_ACTION: Final = 100
"""Units (filters/looks.py) of one way on from a router, and of an action on it."""
_NOWHERE: Final[frozenset[str]] = frozenset()
_LIGHT: Final = 30
"""Units of a message beside its filters."""

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


class Walk:
    """A batch on its way through a plan; it stops where the looks of a turn are used up, and goes on
    there."""

    __slots__ = ("_steps", "plan", "routed")

    def __init__(self, plan: "Plan", steps: Generator[None, None, Routed]) -> None:
        self.plan = plan
        self._steps = steps
        self.routed: Routed | None = None
        """What the plan says of the batch, once `go_on` was true."""

    def go_on(self) -> bool:
        """Looks at messages; True when all of them have been looked at. Never raises for what is in them."""
        if self.routed is None:
            try:
                next(self._steps)
            except StopIteration as end:
                self.routed = end.value
        return self.routed is not None


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

    def spread(
        self, view: MessageView, contents: Contents, choose: Choose, looks: Looks
    ) -> Generator[None, None, bool]:
        """Adds what becomes of a message; False when nobody gets it. Yields where the looks are used up."""
        keys: Sequence[Key] = yield from self.matcher.search(view, looks)
        if self.chooses:
            left = list(keys)
            while left:
                if (yield from _follow(left.pop(choose(len(left))), view, contents, choose, looks)):
                    return True
            return False
        found = False
        for key in keys:
            if (yield from _follow(key, view, contents, choose, looks)):
                found = True
        return found


def _follow(
    key: Key, view: MessageView, contents: Contents, choose: Choose, looks: Looks
) -> Generator[None, None, bool]:
    looks.left -= _STEP + (len(view.data) >> 9)
    if type(key) is str:
        queue: str | Node = key
    else:
        assert isinstance(key, Branch)
        queue = key.target
        if key.action is not None:
            view = MessageView(key.action.apply(bytes(view.data)))
            looks.left -= _ACTION + (len(view.data) >> 6)
    if looks.left <= 0:
        yield
    if isinstance(queue, Node):
        return (yield from queue.spread(view, contents, choose, looks))
    contents.setdefault(bytes(view.data), {})[queue] = None
    return True


class Plan:
    """A router flattened: answers for batches until something on the way changes."""

    __slots__ = (
        "_choose",
        "_fixed",
        "_is_light",
        "_known",
        "_node",
        "_sets",
        "names",
        "policy",
        "problem",
        "until_ms",
    )

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
        self._is_light = False
        if node is not None and all(type(key) is str for key, _ in node.entries):
            self._is_light = node.matcher.is_light
            if not node.chooses and not node.matcher.looks_at_messages:
                self._fixed = frozenset(str(key) for key, _ in node.entries)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there who could get any message."""
        return self._node is None

    def route(self, payloads: list[bytes]) -> Routed:
        """What becomes of the messages of a batch, all in one turn."""
        walk = self.begin(payloads, unlimited())
        assert walk.go_on()
        assert walk.routed is not None
        return walk.routed

    def at_once(self, payloads: list[bytes], looks: Looks) -> Routed | None:
        """What becomes of the messages of a batch where that is cheap; None where a walk has to be begun."""
        if self._fixed is not None:
            return Routed([Group(self._fixed, list(range(len(payloads))), payloads)], ())
        if self._node is None:
            return Routed([], range(len(payloads)))
        if self._is_light:
            cost = _LIGHT * len(payloads) + (sum(map(len, payloads)) >> 2)
            if cost <= looks.left:
                looks.left -= cost
                return self._light(self._node, payloads)
        return None

    def _light(self, node: Node, payloads: list[bytes]) -> Routed:
        """Routes a batch where a message costs next to nothing and only queues lie behind the router."""
        groups: list[Group] = []
        unroutable: list[int] = []
        by_queues: dict[Queues, Group] = {}
        by_queue: dict[str, Group] = {}
        known = self._known
        targets = node.matcher.targets
        choose = self._choose if node.chooses else None
        for index, payload in enumerate(payloads):
            keys = targets(MessageView(payload))
            if choose is None:
                found = known.get(id(keys))
                queues = self._learn(keys) if found is None else found[1]
            else:
                queues = self._set((str(keys[choose(len(keys))]),)) if keys else _NOWHERE
            if not queues:
                unroutable.append(index)
                continue
            group = by_queues.get(queues)
            if group is not None and not group.is_closed:
                group.indices.append(index)
                group.payloads.append(payload)
            else:
                groups.append(_begin(queues, index, payload, by_queues, by_queue))
        return Routed(groups, unroutable)

    def begin(self, payloads: list[bytes], looks: Looks, choose: Choose | None = None) -> Walk:
        """Sends a batch on its way.

        Args:
            looks: of the turn; a walk goes on with the same ones.
            choose: what `one` chooses by, where that is not what the plan was made with.
        """
        return Walk(self, self._steps(payloads, looks, choose or self._choose))

    def _steps(
        self, payloads: list[bytes], looks: Looks, choose: Choose
    ) -> Generator[None, None, Routed]:
        if looks.left <= 0:
            yield
        node = self._node
        if node is None or self._fixed is not None:
            routed = self.at_once(payloads, looks)
            assert routed is not None
            return routed
        groups: list[Group] = []
        unroutable: list[int] = []
        by_queues: dict[Queues, Group] = {}
        by_queue: dict[str, Group] = {}
        known = self._known
        targets = node.matcher.targets
        is_light = node.matcher.is_light
        walks = node.chooses
        left = looks.left
        for index, payload in enumerate(payloads):
            view = MessageView(payload)
            if not walks:
                if is_light:
                    left -= _LIGHT + (len(payload) >> 6)
                    if left <= 0:
                        looks.left = left
                        yield
                        left = looks.left
                    keys = targets(view)
                    left -= view.spent
                else:
                    looks.left = left
                    keys = yield from node.matcher.search(view, looks)
                    left = looks.left - _LIGHT
                    if left <= 0:
                        looks.left = left
                        yield
                        left = looks.left
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
            looks.left = left
            if not (yield from node.spread(view, contents, choose, looks)):
                unroutable.append(index)
            left = looks.left - _LIGHT
            for content, names in contents.items():
                queues = self._set(tuple(names))
                group = by_queues.get(queues)
                if group is not None and not group.is_closed:
                    group.indices.append(index)
                    group.payloads.append(content)
                else:
                    groups.append(_begin(queues, index, content, by_queues, by_queue))
        looks.left = left
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
        self._compiled: dict[str, dict[str, Compiled]] = {}
        """By router, and by subscription: what was compiled for the last plans."""
        directory.listen(self._changed)

    def plan(self, router: str, now_ms: int) -> Plan | None:
        """The plan of a router; None for a name that is none."""
        plan = self._plans.get(router)
        if plan is not None and (plan.until_ms is None or now_ms < plan.until_ms):
            return plan
        record = self._directory.get(router)
        if record.role is not Role.ROUTER:
            return None
        planner = _Planner(self._directory, now_ms, self._compiled_of)
        plan = self._plans[router] = planner.plan(router, self._choose)
        return plan

    def prepare(self, router: str, now_ms: int, looks: Looks) -> bool:
        """Compiles filters that a plan of a router would need; False where the looks are used up before the
        end.

        `plan` compiles the others: whoever has no time for ten thousand filters asks here first.
        """
        plan = self._plans.get(router)
        if plan is not None and (plan.until_ms is None or now_ms < plan.until_ms):
            return True
        left, seen = [router], {router}
        while left:
            name = left.pop()
            for subscription in self._directory.subscriptions(name):
                if looks.left <= 0:
                    return False
                compiled = self._compiled_of(subscription)
                if compiled.is_new:
                    compiled.is_new = False
                    looks.left -= COMPILING * (1 + compiled.weight)
                target = subscription.target
                if target not in seen and self._directory.get(target).role is Role.ROUTER:
                    seen.add(target)
                    left.append(target)
        return True

    def _compiled_of(self, subscription: Subscription) -> "Compiled":
        """What a subscription asks for, compiled once as long as it stays as it is."""
        of_router = self._compiled.setdefault(subscription.router, {})
        compiled = of_router.get(subscription.id)
        if compiled is None or compiled.subscription is not subscription:
            compiled = of_router[subscription.id] = Compiled(subscription)
        return compiled

    def _changed(self, changes: Changes) -> None:
        for router in changes.routers:
            self._forget(router)
        touched = changes.routers.union(changes.names)
        for router in [name for name, plan in self._plans.items() if not plan.names.isdisjoint(touched)]:
            del self._plans[router]


    def _forget(self, router: str) -> None:
        """Forgets what was compiled for subscriptions that are there no more."""
        of_router = self._compiled.get(router)
        if of_router is not None:
            there = {each.id for each in self._directory.subscriptions(router)}
            for id in [id for id in of_router if id not in there]:
                del of_router[id]
            if not of_router:
                del self._compiled[router]


class Compiled:
    """The filter and the action of a subscription, or why it gets nothing."""

    __slots__ = ("action", "filter", "is_new", "problem", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.filter: Filter | None = None
        self.action: Action | None = None
        self.problem: FilterError | None = None
        self.is_new = True
        """It was not counted yet."""
        try:
            if subscription.filter is not None:
                self.filter = compile_filter(subscription.filter)
            if subscription.action is not None:
                self.action = compile_action(subscription.action)
        except FilterError as error:
            self.problem = error

    @property
    def weight(self) -> int:
        return 0 if self.filter is None else self.filter.weight


class _TooManyPaths(Exception):
    pass


class _Planner:
    """Makes one plan."""

    def __init__(
        self, directory: Directory, now_ms: int, compiled: Callable[[Subscription], Compiled]
    ) -> None:
        self._directory = directory
        self._now_ms = now_ms
        self._compiled = compiled
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
            compiled = self._compiled(subscription)
            if compiled.problem is not None:
                log.error("subscription %s of %s gets nothing: %s", subscription.id, router, compiled.problem)
                continue
            filter, action = compiled.filter, compiled.action
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
