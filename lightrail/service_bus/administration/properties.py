"""Properties of Service Bus's entities, and the fields of policies that are their counterparts.

A client sends a description with all of its properties, or with some. A property with a counterpart changes
it; a property without one may only have the value that is shown. Properties that only the broker sets are not
read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as Xml

from lightrail.gateway.errors import ProblemError, invalid
from lightrail.model import limits
from lightrail.model.policy import InvalidPolicyError, Policy, Role, field_value
from lightrail.service_bus.administration.entries import local, plain_text
from lightrail.service_bus.administration.property_values import (
    FOREVER,
    KIB,
    MIB,
    STATUSES,
    UNLIMITED_COUNT,
    UNLIMITED_MB,
    Server,
    boolean,
    count_of,
    duration_of,
    name_of,
    seconds_of,
    size_of,
    status_of,
    whole,
)

WINDOW_S: Final = 600.0
"""DuplicateDetectionHistoryTimeWindow if a client does not send it."""

NEW_QUEUE: Final = Policy(
    Role.QUEUE,
    {
        "lock_duration": 60,
        "max_delivery_count": 10,
        "max_bytes": 1024 * MIB,
        "delay": True,
        "expired": "discard",
    },
)
"""Policy of a queue that a client creates without properties: the defaults of Service Bus."""
NEW_SUBSCRIPTION: Final = Policy(
    Role.QUEUE, {"lock_duration": 60, "max_delivery_count": 10, "expired": "discard"}
)
"""The same for the queue of a subscription."""
NEW_TOPIC: Final = Policy(Role.ROUTER, {"unroutable": "drop"})

READ_ONLY: Final = frozenset(
    (
        "SizeInBytes",
        "MessageCount",
        "CountDetails",
        "MessageCountDetails",
        "SubscriptionCount",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "EntityAvailabilityStatus",
        "IsAnonymousAccessible",
        "SqlFilterCount",
        "CorrelationFilterCount",
    )
)
"""Properties that only the broker sets; clients send back what they have read."""
_DETECTION: Final = "RequiresDuplicateDetection"
_WINDOW: Final = "DuplicateDetectionHistoryTimeWindow"
"""Two properties for one field, which are read together."""
_CONSTANT: Final[Mapping[str, str]] = {
    "EnableBatchedOperations": "true",
    "SupportOrdering": "true",
    "AutoDeleteOnIdle": FOREVER,
    "EnablePartitioning": "false",
    "EnableExpress": "false",
    "AuthorizationRules": "",
}
"""Properties without a counterpart: the values that they always have, which are Service Bus's defaults."""

_EITHER: Final = frozenset(
    {"SupportOrdering", "EnableBatchedOperations", "DeadLetteringOnFilterEvaluationExceptions"}
)
"""Properties that may be false as well: their subject is done in any case, and shown as true. The client
for Java sends false for the order of a topic where the application sets nothing."""


Shown = dict[str, str]


def queue_properties(policy: Policy, server: Server) -> Shown:
    """The properties of a queue that a client may send, as texts."""
    return {
        "LockDuration": _lock_duration(policy),
        "MaxSizeInMegabytes": _megabytes(policy["max_bytes"]),
        **_duplicates(policy),
        "RequiresSession": _flag(policy["groups"]),
        "DefaultMessageTimeToLive": duration_of(policy["max_age"]),
        "DeadLetteringOnMessageExpiration": _flag(policy["expired"] == "dead_letter"),
        "MaxDeliveryCount": _delivery_count(policy, server),
        "UserMetadata": policy["description"],
        "ForwardTo": _url(policy["forward_to"], server),
        "ForwardDeadLetteredMessagesTo": _url(policy["dead_letter"], server),
        "MaxMessageSizeInKilobytes": _kilobytes(policy, server),
        "Status": STATUSES[policy["status"]],
        **_CONSTANT,
    }


