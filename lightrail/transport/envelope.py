"""Envelopes: bytes with the headers that every transport sends with them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Header = str | int | float | bool | None
"""Types of a header's value that every transport can send."""

NO_HEADERS: Final[Mapping[str, Header]] = MappingProxyType({})
PRIORITY_DEFAULT: Final = 4


@dataclass(slots=True, kw_only=True)
class Envelope:
    """The message that a transport sends or receives; it is not changed after that.

    Attributes:
        body: the serialised message.
        id: of the message; transports that drop duplicates compare it.
        subject: the topic of the message; routers filter by it, word by word between dots.
        content_type: MIME type of the body.
        correlation_id: id of the message that this one answers or belongs to.
        reply_to: address where answers are sent.
        group: messages of one group are handled in order, where the queue has groups.
        ttl: seconds that the message may wait in a queue; None: no limit.
        deliver_at: seconds since the Unix epoch before which the message is not delivered; None: at once.
        priority: 0 to 9, 4 for most.
        headers: by name; values are text, numbers, booleans or None.
        delivery_count: failed deliveries before this one; set by the transport.
        annotations: annotations by brokers and earlier receivers, such as the reason of a dead letter; set by
            the transport, and not sent.
    """

    body: bytes = b""
    id: str | None = None
    subject: str | None = None
    content_type: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    group: str | None = None
    ttl: float | None = None
    deliver_at: float | None = None
    priority: int = PRIORITY_DEFAULT
    headers: Mapping[str, Header] = field(default_factory=dict)
    delivery_count: int = 0
    annotations: Mapping[str, Any] = field(default_factory=dict)

    def replace(self, **changes: Any) -> "Envelope":
        """A copy of the envelope with these attributes changed."""
        return dataclasses.replace(self, **changes)


_TEXTS: Final = ("id", "subject", "content_type", "correlation_id", "reply_to", "group")
_NUMBERS: Final = ("ttl", "deliver_at")


def encode_head(envelope: Envelope) -> bytes:
    """The sent attributes of an envelope except the body, as a JSON object (docs/formats/envelope.md)."""
    head: dict[str, Any] = {
        name: value for name in (*_TEXTS, *_NUMBERS) if (value := getattr(envelope, name)) is not None
    }
    if envelope.priority != PRIORITY_DEFAULT:
        head["priority"] = envelope.priority
    if envelope.headers:
        head["headers"] = dict(envelope.headers)
    return json.dumps(head, separators=(",", ":")).encode()


def decode_head(head: bytes | str, body: bytes) -> Envelope:
    """The envelope of a head from `encode_head` and a body. Raises ValueError for other bytes."""
    found = json.loads(head)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object of headers, found {type(found).__name__}")
    texts = {name: found[name] for name in _TEXTS if name in found}
    numbers = {name: found[name] for name in _NUMBERS if name in found}
    headers = found.get("headers", {})
    priority = found.get("priority", PRIORITY_DEFAULT)
    if (
        not all(isinstance(text, str) for text in texts.values())
        or not all(isinstance(number, int | float) for number in numbers.values())
        or not isinstance(priority, int)
        or not isinstance(headers, dict)
        or not all(value is None or isinstance(value, str | int | float) for value in headers.values())
    ):
        raise ValueError(f"expected headers of simple values, found {found!r:.200}")
    return Envelope(body=body, priority=priority, headers=headers, **texts, **numbers)
