"""A message as values: properties, application properties and body, decoded and encoded.

For the few messages that the broker itself answers or makes; messages that it passes on are not decoded.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.amqp import sections
from lightrail.amqp.composite import write_composite
from lightrail.amqp.decoder import Buffer, read_value
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Described, Symbol

_APPLICATION: Final = b"\x00\x53\x74"
_VALUE: Final = b"\x00\x53\x77"


@dataclass(slots=True)
class Message:
    """Messaging 3.2, without header, annotations and footer.

    `body` is the value of an amqp-value section, the bytes of all data sections, or the list of all items of
    all sequences; None also stands for no body at all.
    """

    properties: Properties = field(default_factory=Properties)
    application: dict[str, Any] = field(default_factory=dict)
    body: Any = None


def read_message(payload: Buffer) -> Message:
    """Decode a message of format 0. Raises DecodeError."""
    return Message(
        sections.decode_properties(payload),
        sections.decode_application_properties(payload),
        read_body(payload),
    )


def read_body(payload: Buffer) -> Any:
    """The body of a message of format 0. Raises DecodeError."""
    area = sections.scan(payload).body
    if area is None:
        return None
    position, end = area
    data: list[bytes] = []
    items: list[Any] = []
    kind = 0
    value: Any = None
    while position < end:
        descriptor, value_at = read_value(payload, position + 1, end, 1)
        kind = _KINDS.get(descriptor, 0)
        value, position = read_value(payload, value_at, end, 1)
        if kind == _DATA:
            data.append(bytes(value))
        elif kind == _SEQUENCE:
            items.extend(value)
    if kind == _DATA:
        return b"".join(data)
    return items if kind == _SEQUENCE else value


_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_KINDS: Final[dict[Any, int]] = {
    _DATA: _DATA,
    _SEQUENCE: _SEQUENCE,
    Symbol("amqp:data:binary"): _DATA,
    Symbol("amqp:amqp-sequence:list"): _SEQUENCE,
}


def write_message(message: Message) -> bytes:
    """Encode it with the body as amqp-value. Raises ValueError for a value of no AMQP type."""
    return b"".join(
        (
            write_composite(message.properties),
            _APPLICATION + encode(message.application) if message.application else b"",
            _VALUE + encode(message.body),
        )
    )


def write_value(value: Any) -> bytes:
    """A message of an amqp-value section alone. Raises ValueError for a value of no AMQP type."""
    return _VALUE + encode(value)


def plain(value: Any) -> Any:
    """A decoded value as JSON has it. Raises ValueError for a value that JSON has no type for."""
    match value:
        case None | bool():
            return value
        case Symbol() | str():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case dict():
            return {_key(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case Described():
            raise ValueError("expected a value without a descriptor")
    raise ValueError(f"expected a text, number, boolean, map or list, found {type(value).__name__}")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"expected a text as key of a map, found {type(key).__name__}")
    return str(key)
