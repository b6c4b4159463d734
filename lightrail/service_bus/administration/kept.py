"""What policies keep for clients of Service Bus: properties that mean nothing here, and bounds of topics.

A router stores nothing: the bounds of a topic are those of the own queues of its subscriptions. Each counts
its bytes, and finds duplicates, by itself. All copies of a message have its message-id, so that a window in
each queue is one for the topic: a message that one of two queues has stored is stored in the other one when
it is sent again, and each window is in the journal and moves with its queue. A window in one place would
need a request for each message that is sent, and a transaction over it and the queues.
"""

from collections.abc import Mapping
from typing import Any, Final

from lightrail.gateway.errors import ProblemError
from lightrail.model.policy import InvalidPolicyError, Policy
from lightrail.model.policy_fields import BYTES_MAX
from lightrail.service_bus.administration.durations import seconds_of

MIB: Final = 1 << 20
UNLIMITED_MB: Final = BYTES_MAX // MIB
"""MaxSizeInMegabytes of a queue without max_bytes."""
WINDOW: Final = "DuplicateDetectionHistoryTimeWindow"
UNUSED_WINDOW: Final = f"Unused{WINDOW}"
"""The window of a queue or topic that detects no duplicates, by which nothing happens."""
FLAGS: Final[Mapping[str, str]] = {
    "EnableBatchedOperations": "true",
    "SupportOrdering": "true",
    "EnablePartitioning": "false",
    "EnableExpress": "false",
}
"""Properties that mean nothing here, with their defaults: what is sent is kept, and shown. Order is kept,
writes are grouped, and a queue is on one shard, in any case."""
FLAGS_OF_TOPICS: Final[Mapping[str, str]] = {
    **FLAGS,
    "FilteringMessagesBeforePublishing": "false",
    "EnableSubscriptionPartitioning": "false",
}
IDLE: Final = "AutoDeleteOnIdle"
"""Of a topic it is kept: a queue alone is deleted when nobody uses it, and so is that of a subscription."""
SIZE: Final = "MaxSizeInMegabytes"
TOPIC_MB: Final = "1024"
"""MaxSizeInMegabytes of a topic that sets none; it is no bound."""


def kept_of(policy: Policy) -> dict[str, str]:
    """Properties that the policy keeps for these clients alone."""
    pairs = (pair.partition("=") for pair in policy["service_bus"].split())
    return {name: value for name, _, value in pairs}


def bounds_of(topic: Policy) -> dict[str, Any]:
    """Fields that a topic's policy sets for the own queues of its subscriptions."""
    kept = kept_of(topic)
    fields: dict[str, Any] = {}
    try:
        if SIZE in kept:
            megabytes = int(kept[SIZE])
            fields["max_bytes"] = None if megabytes == UNLIMITED_MB else megabytes * MIB
        if WINDOW in kept:
            fields["duplicate_window"] = seconds_of(kept[WINDOW])
    except ValueError:
        # Somebody else has written the field.
        return {}
    return fields


def with_bounds(policy: Policy, topic: Policy, before: Policy) -> Policy:
    """The policy of a subscription's own queue, as its topic wants it. Raises ProblemError.

    Args:
        before: the former policy of the topic, whose bounds it may have no longer.
    """
    bounds, former = bounds_of(topic), bounds_of(before)
    given = {name: value for name, value in policy.given.items() if name not in former or name in bounds}
    try:
        return Policy.parse({"role": str(policy.role), **given, **bounds})
    except InvalidPolicyError as error:
        raise ProblemError(400, str(error)) from None


def flags(policy: Policy, defaults: Mapping[str, str]) -> dict[str, str]:
    kept = kept_of(policy)
    return {name: kept.get(name, value) for name, value in defaults.items()}