def topic_properties(policy: Policy, server: Server) -> Shown:
    """The properties of a topic that a client may send, as texts."""
    return {
        "DefaultMessageTimeToLive": duration_of(policy["max_age"]),
        "MaxSizeInMegabytes": "1024",
        **_duplicates(policy),
        "FilteringMessagesBeforePublishing": "false",
        "EnableSubscriptionPartitioning": "false",
        "UserMetadata": policy["description"],
        "MaxMessageSizeInKilobytes": _kilobytes(policy, server),
        "Status": STATUSES[policy["status"]],
        **_CONSTANT,
    }


def subscription_properties(policy: Policy, server: Server) -> Shown:
    """The properties of a subscription that a client may send, by the policy of its queue."""
    of_queue = queue_properties(policy, server)
    for key in (
        "MaxSizeInMegabytes",
        _DETECTION,
        _WINDOW,
        "MaxMessageSizeInKilobytes",
        "SupportOrdering",
        "EnablePartitioning",
        "EnableExpress",
        "AuthorizationRules",
    ):
        del of_queue[key]
    # A filter never fails here: a value that it can't compare does not match.
    return {**of_queue, "DeadLetteringOnFilterEvaluationExceptions": "true"}


def shown(properties: Shown) -> Shown:
    """Properties without those that are not set."""
    return {key: value for key, value in properties.items() if value}


def changed(policy: Policy, wanted: Mapping[str, Xml.Element], present: Shown) -> Policy:
    """The policy with the properties that a client sends.

    Args:
        present: the present properties, from one of the functions above.

    Raises ProblemError, which names the property: it is not known, its value can't be used, or it has no
    counterpart and its value differs from the present one.
    """
    given = {"role": str(policy.role), **policy.given}
    for name, found in wanted.items():
        if name in READ_ONLY:
            continue
        if name not in present:
            known = ", ".join(sorted(present))
            raise ProblemError(400, f"the property {name[:80]!a} is not known here; there are {known}")
        value = "" if name == "AuthorizationRules" and not len(found) else _text(found)
        if _is_same(name, value, present[name]) or name in (_DETECTION, _WINDOW):
            continue
        if name in _EITHER and value.lower() in ("false", "0"):
            continue
        counterpart = _COUNTERPARTS.get(name) if policy.role is Role.QUEUE or name in _OF_TOPICS else None
        if counterpart is None:
            expected = present[name] or "none"
            why = _WHY.get(name, "there is no counterpart for another value")
            raise invalid(name, value, f"{expected}: {why}", 400)
        given[counterpart.field] = _read(counterpart, name, value)
    _take_window(given, wanted, present)
    try:
        return Policy.parse(given)
    except InvalidPolicyError as error:
        raise ProblemError(400, str(error)) from None


def with_fields_of(policy: Policy, other: Policy, present: Shown) -> Policy:
    """The policy with the fields of another one, as far as they are counterparts of present properties.

    Raises ProblemError.
    """
    shown = {_COUNTERPARTS[name].field for name in present if name in _COUNTERPARTS}
    kept = {name: value for name, value in policy.given.items() if name not in shown}
    try:
        return Policy.parse({"role": str(policy.role), **kept, **other.given})
    except InvalidPolicyError as error:
        raise ProblemError(400, str(error)) from None


# --- showing ----------------------------------------------------------------------------------------------


def _lock_duration(policy: Policy) -> str:
    seconds = policy["lock_duration"]
    return duration_of(limits.BUS_LOCK_SHOWN_MS / 1000 if seconds is None else seconds)


