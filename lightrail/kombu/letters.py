"""Letters: Kombu's messages as AMQP messages, and back.

Body: one data section. Headers: application properties, which filters can compare; headers without a simple
type are JSON in the annotation HEADERS. Properties are fields of AMQP, or JSON in the annotation PROPERTIES
if AMQP has no such field. The routing key is the subject. A task's `eta` is the time before which the broker
does not deliver it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kombu.utils.json import dumps, loads

from lightrail.client import Message
from lightrail.kombu.names import Names

HEADERS: Final = "x-opt-kombu-headers"
PROPERTIES: Final = "x-opt-kombu-properties"
EXCHANGE: Final = "x-opt-kombu-exchange"
DELIVERY_TIME: Final = "x-opt-delivery-time"
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
PRIORITY_MAX: Final = 9
TRANSIENT: Final = 1
"""delivery_mode of a transient message."""
PERSISTENT: Final = 2
_LONG: Final = 1 << 63
_PLACED: Final = frozenset(
    (
        "correlation_id",
        "delivery_info",
        "delivery_mode",
        "delivery_tag",
        "expiration",
        "message_id",
        "priority",
        "reply_to",
    )
)


def encode(
    letter: Mapping[str, Any], exchange: str, routing_key: str, names: Names, *, delay: bool = True
) -> Message:
    """The AMQP message for a result of `Channel.prepare_message`.

    Args:
        delay: whether the broker keeps a task until its eta; otherwise the worker does.
    """
    properties = letter["properties"]
    headers = letter["headers"]
    annotations: dict[str, Any] = {EXCHANGE: exchange}
    simple = {key: value for key, value in headers.items() if _is_simple(value)}
    if len(simple) < len(headers):
        annotations[HEADERS] = dumps({key: headers[key] for key in headers if key not in simple})
    rest = {key: value for key, value in properties.items() if key not in _PLACED and value is not None}
    if rest:
        annotations[PROPERTIES] = dumps(rest)
    if delay:
        annotations |= delays(headers)
    body = letter["body"]
    reply_to = properties.get("reply_to")
    expiration = properties.get("expiration")
    return Message(
        body.encode() if isinstance(body, str) else bytes(body),
        id=properties.get("message_id"),
        subject=routing_key,
        to=names.target(exchange, routing_key),
        reply_to=names.queue(reply_to) if reply_to else None,
        correlation_id=properties.get("correlation_id"),
        content_type=letter.get("content-type"),
        content_encoding=letter.get("content-encoding"),
        durable=int(properties.get("delivery_mode") or PERSISTENT) != TRANSIENT,
        priority=max(0, min(int(properties.get("priority") or 0), PRIORITY_MAX)),
        ttl=None if expiration is None else int(expiration) / 1000,
        properties=simple,
        annotations=annotations,
    )


def delays(headers: Mapping[str, Any]) -> dict[str, int]:
    """Annotations that delay a message: by a task's `eta`, or by `x-delay` in milliseconds.

    A time without an offset from UTC depends on settings of the worker, so the worker waits for it.
    """
    found: dict[str, int] = {}
    eta = headers.get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            eta = None
    if isinstance(eta, datetime) and eta.tzinfo is not None:
        found[DELIVERY_TIME] = int(eta.timestamp() * 1000)
    if headers.get("x-delay"):
        found[DELIVERY_DELAY] = int(headers["x-delay"])
    return found


def decode(message: Message, names: Names) -> dict[str, Any]:
    """The arguments of kombu.Message for an AMQP message, which any client may have sent."""
    annotations = {str(key): value for key, value in message.annotations.items()}
    headers = {str(key): value for key, value in message.properties.items()}
    if HEADERS in annotations:
        headers |= loads(annotations[HEADERS])
    properties: dict[str, Any] = loads(annotations[PROPERTIES]) if PROPERTIES in annotations else {}
    properties |= {
        "delivery_mode": PERSISTENT if message.durable else TRANSIENT,
        "priority": message.priority,
    }
    placed = {
        "message_id": message.id,
        "correlation_id": message.correlation_id,
        "reply_to": names.bare(message.reply_to),
        "expiration": None if message.ttl is None else str(round(message.ttl * 1000)),
    }
    properties |= {key: value for key, value in placed.items() if value is not None}
    body = message.body
    return {
        "body": body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding or ("binary" if isinstance(body, bytes) else None),
        "headers": headers,
        "properties": properties,
        "delivery_info": {
            "exchange": annotations.get(EXCHANGE, ""),
            "routing_key": message.subject or "",
            "priority": message.priority,
            "redelivered": message.delivery_count > 0,
        },
    }


def _is_simple(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -_LONG <= value < _LONG
    return value is None or type(value) in (str, bool, float, bytes)
