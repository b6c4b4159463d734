"""Rules of a subscription: by name, each with a filter and perhaps an action.

    {"$Default": {"filter": null}, "dear": {"filter": {"sql": "price > 100"}, "action": {"set": {...}}}}

A message is sent to the target once for all matching rules without an action, and once more for each content
that the action of a matching rule makes; actions of Service Bus' rules set the property RuleName, so each
makes its own. Most subscriptions have one rule, which is stored as the fields
`filter` and `action` and has the name $Default; `rules` is None then. Without a rule no message matches.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from lightrail.filters.action import Action, compile_action
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.filter import compile_filter
from lightrail.filters.rules.rule_action import RuleAction, compile_rule_action
from lightrail.filters.rules.values import NO_ID, NewId
from lightrail.model import limits, names
from lightrail.namespace.records import Subscription
from lightrail.namespace.statuses import LimitExceededError

RULES_BYTES_MAX: Final[int] = 1024 * 1024
"""Bytes of the rules of a subscription as JSON, which are one entry of the coordinator; etcd takes
1.5 MiB in one request."""
DEFAULT: Final = "$Default"
"""The name of the only rule of a subscription with one filter and one action."""
_KEYS: Final = ("filter", "action", "created_at_ms")
_CREATED: Final = "created_at_ms"

Rule = Mapping[str, Any]
"""An object with `filter` and `action`, each None or missing for none, and perhaps `created_at_ms`."""
AnyAction = Action | RuleAction


class Fields(TypedDict):
    """Fields of a subscription."""

    filter: Mapping[str, Any] | None
    action: Mapping[str, Any] | None
    rules: Mapping[str, Rule] | None


def rules_of(subscription: Subscription) -> dict[str, Rule]:
    """The rules of a subscription by name, in the order in which they were added."""
    if subscription.rules is not None:
        return dict(subscription.rules)
    return {DEFAULT: {"filter": subscription.filter, "action": subscription.action}}


def fields_of(rules: Mapping[str, Rule]) -> Fields:
    """The fields of a subscription with these rules."""
    if rules.keys() == {DEFAULT} and _CREATED not in rules[DEFAULT]:
        only = rules[DEFAULT]
        return {"filter": only.get("filter"), "action": only.get("action"), "rules": None}
    return {"filter": None, "action": None, "rules": rules}


def created_at(rule: Rule, otherwise_ms: int) -> int:
    """When a rule was created, in milliseconds since 1970; `otherwise_ms` for one that doesn't say so."""
    found = rule.get(_CREATED)
    return otherwise_ms if found is None else int(found)


def compile_any_action(spec: Mapping[str, Any], new_id: NewId = lambda: NO_ID) -> AnyAction:
    """Compile the JSON of an action, or of one of Azure Service Bus' rules. Raises FilterError.

    Args:
        new_id: see `compile_filter`.
    """
    if not isinstance(spec, Mapping) or spec.keys() != {"rule"}:
        return compile_action(spec)
    try:
        return compile_rule_action(spec["rule"], new_id)
    except FilterError as error:
        raise error.within("rule") from None


def check_rules(rules: Any, known: Mapping[str, Rule] | None = None) -> None:
    """Raises FilterError for rules that can't be used, LimitExceededError for too many of them.

    Args:
        known: rules that were checked before, by name: one of two thousand is changed without all others.
    """
    if not isinstance(rules, Mapping):
        raise FilterError("an object of rules by name", shown(rules), part="rules")
    if len(rules) > limits.RULES_MAX:
        raise LimitExceededError(f"a subscription has at most {limits.RULES_MAX} rules, found {len(rules)}")
    checked = known or {}
    for name, rule in rules.items():
        if name in checked and checked[name] == rule:
            continue
        try:
            _check_name(name)
            if not isinstance(rule, Mapping):
                raise FilterError("an object with filter and action", shown(rule))
            unknown = next((key for key in rule if key not in _KEYS), None)
            if unknown is not None:
                raise FilterError("no other keys than filter, action and created_at_ms", shown(unknown))
            compile_filter(rule.get("filter"))
            if rule.get("action") is not None:
                compile_any_action(rule["action"])
            created = rule.get(_CREATED, 0)
            if type(created) is not int or not 0 <= created < 1 << 53:
                raise FilterError("created_at_ms as milliseconds since 1970", shown(created))
        except FilterError as error:
            raise error.within(f"rules.{name!a:.80}") from None
    size = len(json.dumps(rules))
    if size > RULES_BYTES_MAX:
        raise LimitExceededError(
            f"the rules of a subscription have at most {RULES_BYTES_MAX} bytes as JSON, found {size}"
        )


def _check_name(name: Any) -> None:
    """Raises FilterError unless a rule may have this name: one segment, which may begin with $."""
    try:
        if not isinstance(name, str) or "/" in name:
            raise names.InvalidNameError("it is no text of one segment")
        names.check(name.removeprefix("$"))
    except names.InvalidNameError as error:
        raise FilterError(f"a name without a slash ({error})", shown(name)) from None