def _megabytes(size: int | None) -> str:
    return str(UNLIMITED_MB if size is None else max(1, -(-size // MIB)))


def _duplicates(policy: Policy) -> Shown:
    window = policy["duplicate_window"]
    return {
        _DETECTION: _flag(window is not None),
        _WINDOW: duration_of(WINDOW_S if window is None else window),
    }


def _delivery_count(policy: Policy, server: Server) -> str:
    count = policy["max_delivery_count"]
    count = server.max_delivery_count if count is None else count
    return str(count or UNLIMITED_COUNT)


def _url(target: str | None, server: Server) -> str:
    return "" if target is None else f"sb://{server.host}/{target}"


def _kilobytes(policy: Policy, server: Server) -> str:
    size = policy["max_message_bytes"]
    return str(max(1, (server.max_message_bytes if size is None else size) // KIB))


def _flag(value: bool) -> str:
    return "true" if value else "false"


# --- reading ----------------------------------------------------------------------------------------------


class _Counterpart(NamedTuple):
    """The field of a policy that a property changes."""

    field: str
    read: Callable[[str], Any]
    """The value of the field. Raises ValueError with the expected form."""


def _text(found: Xml.Element) -> str:
    if local(found) == "AuthorizationRules" and len(found):
        return "a list of rules"
    return plain_text(found)


_COUNTERPARTS: Final[Mapping[str, _Counterpart]] = {
    "LockDuration": _Counterpart("lock_duration", seconds_of),
    "MaxSizeInMegabytes": _Counterpart("max_bytes", size_of),
    "RequiresSession": _Counterpart("groups", boolean),
    "DefaultMessageTimeToLive": _Counterpart("max_age", seconds_of),
    "DeadLetteringOnMessageExpiration": _Counterpart(
        "expired", lambda text: "dead_letter" if boolean(text) else "discard"
    ),
    "MaxDeliveryCount": _Counterpart("max_delivery_count", count_of),
    "UserMetadata": _Counterpart("description", str),
    "ForwardTo": _Counterpart("forward_to", name_of),
    "ForwardDeadLetteredMessagesTo": _Counterpart("dead_letter", name_of),
    "MaxMessageSizeInKilobytes": _Counterpart("max_message_bytes", lambda text: whole(text) * KIB),
    "Status": _Counterpart("status", status_of),
}
_OF_TOPICS: Final = frozenset(
    ("DefaultMessageTimeToLive", "UserMetadata", "MaxMessageSizeInKilobytes", "Status")
)
_DURATIONS: Final = frozenset(("LockDuration", "DefaultMessageTimeToLive", "AutoDeleteOnIdle"))
_WHY: Final[Mapping[str, str]] = {
    "AuthorizationRules": "keys belong to users; make them with lightrail-admin key make",
    "AutoDeleteOnIdle": "no queue is deleted for being idle",
}


def _is_same(name: str, value: str, present: str) -> bool:
    """Whether a sent property has the shown value, perhaps in a different spelling."""
    if value == present:
        return True
    try:
        if name in _DURATIONS:
            return seconds_of(value) == seconds_of(present)
        if name != "UserMetadata" and present in ("true", "false"):
            return boolean(value) == (present == "true")
        if name.startswith("Forward"):
            return name_of(value) == name_of(present)
    except ValueError:
        return False
    return False


def _read(counterpart: _Counterpart, name: str, value: str) -> Any:
    try:
        found = counterpart.read(value)
        return field_value(counterpart.field, found)
    except InvalidPolicyError as error:
        raise invalid(name, value, f"what {counterpart.field} may be: {error.allowed}", 400) from None
    except ValueError as error:
        raise invalid(name, value, str(error), 400) from None


def _take_window(given: dict[str, Any], wanted: Mapping[str, Xml.Element], present: Shown) -> None:
    """Sets the field duplicate_window from two properties. Raises ProblemError."""
    if _DETECTION not in present:
        return
    requires, window = (
        plain_text(wanted[name]) if name in wanted else present[name] for name in (_DETECTION, _WINDOW)
    )
    try:
        is_required = boolean(requires)
    except ValueError as error:
        raise invalid(_DETECTION, requires, str(error), 400) from None
    if given["role"] != Role.QUEUE:
        if is_required:
            raise invalid(_DETECTION, requires, "false: a topic stores nothing; queues find duplicates", 400)
    elif is_required:
        given["duplicate_window"] = _read(_Counterpart("duplicate_window", seconds_of), _WINDOW, window)
    else:
        given.pop("duplicate_window", None)
