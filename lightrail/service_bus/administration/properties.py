"""Properties of Service Bus's entities, and the fields of policies that are their counterparts.

A client sends a description with all of its properties, or with some; AuthorizationRules are no field of a
policy (authorization.py). A property with a counterpart changes it; a property without one may only have the
value that is shown. Properties that only the broker sets are not read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree as Xml

from lightrail.gateway.errors import ProblemError, invalid
from lightrail.model import limits
from lightrail.model.names import InvalidNameError, queue_name
from lightrail.model.policy import InvalidPolicyError, Policy, Role, field_value
from lightrail.service_bus.administration.durations import FOREVER, between, duration_of, seconds_of
from lightrail.service_bus.administration.entries import plain_text
from lightrail.service_bus.administration.kept import (
    FLAGS,
    FLAGS_OF_TOPICS,
    IDLE,
    MIB,
    SIZE,
    TOPIC_MB,
    UNLIMITED_MB,
    UNUSED_WINDOW,
    WINDOW,
    bounds_of,
    flags,
    kept_of,
)

KIB: Final = 1024
UNLIMITED_COUNT: Final = (1 << 31) - 1
"""MaxDeliveryCount of a queue that makes no dead letters after failed deliveries."""
WINDOW_S: Final = 600.0
"""DuplicateDetectionHistoryTimeWindow if a client does not send it."""
WINDOW_S_MIN: Final = 20
WINDOW_S_MAX: Final[int] = 7 * 86_400
"""Shortest and longest one that a client may set, as in Service Bus."""
LOCK_S_MAX: Final[int] = 300
"""Longest LockDuration that a client may set, as in Service Bus."""

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
"""Read together with the window, as one field."""
"""Properties without a counterpart: the values that they always have, which are Service Bus's defaults."""


class Server(NamedTuple):
    """Values of the server, beside the policy, that properties are computed from."""

    host: str
    """Host of URLs in the answer, with its port."""
    max_delivery_count: int
    """Value for queues whose policy has none."""
    max_message_bytes: int


FAILURES: Final = "DeadLetteringOnFilterEvaluationExceptions"
"""The property of a subscription that is no field of a policy."""
_STATUSES: Final[Mapping[str, str]] = {
    "active": "Active",
    "disabled": "Disabled",
    "send_disabled": "SendDisabled",
    "receive_disabled": "ReceiveDisabled",
}
"""By the status of a policy."""
Shown = dict[str, str]


def queue_properties(policy: Policy, server: Server) -> Shown:
    """The properties of a queue that a client may send, as texts."""
    return {
        "LockDuration": _lock_duration(policy),
        "MaxSizeInMegabytes": _megabytes(policy["max_bytes"]),
        **_duplicates(policy["duplicate_window"], policy),
        "RequiresSession": _flag(policy["groups"]),
        "DefaultMessageTimeToLive": duration_of(policy["max_age"]),
        "DeadLetteringOnMessageExpiration": _flag(policy["expired"] == "dead_letter"),
        "MaxDeliveryCount": _delivery_count(policy, server),
        IDLE: duration_of(policy["max_idle"]),
        "UserMetadata": policy["description"],
        "ForwardTo": _url(policy["forward_to"], server),
        "ForwardDeadLetteredMessagesTo": _url(policy["dead_letter"], server),
        "MaxMessageSizeInKilobytes": _kilobytes(policy, server),
        "Status": _STATUSES[policy["status"]],
        **flags(policy, FLAGS),
    }


def topic_properties(policy: Policy, server: Server) -> Shown:
    """The properties of a topic that a client may send, as texts."""
    return {
        "DefaultMessageTimeToLive": duration_of(policy["max_age"]),
        SIZE: kept_of(policy).get(SIZE, TOPIC_MB),
        IDLE: kept_of(policy).get(IDLE, FOREVER),
        **_duplicates(bounds_of(policy).get("duplicate_window"), policy),
        "UserMetadata": policy["description"],
        "MaxMessageSizeInKilobytes": _kilobytes(policy, server),
        "Status": _STATUSES[policy["status"]],
        **flags(policy, FLAGS_OF_TOPICS),
    }


def subscription_properties(policy: Policy, server: Server, drops: bool = False) -> Shown:
    """The properties of a subscription that a client may send, by the policy of its queue.

    `drops` says whether it drops messages for which a rule has no result.
    """
    of_queue = queue_properties(policy, server)
    for key in (
        "MaxSizeInMegabytes",
        _DETECTION,
        WINDOW,
        "MaxMessageSizeInKilobytes",
        "SupportOrdering",
        "EnablePartitioning",
        "EnableExpress",
    ):
        del of_queue[key]
    return {**of_queue, FAILURES: _flag(not drops)}


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
    kept = kept_of(policy)
    for name, found in wanted.items():
        if name in READ_ONLY:
            continue
        if name not in present:
            known = ", ".join(sorted(present))
            raise ProblemError(400, f"the property {name[:80]!a} is not known here; there are {known}")
        value = plain_text(found)
        if _is_same(name, value, present[name]) or name in (_DETECTION, WINDOW):
            continue
        if name in FLAGS_OF_TOPICS:
            kept[name] = _flag(_read(_Counterpart("", _boolean), name, value))
            continue
        if name == SIZE and policy.role is Role.ROUTER:
            kept[name] = str(_read(_Counterpart("", _whole), name, value))
            continue
        if name == IDLE and policy.role is Role.ROUTER:
            kept[name] = duration_of(_read(_COUNTERPARTS[name], name, value))
            continue
        counterpart = _COUNTERPARTS.get(name) if policy.role is Role.QUEUE or name in _OF_TOPICS else None
        if counterpart is None:
            expected = present[name] or "none"
            raise invalid(name, value, f"{expected}: there is no counterpart for another value", 400)
        given[counterpart.field] = _read(counterpart, name, value)
    _take_window(given, kept, wanted, present)
    given["service_bus"] = " ".join(
        f"{name}={value}" for name, value in sorted(kept.items()) if value != _LEFT_OUT.get(name)
    )
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


