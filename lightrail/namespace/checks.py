"""Checks: whether a new policy or subscription fits the existing names."""

import logging
from collections.abc import Callable, Iterator, Mapping
from enum import IntFlag
from typing import Any, Final

from lightrail.cluster.coordinator import WRITES_MAX, Write, unchanged
from lightrail.cluster.placement import NO_REPLICAS
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.model import limits
from lightrail.model import names as spelling
from lightrail.model.policy import InvalidPolicyError, Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, Name, Right, Subscription
from lightrail.namespace.rights import Caller, ForbiddenError, demand, may
from lightrail.namespace.rules import check_rules, compile_any_action
from lightrail.namespace.statuses import (
    ChangedError,
    LimitExceededError,
    MissingError,
    ServiceError,
    TakenError,
)
from lightrail.namespace.topic_uses import use_write

log = logging.getLogger("lightrail.namespace.checks")

SUBSCRIPTIONS_MAX: Final[int] = 10_000
"""Subscriptions of a router, by default."""
FILTERS_BYTES_MAX: Final[int] = 4 * 1024 * 1024
"""Bytes of the filters, actions and rules of all subscriptions, as JSON; a frontend or gateway that routes by
all of them takes up to 120 bytes for each."""
OWNER_PARTS: Final = {"connection": 3, "session": 4, "link": 5}
"""Number of parts of the owner (see `Name.owner`) for each lifetime of an AMQP client."""


def dead_letter_target(policy: Policy) -> str | None:
    """The name to which a queue with this policy sends dead letters; None for NAME/$dlq."""
    target: str | None = policy["dead_letter"] if policy.role is Role.QUEUE else None
    return target


def check_spelling(name: str) -> None:
    """Raises ServiceError for a new name that is not in composed form (model/names.py)."""
    try:
        spelling.check_spelling(name)
    except spelling.InvalidNameError as error:
        raise ServiceError(str(error)) from None


def check_new(directory: Directory, name: str, known: Name | None) -> None:
    """Checks a name that is about to get a role, and warns about others that differ in case alone.

    Args:
        known: its record that the caller replaces, for a name whose policy has no role; None for a new name.

    Raises:
        TakenError: it has a role. LimitExceededError. ServiceError: its spelling.
    """
    found = directory.find(name)
    if found is None and not spelling.is_system(name):
        check_spelling(name)
    if found is not None and found is not known:
        raise TakenError(
            f"{name} has role {found.role} already; change its policy at {name}/!policy, or delete it"
        )
    if directory.count() >= limits.NAMES_MAX:
        raise LimitExceededError(f"there are {limits.NAMES_MAX} names with a role already, which is the most")
    if others := [each for each in directory.spelled(name) if each != name]:
        log.warning(
            "%a is created beside %s: clients of Azure Service Bus, to which case makes no difference, have "
            "to write each of them as it is",
            *(name, ", ".join(map(ascii, others))),
        )


def check_lifetime(policy: Policy, owner: str) -> None:
    """Raises InvalidPolicyError for the lifetime of a client without a client: the name would stay."""
    if policy["lifetime"] in OWNER_PARTS and not owner:
        raise InvalidPolicyError(
            "lifetime",
            policy["lifetime"],
            "permanent or last_consumer here; only names that an AMQP client creates can be deleted with it: "
            "a dynamic node, or a name that it is the first to use, below a template with this lifetime",
        )


def forward_target(policy: Policy) -> str | None:
    """The name to which a queue with this policy forwards its messages, if it does."""
    target: str | None = policy["forward_to"] if policy.role is Role.QUEUE else None
    return target


def _targets(policy: Policy, place: str = "") -> Iterator[tuple[str, str]]:
    """The names that get messages by a policy, and by its templates; each with its place in the policy."""
    for field, target_of in (("dead_letter", dead_letter_target), ("forward_to", forward_target)):
        if (target := target_of(policy)) is not None:
            yield place + field, target
    if policy["template"] is not None:
        yield from _targets(Policy(Role.QUEUE, policy["template"]), f"{place}template.")


def _replicas(policy: Policy, place: str = "") -> Iterator[tuple[str, int]]:
    """The replicas that a policy and its templates demand; each with its place in the policy."""
    if policy.role is Role.QUEUE:
        yield f"{place}replicas", policy["replicas"]
    if policy["template"] is not None:
        yield from _replicas(Policy(Role.QUEUE, policy["template"]), f"{place}template.")


