"""The messages that forwarding sends for deliveries."""

from typing import Any, Final

from lightrail.amqp.sections import (
    attributes,
    decode_annotations,
    decode_header,
    with_header,
    without_annotations,
)
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.shard_client.receiving.queue_consumer import Delivery

PRIORITY_DEFAULT: Final = 4
SOURCE: Final = Symbol("x-opt-dead-letter-source")
PRESENT: Final = (
    Symbol("x-opt-dead-letter-reason"),
    SOURCE,
    Symbol("x-opt-dead-letter-time"),
)
"""Annotations that a message has while it is a dead letter; its history (first error, count) stays."""


def moved(delivery: Delivery) -> Outgoing:
    """The message unchanged: the same bytes, durability, priority and expiry."""
    durable, priority, _ttl_ms, _expiry_ms = _attributes(delivery)
    return Outgoing(
        delivery.message, durable, priority, max(delivery.expires_at_ms, 0), delivery.message_format
    )


def due(delivery: Delivery, now_ms: int) -> Outgoing:
    """A scheduled message as it is sent when it is due: its ttl starts now.

    Clients that write a ttl also write an absolute-expiry-time, counted from the creation of the message: it
    is used only without a ttl.
    """
    durable, priority, ttl_ms, expiry_ms = _attributes(delivery)
    expires_at_ms = (
        now_ms + ttl_ms if ttl_ms is not None else max(1, expiry_ms) if expiry_ms is not None else 0
    )
    return Outgoing(delivery.message, durable, priority, expires_at_ms, delivery.message_format)


def redriven(delivery: Delivery, now_ms: int) -> Outgoing:
    """A dead letter for another attempt at its queue.

    Its delivery-count starts at 0 and its ttl now. The annotations with the reason of the dead letter are
    removed; its count of dead-letterings and its first error stay. An absolute-expiry-time in the past is
    ignored: with it the message would be a dead letter again at once.
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
            # The shard stored this message without decoding it, so it is forwarded unchanged.
            message = delivery.message
    return Outgoing(message, durable, priority, expires_at_ms, delivery.message_format)


def dead_letter_source(delivery: Delivery) -> str | None:
    """The original queue of a dead letter, or None if its annotations do not name one."""
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
    # A message that can't be decoded is stored durably, so that it is not lost.
    return True, PRIORITY_DEFAULT, None, None
