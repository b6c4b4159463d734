"""Changes of single rules of a subscription, for the clients of Azure Service Bus."""

from collections.abc import Callable
from typing import Final

from lightrail.filters.rules.rule_action import RuleAction
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Right, Subscription
from lightrail.namespace.rights import ANYBODY, Caller, demand
from lightrail.namespace.rules import Rule, compile_any_action, fields_of, rules_of
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import ChangedError, MissingError, TakenError

ATTEMPTS: Final = 10
"""Attempts to write a change while others change the same subscription."""


async def add_rule(
    service: Service, caller: Caller, router: str, id: str, name: str, rule: Rule
) -> Subscription:
    """Adds a rule. Raises TakenError if the name is in use, and the errors of `Service.subscribe`."""
    await _delay(service, caller, router, id, rule)

    def add(rules: dict[str, Rule]) -> None:
        if name in rules:
            raise TakenError(f"subscription {id} of {router} has a rule {name!a:.200} already")
        rules[name] = rule

    return await _change(service, caller, router, id, add)


async def replace_rule(
    service: Service, caller: Caller, router: str, id: str, name: str, rule: Rule
) -> Subscription:
    """Replaces a rule in its place, which stays as old as it was.

    Raises MissingError, and the errors of `Service.subscribe`.
    """
    await _delay(service, caller, router, id, rule)

    def change(rules: dict[str, Rule]) -> None:
        _demand(rules, router, id, name)
        created = {key: rules[name][key] for key in ("created_at_ms",) if key in rules[name]}
        rules[name] = {"filter": rule.get("filter"), "action": rule.get("action"), **created}

    return await _change(service, caller, router, id, change)


async def remove_rule(service: Service, caller: Caller, router: str, id: str, name: str) -> Subscription:
    """Removes a rule; a subscription without rules receives nothing. Raises MissingError, ForbiddenError."""

    def remove(rules: dict[str, Rule]) -> None:
        _demand(rules, router, id, name)
        del rules[name]

    return await _change(service, caller, router, id, remove)


def _demand(rules: dict[str, Rule], router: str, id: str, name: str) -> None:
    if name not in rules:
        raise MissingError(f"subscription {id} of {router} has no rule {name!a:.200}")


async def set_drop_failed(
    service: Service, caller: Caller, router: str, id: str, drop_failed: bool
) -> Subscription:
    """Sets what becomes of messages for which a rule has no result; raises the errors of `add_rule`."""
    return await _change(service, caller, router, id, lambda rules: None, drop_failed)


def schedules(rule: Rule) -> bool:
    """Whether the action of a rule schedules messages. Raises FilterError."""
    action = rule.get("action")
    compiled = None if action is None else compile_any_action(action)
    return isinstance(compiled, RuleAction) and compiled.schedules


async def _delay(service: Service, caller: Caller, router: str, id: str, rule: Rule) -> None:
    """Makes the queue of a subscription delay messages, before a rule schedules some in it (ADR 43)."""
    if not schedules(rule):
        return
    directory = service.directory
    for attempts in reversed(range(ATTEMPTS)):
        found = _managed(service, caller, router, id)
        record = directory.get(found.target)
        if record.role is not Role.QUEUE or record.policy["delay"]:
            return
        policy = Policy.parse(record.policy.to_json() | {"delay": True})
        try:
            await service.change(ANYBODY, record.name, policy, record.revision)
        except ChangedError:
            if not attempts:
                raise


def _managed(service: Service, caller: Caller, router: str, id: str) -> Subscription:
    """A subscription of a router that the caller may manage. Raises MissingError, ForbiddenError."""
    directory = service.directory
    directory.refresh()
    demand(directory, caller, Right.MANAGE, directory.get(router))
    found = directory.subscription(router, id)
    if found is None:
        raise MissingError(f"{router} has no subscription {id!a:.200}")
    return found


async def _change(
    service: Service,
    caller: Caller,
    router: str,
    id: str,
    change: Callable[[dict[str, Rule]], None],
    drop_failed: bool | None = None,
) -> Subscription:
    attempts = ATTEMPTS
    while True:
        attempts -= 1
        found = _managed(service, caller, router, id)
        rules = rules_of(found)
        change(rules)
        try:
            return await service.subscribe(
                caller,
                router,
                found.target,
                **fields_of(rules),
                expires_at=found.expires_at,
                id=id,
                owner=found.owner,
                replace_it=True,
                no_local=found.no_local,
                drop_failed=found.drop_failed if drop_failed is None else drop_failed,
                revision=found.revision,
            )
        except ChangedError:
            if not attempts:
                raise
