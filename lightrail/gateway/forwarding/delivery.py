"""Letter: a message on its way from one name to another, with what its sender said of keeping it."""

from typing import Any, Final, NamedTuple

from lightrail.amqp.sections import (
    attributes,
    decode_annotations,
    decode_header,
    with_header,
    without_annotations,
)
from lightrail.amqp.types import DecodeError, Symbol

PRIORITY_DEFAULT: Final = 4
SOURCE: Final = Symbol("x-opt-dead-letter-source")
PRESENT: Final = (
    Symbol("x-opt-dead-letter-reason"),
    SOURCE,
    Symbol("x-opt-dead-letter-time"),
)
"""What says why a message is a dead letter now; condition, description and count are its history and stay."""


class Letter(NamedTuple):
    """A message as a sink takes it."""

    message: bytes
    durable: bool
    priority: int
    expires_at_ms: int
    """0 for never."""
    message_format: int


class Delivery(NamedTuple):
    """A message that a source holds for us until it is settled."""

    generation: int
    """Of the consumer: how often it was opened. What an earlier one delivered is back in its queue."""
    number: int
    sequence: int
    attempts: int
    """Failed deliveries of this message before this one."""
    expires_at_ms: int
    enqueued_at_ms: int
    message_format: int
    message: bytes


def moved(delivery: Delivery) -> Letter:
    """The message as it is: the same bytes, durability, priority and end."""
    durable, priority, _ttl_ms, _expiry_ms = _attributes(delivery)
    return Letter(
        delivery.message, durable, priority, max(delivery.expires_at_ms, 0), delivery.message_format
    )


def redriven(delivery: Delivery, now_ms: int) -> Letter:
    """A dead letter that gets another chance.

    Its delivery-count begins at 0 and its ttl now, and it says no more why it was a dead letter; how often it
    was one and its first error stay. An absolute-expiry-time counts unless it is over: then the message would
    be a dead letter again at once.
    """
    durable, priority, ttl_ms, expiry_ms = _attributes(delivery)
    expires_at_ms = now_ms + ttl_ms if ttl_ms is not None else 0
    if expiry_ms is not None and expiry_ms > now_ms:
        expires_at_ms = min(expires_at_ms, expiry_ms) if expires_at_ms else expiry_ms
    message = delivery.message
    if not delivery.message_format:
        try:
            message = without_annotations(message, PRESENT)
            header = decode_header(message)
            if header.delivery_count:
                header.delivery_count = 0
                message = with_header(message, header)
        except (DecodeError, ValueError):
            # It was stored without being looked into, and goes on as it is.
            message = delivery.message
    return Letter(message, durable, priority, expires_at_ms, delivery.message_format)


def dead_letter_source(delivery: Delivery) -> str | None:
    """The queue in which a dead letter died, or None where the message does not say."""
    if delivery.message_format:
        return None
    try:
        found: Any = decode_annotations(delivery.message).get(SOURCE)
    except (DecodeError, ValueError):
        return None
    return str(found) if isinstance(found, str) else None


def _attributes(delivery: Delivery) -> tuple[bool, int, int | None, int | None]:
    if not delivery.message_format:
        try:
            return attributes(delivery.message)
        except (DecodeError, ValueError):
            pass
    # What can't be read is kept as well as anything: on disk.
    return True, PRIORITY_DEFAULT, None, None
