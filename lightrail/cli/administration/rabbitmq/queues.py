"""The policy of a queue from its settings in RabbitMQ."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lightrail.cli.administration.rabbitmq.entries import NotMapped, shown
from lightrail.cli.administration.rabbitmq.policies import Setting, is_count
from lightrail.model.policy import InvalidPolicyError, field_value

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
READ_ELSEWHERE: Final = (
    "x-queue-type",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    *RETRIES,
)
HINTS: Final = {
    "x-expires": "no counterpart: a queue is deleted with its last consumer (lifetime last_consumer) or at a "
    "time (expires_at)",
    "x-dead-letter-strategy": "dead letters are always forwarded at least once",
    "x-queue-mode": "needs no counterpart: messages beyond the memory mark are on disk",
    "x-queue-version": "needs no counterpart",
    "x-quorum-initial-group-size": "a queue is at one shard, without replicas",
    "x-quorum-target-group-size": "a queue is at one shard, without replicas",
    "x-queue-leader-locator": "the broker places queues itself",
    "x-queue-master-locator": "the broker places queues itself",
    "x-ha-mode": "a queue is at one shard, without replicas",
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
