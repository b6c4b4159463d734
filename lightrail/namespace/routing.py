"""Routing: the plans of all routers of a process.

A router with all names that it feeds is flattened once into a plan, which is dropped when a name or
subscription on the path changes. The rules:
- `all`: every subscription whose filter matches. `one`: one of them, chosen at random for each message among
  the available targets: a queue always is available, the queue of a receiver while it exists, a router if
  it would itself send the message to a target.
- An action rewrites the message for the target of its subscription, including filters behind the target.
- A queue receives a message once for each different content, however many paths lead there; and once for
  each name of a rule of Azure Service Bus whose action has made it.
- Each queue receives its messages in the order of the batch: a group is closed for a set of queues as soon as
  a later group has one of them.

Planner: flattens a router, with every router behind it, into a plan.
"""

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from lightrail.filters.filter import Filter, failing, joined
from lightrail.filters.matcher import COMPILING, Looks
from lightrail.filters.rules.rule_action import RuleAction
from lightrail.model import conditions, limits
from lightrail.model import names as spelling
from lightrail.model.policy import Policy, Role
from lightrail.namespace.ages import NEVER, ages_behind
from lightrail.namespace.copies import Choose, SizeBound
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.failures import Noting
from lightrail.namespace.forwarding import ChainEnd, chain_of
from lightrail.namespace.records import Right, Subscription, refused_by_status
from lightrail.namespace.router_plan import Branch, Key, Plan, RouterNode
from lightrail.namespace.rules import Compiled
from lightrail.namespace.topic_uses import UseNotes, idle_s
from lightrail.wire.bodies import Refusal

ROUTE_PATHS_MAX: Final[int] = 100_000
"""Paths of a message from a router to queues, over all routers behind it."""

log = logging.getLogger("lightrail.namespace.routing")


class _TooManyPathsError(Exception):
    pass


