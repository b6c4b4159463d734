"""RabbitMQ's policies, and the settings that they and the arguments of a queue or an exchange make."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lightrail.cli.administration.rabbitmq.entries import NotMapped, shown

LOWER_OF_BOTH: Final = frozenset(
    ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-delivery-limit")
)
"""Where an argument and a policy both have a value, the lower one applies; of others, the argument's."""


class Setting(NamedTuple):
    """The value of an argument, and where it stands: empty for the queue itself, or a policy."""

    value: Any
    policy: str = ""


class MatchingPolicies:
    """RabbitMQ's policies, of which the matching one with the highest priority applies to a name."""

    def __init__(self, policies: list[dict[str, Any]], missing: list[NotMapped]) -> None:
        self._policies: list[tuple[re.Pattern[str], dict[str, Any]]] = []
        for each in sorted(policies, key=_priority, reverse=True):
            try:
                self._policies.append((re.compile(each["pattern"]), each))
            except re.error as error:
                missing.append(
                    NotMapped(
                        f"policy {shown(each['name'])}",
                        f"its pattern {each['pattern']!a} can't be read: {error}",
                        "write the pattern without features of PCRE, or set the fields of the names",
                    )
                )

    def settings(self, vhost: str, name: str, kinds: tuple[str, ...]) -> dict[str, Setting]:
        """Definition of the policy that applies to a name, with `x-` before the keys, as arguments have it.

        Args:
            kinds: values of apply-to that include the name.
        """
        for pattern, policy in self._policies:
            if (
                policy.get("vhost", "/") == vhost
                and policy.get("apply-to", "all") in kinds
                and pattern.search(name)
            ):
                found = policy["definition"].items()
                return {f"x-{key}": Setting(value, policy["name"]) for key, value in found}
        return {}


def _priority(policy: Mapping[str, Any]) -> int:
    found = policy.get("priority", 0)
    return found if isinstance(found, int) else 0


def settings_of(arguments: Mapping[str, Any], policy: Mapping[str, Setting]) -> dict[str, Setting]:
    """What applies to a queue with these arguments and this policy."""
    found = {**policy, **{key: Setting(value) for key, value in arguments.items()}}
    for key in LOWER_OF_BOTH & arguments.keys() & policy.keys():
        if is_count(arguments[key]) and is_count(policy[key].value):
            found[key] = min(Setting(arguments[key]), policy[key], key=lambda each: each.value)
    return found


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