def _duplicates(window: float | None, policy: Policy) -> Shown:
    unused = kept_of(policy).get(UNUSED_WINDOW, duration_of(WINDOW_S))
    return {
        _DETECTION: _flag(window is not None),
        WINDOW: unused if window is None else duration_of(window),
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
    """Empty for a property that is kept for these clients alone."""
    read: Callable[[str], Any]
    """The value of the field. Raises ValueError with the expected form."""


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("true or false")
    return text.lower() in ("true", "1")


def _whole(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    if not is_number or not 0 < int(text) <= UNLIMITED_COUNT:
        raise ValueError(f"a whole number from 1 to {UNLIMITED_COUNT}")
    return int(text)


def _size(text: str) -> int | None:
    number = _whole(text)
    return None if number == UNLIMITED_MB else number * MIB


def _count(text: str) -> int:
    number = _whole(text)
    return 0 if number == UNLIMITED_COUNT else number


def _name(text: str) -> str | None:
    """The name in a URL such as sb://HOST/NAME, or the name itself."""
    if not text:
        return None
    path = urlsplit(text).path if "://" in text else text
    try:
        return queue_name(f"/{path.strip('/')}")
    except InvalidNameError as error:
        raise ValueError(f"the name of a queue or topic, or its URL: {error}") from None


def _status(text: str) -> str:
    found = next((status for status, shown in _STATUSES.items() if shown == text), None)
    if found is None:
        raise ValueError(f"one of {', '.join(_STATUSES.values())}")
    return found


_COUNTERPARTS: Final[Mapping[str, _Counterpart]] = {
    "LockDuration": _Counterpart("lock_duration", between(0, LOCK_S_MAX)),
    "MaxSizeInMegabytes": _Counterpart("max_bytes", _size),
    "RequiresSession": _Counterpart("groups", _boolean),
    "DefaultMessageTimeToLive": _Counterpart("max_age", seconds_of),
    IDLE: _Counterpart("max_idle", seconds_of),
    "DeadLetteringOnMessageExpiration": _Counterpart(
        "expired", lambda text: "dead_letter" if _boolean(text) else "discard"
    ),
    "MaxDeliveryCount": _Counterpart("max_delivery_count", _count),
    "UserMetadata": _Counterpart("description", str),
    "ForwardTo": _Counterpart("forward_to", _name),
    "ForwardDeadLetteredMessagesTo": _Counterpart("dead_letter", _name),
    "Status": _Counterpart("status", _status),
    "MaxMessageSizeInKilobytes": _Counterpart("max_message_bytes", lambda text: _whole(text) * KIB),
}
_OF_TOPICS: Final = frozenset(
    ("DefaultMessageTimeToLive", "UserMetadata", "MaxMessageSizeInKilobytes", "Status")
)
_DURATIONS: Final = frozenset(("LockDuration", "DefaultMessageTimeToLive", IDLE))
_LEFT_OUT: Final[Mapping[str, str]] = {**FLAGS_OF_TOPICS, IDLE: FOREVER, UNUSED_WINDOW: "PT10M"}
"""Values of kept properties that are not written, as they are the defaults."""


def _is_same(name: str, value: str, present: str) -> bool:
    """Whether a sent property has the shown value, perhaps in a different spelling."""
    if value == present:
        return True
    try:
        if name in _DURATIONS:
            return seconds_of(value) == seconds_of(present)
        if name != "UserMetadata" and present in ("true", "false"):
            return _boolean(value) == (present == "true")
        if name.startswith("Forward"):
            return _name(value) == _name(present)
    except ValueError:
        return False
    return False


def _read(counterpart: _Counterpart, name: str, value: str) -> Any:
    try:
        found = counterpart.read(value)
        return field_value(counterpart.field, found) if counterpart.field else found
    except InvalidPolicyError as error:
        raise invalid(name, value, f"what {counterpart.field} may be: {error.allowed}", 400) from None
    except ValueError as error:
        raise invalid(name, value, str(error), 400) from None


def _take_window(
    given: dict[str, Any], kept: dict[str, str], wanted: Mapping[str, Xml.Element], present: Shown
) -> None:
    """Sets the field duplicate_window from two properties; of a topic they are kept. Raises ProblemError."""
    if _DETECTION not in present:
        return
    requires, window = (
        plain_text(wanted[name]) if name in wanted else present[name] for name in (_DETECTION, WINDOW)
    )
    try:
        is_required = _boolean(requires)
    except ValueError as error:
        raise invalid(_DETECTION, requires, str(error), 400) from None
    reads = seconds_of if window == present[WINDOW] else between(WINDOW_S_MIN, WINDOW_S_MAX)
    seconds = _read(_Counterpart("duplicate_window", reads), WINDOW, window)
    given.pop("duplicate_window", None)
    for name in (WINDOW, UNUSED_WINDOW):
        kept.pop(name, None)
    if not is_required:
        kept[UNUSED_WINDOW] = duration_of(seconds)
    elif given["role"] == Role.QUEUE:
        given["duplicate_window"] = seconds
    else:
        kept[WINDOW] = duration_of(seconds)