def check_reach(directory: Directory, caller: Caller, policy: Policy, before: Policy | None = None) -> None:
    """Raises ForbiddenError where a policy concerns other names on which the caller has not the right.

    Names that get messages are those to which the caller may send, or a supplement. Names below are no
    business of the key of an authorization rule.

    Args:
        before: the present policy, which is not checked again.
    """
    below = ("auto_create", "template")
    if caller.by_rule is not None and any(
        policy[each] != (None if before is None else before[each]) for each in below
    ):
        raise ForbiddenError(
            f"{' and '.join(below)} decide about names below, where the key of a rule has no right"
        )
    known = {} if before is None else dict(_targets(before))
    for place, target in _targets(policy):
        if target == known.get(place):
            continue
        record = directory.get(target)
        callers = (*caller.supplements, caller)
        # A caller that may manage a name may grant itself the right to send to it.
        if not any(may(directory, each, Right.MANAGE, record) for each in callers):
            sender = next((each for each in callers if may(directory, each, Right.SEND, record)), caller)
            demand(directory, sender, Right.SEND, record)


def as_they_are(directory: Directory, *names: str) -> list[Write]:
    """Checks of a transaction that depends on these names: that they exist as the directory has them, or
    don't exist."""
    stored = dict.fromkeys(spelling.owner(each) for each in names)
    return [unchanged(NAMES + each, directory.stored_revision(each)) for each in stored]


def subscribed(directory: Directory, now_ms: int, router: str, *targets: str) -> list[Write]:
    """The part of a transaction that changes a subscription of a router to these targets, if any: checks of
    the names, and the note that the router is used."""
    return as_they_are(directory, router, *targets) + use_write(directory.get(router), now_ms)


def depends_on(directory: Directory, name: str, policy: Policy) -> list[Write]:
    """Checks of a transaction that gives a name this policy.

    It depends on where the dead letters and what it forwards end, and the queue of a subscription on its
    router.
    """
    router = spelling.router_of(name)
    path = [router] if router else []
    policies = [policy]
    for each in policies:
        for target in (dead_letter_target(each), forward_target(each)):
            # What a transaction has no room for is not checked.
            if target is not None and target not in (name, *path) and len(path) < WRITES_MAX // 2:
                path.append(target)
                policies.append(directory.get(target).policy)
    return as_they_are(directory, *(each for each in path if spelling.owner(each) != name))


def check_router(directory: Directory, name: str) -> None:
    """Raises MissingError for the queue of a subscription whose router does not exist."""
    router = spelling.router_of(name)
    if router and directory.get(router).role is not Role.ROUTER:
        raise MissingError(f"{router} has role {directory.get(router).role}; expected a router")


def check_policy(directory: Directory, name: str, policy: Policy, replicas_max: Callable[[], int]) -> None:
    """Raises InvalidPolicyError if messages or dead letters would return to the name, or are forwarded to a
    name that takes none, or if no shard has as many members as it demands; ServiceError for the spelling of a
    target."""
    _check_replicas(policy, directory.get(name).policy, replicas_max)
    _check_forwarding(directory, name, policy)
    target = dead_letter_target(policy)
    if target is None:
        return
    if directory.get(target).role is Role.NONE:
        check_spelling(target)
    path = _path(directory, target, name, _Passage.DEAD_LETTER)
    if path is not None and target != dead_letter_target(directory.get(name).policy):
        what = f"a name whose dead letters do not end in {name}: " + " -> ".join([name, *path])
        raise InvalidPolicyError("dead_letter", target, what)


def _check_replicas(policy: Policy, before: Policy, most: Callable[[], int]) -> None:
    """Raises InvalidPolicyError where a policy, or a template in it, demands more replicas than a shard has.

    Args:
        before: the present policy, whose demands are not checked again.
        most: the most that may be demanded.
    """
    known = dict(_replicas(before))
    for place, found in _replicas(policy):
        if found > 1 and found != known.get(place) and found > (allowed := most()):
            raise InvalidPolicyError(
                place, found, f"a whole number from 1 to {allowed}: {NO_REPLICAS.format(found)}"
            )


def _check_forwarding(directory: Directory, name: str, policy: Policy) -> None:
    target = forward_target(policy)
    if target is None:
        return
    if spelling.is_system(name):
        raise InvalidPolicyError("forward_to", target, "null for a queue of the broker's own")
    found = directory.get(target)
    # One that was deleted since does not hinder other changes: what it would get are dead letters.
    is_new = target != forward_target(directory.get(name).policy)
    if is_new and (found.role not in (Role.QUEUE, Role.ROUTER) or spelling.is_system(target)):
        what = "a name of the broker's own" if spelling.is_system(target) else f"its role is {found.role}"
        raise InvalidPolicyError("forward_to", target, f"a queue or router that exists ({what})")
    path = _path(directory, target, name, _Passage.FORWARD)
    if path is not None and is_new:
        raise InvalidPolicyError(
            "forward_to",
            target,
            f"a name whose messages do not return to {name}: " + " -> ".join([name, *path]),
        )


