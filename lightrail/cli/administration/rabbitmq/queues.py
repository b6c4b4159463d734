"""The policy of a queue from its settings in RabbitMQ.

Entries of RabbitMQ's definitions, checked as they are read, and how messages show them.

RabbitMQ's policies, and the settings that they and the arguments of a queue or an exchange make.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from lightrail.model.policy import InvalidPolicyError, field_value

OPTIONAL_TEXTS: Final = ("vhost", "routing_key")


class DefinitionsError(ValueError):
    """A file that has another form; the message has what was expected and what was found."""


class NotMapped(NamedTuple):
    """What of RabbitMQ's definitions is not in the document, or not in the same way."""

    what: str
    why: str
    do: str


def entries(definitions: Mapping[str, Any], part: str, *texts: str) -> list[dict[str, Any]]:
    """The entries of a part, objects that have these texts. Raises DefinitionsError."""
    found = definitions.get(part, [])
    if not isinstance(found, list):
        raise DefinitionsError(f"{part} is {_found(found)}; expected a list of objects")
    return list(_checked(found, part, texts))


def _checked(found: list[Any], part: str, texts: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for index, each in enumerate(found):
        where = f"{part}[{index}]"
        if not isinstance(each, dict):
            raise DefinitionsError(f"{where} is {_found(each)}; expected an object")
        for key in texts:
            if not isinstance(each.get(key), str):
                raise DefinitionsError(f"{where}.{key} is {_found(each.get(key))}; expected a text")
        for key in OPTIONAL_TEXTS:
            if not isinstance(each.get(key, ""), str):
                raise DefinitionsError(f"{where}.{key} is {_found(each[key])}; expected a text")
        if part == "policies":
            object_of(each, "definition", where)
            each.setdefault("definition", {})
        yield each


def object_of(entry: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """An object in an entry, empty if it is not there. RabbitMQ may write an empty one as a list."""
    found = entry.get(key) or {}
    if not isinstance(found, dict):
        raise DefinitionsError(f"{where}: {key} is {_found(found)}; expected an object")
    return found


def host_of(entry: Mapping[str, Any]) -> str:
    """The virtual host of an entry; an export of one virtual host leaves it out."""
    return str(entry.get("vhost", "/"))


def described(kind: str, vhost: str, name: str) -> str:
    return f"{kind} {shown(name)}" + ("" if vhost == "/" else f" of virtual host {shown(vhost)}")


def _found(value: Any) -> str:
    return ascii(json.dumps(value)[:80])


def shown(text: str) -> str:
    """A name of the file for people, without control characters."""
    short = text if len(text) <= 80 else text[:80] + "..."
    return short if short.isprintable() and short else ascii(short)


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


PRIORITIES: Final = 10
"""Levels of any queue with priorities: AMQP 1.0 has 0 to 9 (3.2.1)."""
QUORUM_DELIVERY_LIMIT: Final = 20
"""Of quorum queues without a limit since RabbitMQ 4.0; earlier versions have none."""
OVERFLOWS: Final = {
    "drop-head": "discard_existing",
    "reject-publish": "reject",
    "reject-publish-dlx": "reject",
}
RETRY_TYPE: Final = "x-delayed-retry-type"
RETRY_MIN: Final = "x-delayed-retry-min"
RETRY_MAX: Final = "x-delayed-retry-max"
RETRY_GROWTH: Final = "x-delayed-retry-multiplier"
"""Of LavinMQ; without it, and at RabbitMQ always, the delays grow linearly."""
RETRIES: Final = (RETRY_TYPE, RETRY_MIN, RETRY_MAX, RETRY_GROWTH)
READ_ELSEWHERE: Final = ("x-queue-type", "x-dead-letter-exchange", "x-dead-letter-routing-key", *RETRIES)
REPLICAS: Final = (
    "a queue has the replicas of its shard: the field replicas demands some (docs/operate/replicas.md)"
)
HINTS: Final = {
    "x-expires": "no counterpart: a queue is deleted with its last consumer (lifetime last_consumer), at a "
    "time (expires_at), or when nobody uses it, senders included (max_idle)",
    "x-dead-letter-strategy": "dead letters are always forwarded at least once",
    "x-queue-mode": "needs no counterpart: messages beyond the memory mark are on disk",
    "x-queue-version": "needs no counterpart",
    "x-quorum-initial-group-size": REPLICAS,
    "x-quorum-target-group-size": REPLICAS,
    "x-queue-leader-locator": "the broker places queues itself",
    "x-queue-master-locator": "the broker places queues itself",
    "x-ha-mode": REPLICAS,
}
NO_COUNTERPART: Final = "no counterpart in the policy of a queue"


def queue_policy(
    what: str,
    queue: Mapping[str, Any],
    settings: Mapping[str, Setting],
    is_quorum: bool,
    version: tuple[int, ...],
    missing: list[NotMapped],
) -> dict[str, Any]:
    """The policy of a queue, without the target of its dead letters.

    Args:
        what: the queue, as `missing` shows it.
        version: of RabbitMQ, on which the default of x-delivery-limit depends.
    """
    policy: dict[str, Any] = {"role": "queue"}
    if is_quorum:
        policy["durable"] = "always"
    elif not queue.get("durable", True):
        policy["durable"] = "never"
    if queue.get("auto_delete"):
        policy["lifetime"] = "last_consumer"
    if "x-dead-letter-exchange" not in settings:
        # A message that expires without a dead-letter exchange is deleted.
        policy["expired"] = "discard"
    policy["max_delivery_count"] = 0
    if is_quorum and "x-delivery-limit" not in settings and version >= (4,):
        policy["max_delivery_count"] = QUORUM_DELIVERY_LIMIT + 1
    for key, setting in settings.items():
        if key in READ_ELSEWHERE:
            continue
        where = _where(what, key, setting)
        try:
            mapped = dict(_fields(key, setting.value, is_quorum))
            for name, value in mapped.items():
                field_value(name, value)
        except (InvalidPolicyError, ValueError) as error:
            missing.append(NotMapped(where, str(error), "set the policy of the name, see policies.md"))
            continue
        policy |= mapped
        if key == "x-overflow" and setting.value == "reject-publish-dlx":
            why = "a message that is refused becomes no dead letter: its sender gets the outcome rejected"
            missing.append(NotMapped(where, why, "handle the outcome at the sender"))
        if key == "x-max-priority" and setting.value >= PRIORITIES:
            why = f"found {setting.value}: there are {PRIORITIES} levels, 0 to {PRIORITIES - 1}"
            missing.append(NotMapped(where, why, "send with priorities of 0 to 9"))
    policy |= _retries(what, settings, is_quorum, missing)
    if "max_length" in policy or "max_bytes" in policy:
        policy.setdefault("overflow", OVERFLOWS["drop-head"])
    return policy


def _where(what: str, key: str, setting: Setting) -> str:
    """An argument of a queue, or the policy that has it: that is listed once, not for each of its queues."""
    if setting.policy:
        return f"{key.removeprefix('x-')} of policy {shown(setting.policy)}"
    return f"{what}: {key}"


def _retries(
    what: str, settings: Mapping[str, Setting], is_quorum: bool, missing: list[NotMapped]
) -> dict[str, Any]:
    """The fields for delayed retries, which RabbitMQ's quorum queues have since 4.3, and LavinMQ's queues."""
    found = {key: settings[key] for key in RETRIES if key in settings}
    if not found:
        return {}
    kind = found[RETRY_TYPE].value if RETRY_TYPE in found else "disabled" if is_quorum else "all"
    key = next(iter(found))
    hint = "set retry_delay in the policy of the name, see policies.md"
    where = _where(what, key, found[key])
    if kind == "disabled":
        return {}
    if kind not in ("failed", "all") or RETRY_MIN not in found:
        why = f"found the type {kind!a} and " + (
            "no shortest delay" if RETRY_MIN not in found else "a delay for messages that did not fail"
        )
        missing.append(NotMapped(where, f"{why}: only failed messages wait here, and for a delay", hint))
        return {}
    try:
        numbers = {key: _count(each.value) for key, each in found.items() if key != RETRY_TYPE}
        longest = numbers.get(RETRY_MAX)
        # The longest delay counts where it is the shorter one.
        delay = numbers[RETRY_MIN] if longest is None else min(numbers[RETRY_MIN], longest)
        fields: dict[str, Any] = {"retry_delay": delay / 1000}
        if longest is not None:
            fields["retry_delay_max"] = longest / 1000
        if delay != longest:
            fields["retry_growth"] = numbers.get(RETRY_GROWTH, 2)
        for name, value in fields.items():
            field_value(name, value)
    except (InvalidPolicyError, ValueError) as error:
        missing.append(NotMapped(where, str(error), hint))
        return {}
    if delay != longest and RETRY_GROWTH not in found:
        why = "the delays grow linearly there; here each is twice the one before, up to the longest"
        missing.append(NotMapped(where, why, "set retry_growth in the policy of the name if needed"))
    if kind == "all" and RETRY_TYPE in found:
        why = "messages that are returned without a failure wait as well there, and not here"
        missing.append(NotMapped(where, why, "let consumers return them as failed"))
    return fields


def _fields(key: str, value: Any, is_quorum: bool) -> Iterator[tuple[str, Any]]:
    """Fields of the policy for an argument. Raises ValueError with the reason where there is none."""
    match key:
        case "x-message-ttl":
            yield "max_age", _count(value) / 1000
        case "x-max-length":
            yield "max_length", _count(value)
        case "x-max-length-bytes":
            yield "max_bytes", _count(value)
        case "x-overflow":
            if not isinstance(value, str) or value not in OVERFLOWS:
                raise ValueError(f"found {value!a}; expected {', '.join(OVERFLOWS)}")
            yield "overflow", OVERFLOWS[value]
        case "x-max-priority":
            if _count(value):
                yield "priorities", PRIORITIES
        case "x-single-active-consumer":
            if value is not True and value is not False:
                raise ValueError(f"found {value!a}; expected true or false")
            yield "single_active", value
        case "x-delivery-limit" if is_quorum:
            # The limit is of redeliveries: the first delivery comes before them. -1 is no limit.
            yield "max_delivery_count", 0 if value == -1 else _count(value) + 1
        case "x-delivery-limit":
            raise ValueError("RabbitMQ ignores it at a classic queue")
        case _:
            raise ValueError(HINTS.get(key, NO_COUNTERPART))


def _count(value: Any) -> int:
    if not is_count(value):
        raise ValueError(f"found {value!a}; expected a whole number")
    return int(value)
