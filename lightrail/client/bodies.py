"""Bodies of messages: their sections, decoded (messaging 3.2.6 to 3.2.8)."""

from typing import Any, Final

from lightrail.amqp.decoder import read_value
from lightrail.amqp.sections import Area
from lightrail.amqp.values import Symbol

_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
_KINDS: Final = {
    _DATA: _DATA,
    _SEQUENCE: _SEQUENCE,
    _VALUE: _VALUE,
    Symbol("amqp:data:binary"): _DATA,
    Symbol("amqp:amqp-sequence:list"): _SEQUENCE,
    Symbol("amqp:amqp-value:*"): _VALUE,
}


class Sequence(tuple[Any, ...]):
    """A body of amqp-sequence sections, each item a list; a plain list or tuple is one amqp-value."""

    __slots__ = ()


class Data(tuple[bytes, ...]):
    """A body of several data sections; plain bytes are one."""

    __slots__ = ()


def body_sections(payload: bytes, area: Area | None) -> bytes:
    """The encoded sections of a body; empty without one."""
    return b"" if area is None else payload[area[0] : area[1]]


def read_body(payload: bytes, area: Area | None) -> Any:
    """The body in an area of an encoded message; None without one. Raises DecodeError."""
    if area is None:
        return None
    position, end = area
    found: list[Any] = []
    kind = 0
    while position < end:
        descriptor, value_at = read_value(payload, position + 1, end, 1)
        kind = _KINDS[descriptor]
        value, position = read_value(payload, value_at, end, 1)
        found.append(bytes(value) if kind == _DATA else value)
    if kind == _SEQUENCE:
        return Sequence(found)
    return Data(found) if len(found) > 1 else found[0]
