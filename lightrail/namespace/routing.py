"""Routing: the plans of all routers of a process.

A router with all names that it feeds is flattened once into a plan, which is dropped when a name or
subscription on the path changes. The rules:
- `all`: every subscription whose filter matches. `one`: one of them, chosen at random for each message among
  the available targets: a queue always is available, the queue of a receiver while it exists, a router if
  it would itself send the message to a target.
- An action rewrites the message for the target of its subscription, including filters behind the target.
- A queue receives a message once for each different content, however many paths lead there.
- Each queue receives its messages in the order of the batch: a group is closed for a set of queues as soon as
  a later group has one of them.
"""

import random
from typing import Final

from lightrail.filters.matcher import COMPILING, Looks
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.planner import Compiled, Planner
from lightrail.namespace.records import Subscription
from lightrail.namespace.router_plan import Choose, Plan

UNROUTABLE: Final = "nobody subscribes to {router}, or no filter lets this message pass"
"""Error text for a message that no subscription matches."""
NO_ROUTER: Final = "{router} is no longer a router"
"""Error text for messages to a name that was a router."""


def at_random(count: int) -> int:
    """The choice that `one` makes among its subscribers."""
    return int(random.random() * count)


class Routing:
    """The plans of all routers of one process, as of the directory's last refresh."""

    def __init__(self, directory: Directory, choose: Choose = at_random) -> None:
        self._directory = directory
        self._choose = choose
        self._plans: dict[str, Plan] = {}
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
        return plan

    def prepare(self, router: str, now_ms: int, looks: Looks) -> bool:
        """Compiles the filters of a router's next plan; returns False if the looks are used up before.

        `plan` compiles all missing filters at once, which takes too long for one turn with ten thousand of
        them.
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

    def _compiled_of(self, subscription: Subscription) -> Compiled:
        """The compiled filter and action of a subscription, until it changes."""
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
        """Forgets the filters of deleted subscriptions."""
        of_router = self._compiled.get(router)
        if of_router is not None:
            there = {each.id for each in self._directory.subscriptions(router)}
            for id in [id for id in of_router if id not in there]:
                del of_router[id]
            if not of_router:
                del self._compiled[router]
