"""Messages for tests of forwarding."""

from typing import Any

from lightrail.amqp.composite import write_composite
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, Properties, encode_header, with_annotations
from lightrail.amqp.values import Symbol, UInt


def message(
    body: bytes,
    *,
    subject: str | None = None,
    annotations: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
    **header: Any,
) -> bytes:
    """An encoded message with one data section; `header` are its fields: durable, if nothing is said."""
    made = encode_header(Header(**({"durable": True, "priority": 4, "delivery_count": 0} | header)))
    made += write_composite(Properties(subject=subject))
    if own:
        made += b"\x00\x53\x74" + encode(own)
    made += b"\x00\x53\x75" + encode(body)
    return with_annotations(made, {Symbol(key): each for key, each in (annotations or {}).items()})


def dead_letter(body: bytes, source: str, **header: Any) -> bytes:
    """The same as a shard puts it into a dead-letter queue the second time."""
    return message(
        body,
        annotations={
            "x-opt-dead-letter-reason": Symbol("rejected"),
            "x-opt-dead-letter-source": source,
            "x-opt-dead-letter-condition": Symbol("app:bad"),
            "x-opt-dead-letter-description": "the first error",
            "x-opt-dead-letter-count": UInt(2),
            "x-own": 5,
        },
        **header,
    )
