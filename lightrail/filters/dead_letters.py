"""The reason of a dead letter: an application property for rules and clients of Azure Service Bus."""

from collections.abc import Callable
from typing import Any, Final

from lightrail.amqp.values import Symbol
from lightrail.model import conditions

NOTED_REASON: Final = Symbol("x-opt-deadletter-reason")
NOTED_DESCRIPTION: Final = Symbol("x-opt-deadletter-description")
"""Annotations with what such a client gave, each "" if it gave none."""
REJECTED: Final = "rejected"
"""The broker's reason if a receiver gave one, or none."""
REASONS: Final = {
    "expired": "TTLExpiredException",
    "max-delivery-count": "MaxDeliveryCountExceeded",
    "filter-error": "FilterException",
}
"""Names of Service Bus for other reasons of this broker."""
EXPIRED_TEXT: Final = "The message expired and was dead lettered."
"""The description of an expired dead letter in Service Bus; the broker gives it none."""


def service_bus_reason(annotation: Callable[[str], Any]) -> tuple[str | None, str | None]:
    """The reason and the description of a dead letter as clients of Azure Service Bus know them.

    Args:
        annotation: the value of a message annotation; None if the message has none of this name.
    """
    own = annotation("x-opt-dead-letter-reason")
    if not isinstance(own, str):
        return None, None
    reason: Any = REASONS.get(own, own)
    description = annotation("x-opt-dead-letter-description")
    if own == REJECTED:
        noted, condition = annotation(NOTED_REASON), annotation("x-opt-dead-letter-condition")
        if noted is not None:
            reason, description = noted, annotation(NOTED_DESCRIPTION)
        else:
            reason = None if condition == conditions.DEAD_LETTERED else condition
    elif own == "expired":
        description = description or EXPIRED_TEXT
    return str(reason) if reason else None, str(description) if description else None