@dataclass(eq=False, repr=False)
class Planner:
    """Flattens one router into a plan."""

    _directory: Directory
    _now_ms: int
    _compiled: Callable[[Subscription], Compiled]
    _until_ms: int | None = None
    _names: set[str] = field(default_factory=set)
    _nodes: dict[str, RouterNode | None] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _no_local: dict[str, str] = field(default_factory=dict)
    _targets: dict[str, list[str]] = field(default_factory=dict)
    """By router, and by queue that forwards: the queues and routers to which it sends messages."""
    _forwarded: dict[str, ChainEnd] = field(default_factory=dict)
    _dead: set[str] = field(default_factory=set)
    """Queues of dead letters that failing rules make, in which messages do not expire."""
    _changed: set[str] = field(default_factory=set)
    """Queues and routers for which actions set the time to live of messages."""
    _ends: list[tuple[Subscription, str]] = field(default_factory=list)
    """Subscriptions with the queues that store their messages."""
    _has_actions: bool = False
    """Whether some have rules with actions of Azure Service Bus."""

    def plan(self, router: str, choose: Choose) -> Plan:
        policy = self._directory.get(router).policy
        why = refused_by_status(policy, Right.SEND)
        problem = Refusal(conditions.ENTITY_DISABLED, f"{router} is disabled: {why}") if why else None
        try:
            node = self._node(router)
        except _TooManyPathsError:
            node = None
            problem = problem or Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"more than {ROUTE_PATHS_MAX} paths lead from {router} to queues; "
                "let fewer routers feed the same ones",
            )
        bounds = self._bounds(router)
        return Plan(
            node,
            choose,
            policy=policy,
            names=frozenset(self._names),
            until_ms=self._until_ms,
            problem=problem,
            no_local=self._no_local,
            ages_ms=dict.fromkeys(self._dead, NEVER) | self._ages(router),
            forwarded=self._forwarded,
            bounds=bounds,
        )

    def _ages(self, router: str) -> dict[str, int]:
        ages = {name: self._directory.get(name).policy.milliseconds("max_age") for name in self._targets}
        sources = {end.source for end in self._forwarded.values()}
        return ages_behind(router, self._targets, sources, ages, self._changed)

    def _node(self, router: str) -> RouterNode | None:
        """The node of a router; None if no queue can be reached from it."""
        if router in self._nodes:
            return self._nodes[router]
        self._names.add(router)
        self._open.add(router)
        chooses = self._directory.get(router).policy["distribution"] == "one"
        entries: list[tuple[Key, Filter | None]] = []
        paths = 0
        targets = self._targets[router] = []
        for subscription in self._directory.subscriptions(router):
            if self._is_over(subscription):
                continue
            target = self._target(subscription)
            if target is None:
                continue
            compiled = self._compiled(subscription)
            if compiled.problem is not None:
                log.error(
                    "subscription %s of %s receives no messages: %s",
                    subscription.id,
                    router,
                    compiled.problem,
                )
                continue
            targets.append(self._name_of(subscription))
            if isinstance(target, str):
                self._ends.append((subscription, target))
                if subscription.no_local:
                    self._no_local[target] = subscription.no_local
            failing_at: str | None = None
            if compiled.may_fail and not subscription.drop_failed and isinstance(target, str):
                failing_at = self._failing_at(self._name_of(subscription))
            # Each rule is a separate edge.
            for filter, action in compiled.rules:
                paths += target.paths if isinstance(target, RouterNode) else 1
                if paths > ROUTE_PATHS_MAX:
                    raise _TooManyPathsError
                if action is None and isinstance(target, str):
                    entries.append((target, filter))
                elif action is None and isinstance(target, RouterNode) and not chooses and not target.chooses:
                    entries += [(key, _both(filter, inner)) for key, inner in target.entries]
                else:
                    if isinstance(action, RuleAction):
                        self._has_actions = True
                        if action.sets_life:
                            self._changed.add(self._name_of(subscription))
                    entries.append((Branch(action, target, failing_at), filter))
                if failing_at is not None and filter is not None and filter.error is not None:
                    noting = Noting(filter.error, failing_at, filter.weight)
                    dead_letters = spelling.dead_letter_name(failing_at)
                    entries.append((Branch(noting, dead_letters), failing(filter)))
        self._open.remove(router)
        node = self._nodes[router] = RouterNode(chooses, entries, paths) if entries else None
        return node

    def _target(self, subscription: Subscription) -> str | RouterNode | None:
        """The queue, or the node of the router, that is the target of a subscription; None without one."""
        name = self._name_of(subscription)
        self._names.add(name)
        self._names.add(spelling.owner(name))
        role = self._directory.get(name).role
        if role is Role.QUEUE:
            # The last queue of a chain may have the same messages by another subscription.
            return name if subscription.no_local else self._end_of(name)
        if role is not Role.ROUTER:
            return None
        if name in self._open:
            # Two subscriptions were created at once, each before the other was visible.
            log.error(
                "%s feeds itself by subscription %s of %s, which receives no messages: delete it",
                name,
                subscription.id,
                subscription.router,
            )
            return None
        return self._node(name)

    def _name_of(self, subscription: Subscription) -> str:
        """The name of the queue or router to which a subscription sends."""
        if subscription.push:
            return spelling.subscription_name(subscription.router, subscription.id)
        return subscription.target

    def _bounds(self, router: str) -> dict[str, SizeBound]:
        """The queues that do not take every message which an action of a rule may make, with their bounds.

        With several ways to a queue the widest one counts.
        """
        found: dict[str, SizeBound] = {}
        widths = self._widths(router)
        for subscription, queue in self._ends if self._has_actions else ():
            name = self._name_of(subscription)
            most = min(widths(subscription.router), self._takes(name), self._takes(queue))
            place = None
            if most < limits.MAX_MESSAGE_BYTES and not subscription.drop_failed:
                place = self._failing_at(name)
                # Without a place for what fails, the queue refuses it.
                most = limits.MAX_MESSAGE_BYTES if place is None else most
            if queue not in found or most > found[queue].bytes_max:
                found[queue] = SizeBound(most, place)
        return {queue: each for queue, each in found.items() if each.bytes_max < limits.MAX_MESSAGE_BYTES}

    def _widths(self, router: str) -> Callable[[str], int]:
        """The largest message that gets through each router; what the first one takes is checked when it
        comes."""
        found = {router: limits.MAX_MESSAGE_BYTES}
        before: dict[str, list[str]] = {}
        for name, targets in self._targets.items() if self._has_actions else ():
            for target in targets:
                before.setdefault(target, []).append(name)

        def width(name: str) -> int:
            if name not in found:
                widest = max(map(width, before.get(name, ())), default=limits.MAX_MESSAGE_BYTES)
                found[name] = min(widest, self._takes(name))
            return found[name]

        return width

    def _takes(self, name: str) -> int:
        most = self._directory.get(name).policy["max_message_bytes"]
        return limits.MAX_MESSAGE_BYTES if most is None else int(most)

    def _end_of(self, queue: str) -> str:
        """The queue that stores messages for a queue: itself, or the end of its chain."""
        policy = self._directory.get(queue).policy
        if policy["forward_to"] is None:
            return queue
        chain = chain_of(self._directory, queue)
        self._names |= chain.names
        # A queue that looks for duplicates has to see the messages, and the end of a part is no end.
        if policy["duplicate_window"] is not None or not chain.is_complete:
            return queue
        self._targets |= {step: [following] for step, following in chain.steps}
        self._forwarded[chain.last] = ChainEnd(queue, chain.hops)
        return chain.last

    def _failing_at(self, queue: str) -> str | None:
        """The queue whose dead letters are messages for which a rule fails; None for one of dead letters.

        A gateway forwards them like others: a name that refuses dead letters refuses no sender.
        """
        if spelling.is_dead_letter(queue):
            return None
        self._dead.add(spelling.dead_letter_name(queue))
        return queue

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
"""Error text for a message that no subscription matches."""
NO_ROUTER: Final = "{router} is no longer a router"
"""Error text for messages to a name that was a router."""