def replaceable(directory: Directory, router: Name, id: str, replace_it: bool) -> Subscription | None:
    """The subscription that a new one of this id replaces. Raises TakenError, LimitExceededError,
    ServiceError."""
    existing = directory.subscription(router.name, id)
    if existing is not None:
        if not replace_it:
            raise TakenError(f"{router.name} has a subscription {id} already")
        return existing
    check_spelling(id)
    most = router.policy["max_subscribers"]
    if most is None:
        most = SUBSCRIPTIONS_MAX
    if len(directory.subscriptions(router.name)) >= most:
        raise LimitExceededError(f"{router.name} has {most} subscriptions, which is its max_subscribers")
    return None


def check_replacement(existing: Subscription | None, made: Subscription, revision: int | None) -> None:
    """Raises ChangedError at another revision; ServiceError where a URL would become a name, or a name a URL.

    Args:
        revision: that the existing subscription should have; None for any.
    """
    if existing is None:
        return
    if revision not in (None, existing.revision):
        raise ChangedError(
            f"subscription {existing.id} of {existing.router} is at revision {existing.revision} by now"
        )
    if existing.push != made.push:
        raise ServiceError(
            f"subscription {made.id} of {made.router} sends to {existing.target}; a URL can't become a name "
            "or a name a URL: make another subscription, and delete this one"
        )


def check_subscription(
    filter: Mapping[str, Any] | None,
    action: Mapping[str, Any] | None,
    expires_at: str | None,
    rules: Mapping[str, Any] | None = None,
    known: Mapping[str, Any] | None = None,
) -> None:
    """Raises ServiceError for a filter, an action, rules or a time that can't be used.

    `known` are rules that were checked before.
    """
    try:
        compile_filter(filter)
        if action is not None:
            compile_any_action(action)
        if rules is not None:
            if filter is not None or action is not None:
                raise ServiceError("a subscription has rules, or a filter and an action; found both")
            check_rules(rules, known)
        if expires_at is not None:
            Policy.parse({"role": "none", "expires_at": expires_at})
    except (FilterError, InvalidPolicyError) as error:
        raise ServiceError(str(error)) from None


def check_filters(directory: Directory, existing: Subscription | None, made: Subscription) -> None:
    """Raises LimitExceededError if the filters of all subscriptions would take more than they may."""
    former = 0 if existing is None else existing.filter_bytes
    size, others = made.filter_bytes, directory.filter_bytes - former
    if size > former and others + size > FILTERS_BYTES_MAX:
        raise LimitExceededError(
            f"filters, actions and rules of all subscriptions have at most {FILTERS_BYTES_MAX} bytes "
            f"as JSON: these have {size}, and all others {others}"
        )


def check_target(directory: Directory, caller: Caller, router: str, target: str) -> None:
    """Raises MissingError, ForbiddenError, or ServiceError if the target feeds the router already."""
    spelling.check(target)
    record = directory.get(target)
    if record.role not in (Role.QUEUE, Role.ROUTER):
        raise MissingError(f"{target} has role {record.role}; expected a queue, a router or a URL as target")
    demand(directory, caller, Right.SEND, record)
    path = _path(directory, target, router, _Passage.SUBSCRIPTION)
    if path is not None:
        raise ServiceError(
            f"{router} can't feed {target}: messages would return in a cycle: " + " -> ".join([router, *path])
        )


class _Passage(IntFlag):
    """How messages come from one name to the next."""

    FORWARD = 1
    DEAD_LETTER = 2
    SUBSCRIPTION = 4


def _steps(directory: Directory, name: str) -> Iterator[tuple[str, _Passage]]:
    """The names to which messages come from a name at once."""
    policy = directory.get(name).policy
    forward = forward_target(policy)
    if forward is not None:
        yield forward, _Passage.FORWARD
    else:
        for each in directory.subscriptions(name):
            if not each.push:
                yield each.target, _Passage.SUBSCRIPTION
    dead_letters = dead_letter_target(policy)
    if dead_letters is not None:
        yield dead_letters, _Passage.DEAD_LETTER


def _is_endless(steps: _Passage) -> bool:
    """Whether messages may not return by these steps.

    Dead letters may return by subscriptions, whose filters decide how often.
    """
    return (
        steps & (_Passage.FORWARD | _Passage.DEAD_LETTER) != _Passage.DEAD_LETTER
        or _Passage.SUBSCRIPTION not in steps
    )


def _path(directory: Directory, start: str, goal: str, first: _Passage) -> list[str] | None:
    """The names on a path of messages from `start` to `goal`, both included, that is part of an endless
    cycle; None if there is none.

    Args:
        first: the step from `goal` to `start`.
    """
    seen = {(start, first)}
    waiting = [([start], first)]
    while waiting:
        path, steps = waiting.pop()
        if path[-1] == goal:
            if _is_endless(steps):
                return path
            continue
        for target, passage in _steps(directory, path[-1]):
            if (target, steps | passage) not in seen:
                seen.add((target, steps | passage))
                waiting.append(([*path, target], steps | passage))
    return None
