"""Changes of single rules of a subscription, for the clients of Azure Service Bus."""

from collections.abc import Callable
from typing import Final

from lightrail.namespace.records import Right, Subscription
from lightrail.namespace.rights import Caller, demand
from lightrail.namespace.rules import Rule, fields_of, rules_of
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import ChangedError, MissingError, TakenError

ATTEMPTS: Final = 10
"""Attempts to write a change while others change the same subscription."""


async def add_rule(
    service: Service, caller: Caller, router: str, id: str, name: str, rule: Rule
) -> Subscription:
    """Adds a rule. Raises TakenError if the name is in use, and the errors of `Service.subscribe`."""

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


async def _change(
    service: Service,
    caller: Caller,
    router: str,
    id: str,
    change: Callable[[dict[str, Rule]], None],
    drop_failed: bool | None = None,
) -> Subscription:
    directory = service.directory
    attempts = ATTEMPTS
    while True:
        attempts -= 1
        directory.refresh()
        demand(directory, caller, Right.MANAGE, directory.get(router))
        found = directory.subscription(router, id)
        if found is None:
            raise MissingError(f"{router} has no subscription {id!a:.200}")
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