def at_random(count: int) -> int:
    """The choice that `one` makes among its subscribers."""
    return int(random.random() * count)


class Routing:
    """The plans of all routers of one process, as of the directory's last refresh.

    Args:
        notes: of the topics that the process uses; None for a process that notes nothing.
    """

    def __init__(
        self, directory: Directory, choose: Choose = at_random, notes: UseNotes | None = None
    ) -> None:
        self._directory = directory
        self._choose = choose
        self._notes = notes
        if notes is not None:
            notes.rest = self._rest
        self._plans: dict[str, Plan] = {}
        self._resting: dict[str, Plan] = {}
        """Plans whose next use has to be noted first, as topics with max_idle are on their paths."""
        self._noted: dict[str, set[str]] = {}
        """These topics by router."""
        self._compiled: dict[str, dict[str, Compiled]] = {}
        """Compiled filters by router and by id of the subscription."""
        directory.listen(self._changed)

    def plan(self, router: str, now_ms: int) -> Plan | None:
        """The plan of a router; None for another name."""
        plan = self._plans.get(router)
        if plan is not None and (plan.until_ms is None or now_ms < plan.until_ms):
            return plan
        record = self._directory.get(router)
        if record.role is not Role.ROUTER:
            return None
        planner = Planner(self._directory, now_ms, self._compiled_of)
        plan = self._plans[router] = planner.plan(router, self._choose)
        self._resting.pop(router, None)
        if self._notes is not None and (noted := self._noted_by(plan.names)):
            self._noted[router] = noted
            self._notes.begin()
        return plan

    def _noted_by(self, names: Iterable[str]) -> set[str]:
        return {each for each in names if idle_s(self._directory.get(each)) is not None}

    def _rest(self) -> set[str]:
        """Puts the plans aside whose use is noted; returns their topics, used since the last call."""
        used: set[str] = set()
        for router in [each for each in self._noted if each in self._plans]:
            self._resting[router] = self._plans.pop(router)
            used |= self._noted[router]
        return used

    def _resume(self, router: str, plan: Plan, now_ms: int) -> bool:
        """Uses a plan again that was put aside; returns False while its use is not noted."""
        assert self._notes is not None
        if not self._notes.admits(self._noted[router], now_ms):
            return False
        del self._resting[router]
        self._plans[router] = plan
        self._notes.begin()
        return True

    def prepare(self, router: str, now_ms: int, looks: Looks) -> bool:
        """Compiles the filters of a router's next plan; returns False if the looks are used up before, or
        while the use of a topic is not noted.

        `plan` compiles all missing filters at once, which takes too long for one turn with ten thousand of
        them.
        """
        plan = self._plans.get(router)
        if plan is not None and (plan.until_ms is None or now_ms < plan.until_ms):
            return True
        plan = self._resting.get(router)
        if plan is not None and (plan.until_ms is None or now_ms < plan.until_ms):
            return self._resume(router, plan, now_ms)
        left, seen = [router], {router}
        while left:
            name = left.pop()
            for subscription in self._directory.subscriptions(name):
                if looks.left <= 0:
                    return False
                compiled = self._compiled_of(subscription)
                if compiled.is_new:
                    compiled.is_new = False
                    looks.left -= COMPILING * (1 + compiled.new_weight)
                target = subscription.target
                if target not in seen and self._directory.get(target).role is Role.ROUTER:
                    seen.add(target)
                    left.append(target)
        return self._notes is None or self._notes.admits(self._noted_by(seen), now_ms)

    def _compiled_of(self, subscription: Subscription) -> Compiled:
        """The compiled filter and action of a subscription, until it changes."""
        of_router = self._compiled.setdefault(subscription.router, {})
        compiled = of_router.get(subscription.id)
        if compiled is None or compiled.subscription is not subscription:
            compiled = of_router[subscription.id] = Compiled(subscription, compiled)
        return compiled

    def _changed(self, changes: Changes) -> None:
        for router in changes.routers:
            self._forget(router)
        touched = changes.routers.union(changes.names)
        for plans in (self._plans, self._resting):
            for router in [name for name, plan in plans.items() if not plan.names.isdisjoint(touched)]:
                del plans[router]
                self._noted.pop(router, None)

    def _forget(self, router: str) -> None:
        """Forgets the filters of deleted subscriptions."""
        of_router = self._compiled.get(router)
        if of_router is not None:
            there = {each.id for each in self._directory.subscriptions(router)}
            for id in [id for id in of_router if id not in there]:
                del of_router[id]
            if not of_router:
                del self._compiled[router]
