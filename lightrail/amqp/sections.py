"""The sections of a message (messaging 3.2): found by their sizes, rewritten only where a broker must.

The body is never decoded, and a rewrite keeps every byte that it does not have to change (the bare message is
immutable, messaging 3.2). All functions are for message-format 0.
"""

# ruff: noqa: RUF009 -- mandatory() and optional() are dataclasses.field() with the declaration in it

import uuid
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lightrail.amqp import decoder
from lightrail.amqp.composite import SHAPE_OF, composite, optional, read_fields, write_composite
from lightrail.amqp.decoder import Buffer, read_value, skip
from lightrail.amqp.encoder import write_map_data, write_symbol, write_value
from lightrail.amqp.fields import (
    ADDRESS,
    BINARY,
    BOOLEAN,
    MESSAGE_ID,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
)
from lightrail.amqp.values import Described, Symbol, ULong, truncated, unexpected

PRIORITY_DEFAULT: Final = 4


@composite(0x70, "amqp:header:list", "section")
@dataclass(slots=True)
class Header:
    """Messaging 3.2.1; `ttl` in milliseconds."""

    durable: bool = optional(BOOLEAN, False)
    priority: int = optional(UBYTE, PRIORITY_DEFAULT)
    ttl: int | None = optional(UINT)
    first_acquirer: bool = optional(BOOLEAN, False)
    delivery_count: int = optional(UINT, 0)


@composite(0x73, "amqp:properties:list", "section")
@dataclass(slots=True)
class Properties:
    """Messaging 3.2.4; times in milliseconds since the Unix epoch."""

    message_id: int | uuid.UUID | bytes | str | None = optional(MESSAGE_ID)
    user_id: bytes | None = optional(BINARY)
    to: str | Described | None = optional(ADDRESS)
    subject: str | None = optional(STRING)
    reply_to: str | Described | None = optional(ADDRESS)
    correlation_id: int | uuid.UUID | bytes | str | None = optional(MESSAGE_ID)
    content_type: Symbol | None = optional(SYMBOL)
    content_encoding: Symbol | None = optional(SYMBOL)
    absolute_expiry_time: int | None = optional(TIMESTAMP)
    creation_time: int | None = optional(TIMESTAMP)
    group_id: str | None = optional(STRING)
    group_sequence: int | None = optional(UINT)
    reply_to_group_id: str | None = optional(STRING)


Area = tuple[int, int]
"""(start, end) of a section in the message, from its 0x00 to the octet after it."""


@dataclass(slots=True)
class Sections:
    """Areas of the sections, None for a missing one. `body` covers all sections of the body."""

    header: Area | None
    delivery_annotations: Area | None
    message_annotations: Area | None
    properties: Area | None
    application_properties: Area | None
    body: Area | None
    footer: Area | None


class Attributes(NamedTuple):
    """Fields by which a broker stores a message."""

    durable: bool
    priority: int
    ttl_ms: int | None
    absolute_expiry_ms: int | None


# --- finding sections ---------------------------------------------------------------------------------

_LISTS: Final = frozenset((0x45, 0xC0, 0xD0))
_MAPS: Final = frozenset((0xC1, 0xD1))
_BINARIES: Final = frozenset((0xA0, 0xB0))

_HEADER, _DELIVERY_ANNOTATIONS, _MESSAGE_ANNOTATIONS, _PROPERTIES, _APPLICATION, _BODY, _FOOTER = range(7)


class _Kind(NamedTuple):
    name: str
    rank: int
    constructors: frozenset[int]
    repeats: bool


_KINDS: Final[dict[int | str, _Kind]] = {
    0x70: _Kind("header", _HEADER, _LISTS, False),
    0x71: _Kind("delivery-annotations", _DELIVERY_ANNOTATIONS, _MAPS, False),
    0x72: _Kind("message-annotations", _MESSAGE_ANNOTATIONS, _MAPS, False),
    0x73: _Kind("properties", _PROPERTIES, _LISTS, False),
    0x74: _Kind("application-properties", _APPLICATION, _MAPS, False),
    0x75: _Kind("data", _BODY, _BINARIES, True),
    0x76: _Kind("amqp-sequence", _BODY, _LISTS, True),
    0x77: _Kind("amqp-value", _BODY, frozenset(decoder.NAMES), False),
    0x78: _Kind("footer", _FOOTER, _MAPS, False),
}
_ENCODINGS: Final = {_LISTS: "list", _MAPS: "map", _BINARIES: "binary"}
for _code, _kind in list(_KINDS.items()):
    _KINDS[Symbol(f"amqp:{_kind.name}:{_ENCODINGS.get(_kind.constructors, '*')}")] = _kind


def _open_section(message: Buffer, position: int, end: int) -> tuple[_Kind, int]:
    """The kind of the section that begins at `position`, and the offset of its value's constructor."""
    if message[position] != 0:
        raise unexpected("a section", decoder.constructor_name(message[position]), position)
    if position + 2 < end and message[position + 1] == 0x53:
        descriptor: Any = message[position + 2]
        value_at = position + 3
    else:
        descriptor, value_at = read_value(message, position + 1, end, 1)
        if not isinstance(descriptor, ULong | Symbol):
            raise unexpected("the descriptor of a section", repr(descriptor)[:80], position + 1)
    kind = _KINDS.get(descriptor)
    if kind is None:
        raise unexpected("the descriptor of a section", repr(descriptor)[:80], position + 1)
    if value_at >= end:
        raise truncated(kind.name, 1, value_at, end)
    if message[value_at] not in kind.constructors:
        raise unexpected(
            f"the {_ENCODINGS.get(kind.constructors, 'value')} of {kind.name}",
            decoder.constructor_name(message[value_at]),
            value_at,
        )
    return kind, value_at


def scan(message: Buffer, start: int = 0) -> Sections:
    """Find the sections of message[start:] from their sizes.

    Raises DecodeError when they are malformed, unknown, or not in the order of messaging 3.2. A message
    without a body passes: qpid-proton sends those.
    """
    end = len(message)
    areas: list[Area | None] = [None] * 7
    previous: _Kind | None = None
    position = start
    while position < end:
        kind, value_at = _open_section(message, position, end)
        after = skip(message, value_at, end)
        if previous is None or kind.rank > previous.rank:
            areas[kind.rank] = (position, after)
        elif kind is previous and kind.repeats:
            begun = areas[_BODY]
            assert begun is not None
            areas[_BODY] = (begun[0], after)
        else:
            raise unexpected(f"a section that may follow {previous.name}", kind.name, position)
        previous = kind
        position = after
    return Sections(*areas)


def _find(message: Buffer, rank: int) -> tuple[int, int, int] | None:
    """(start, offset of the value, end) of the section of a rank before the body, or None."""
    end = len(message)
    position = 0
    while position < end:
        kind, value_at = _open_section(message, position, end)
        if kind.rank > rank:
            return None
        after = skip(message, value_at, end)
        if kind.rank == rank:
            return position, value_at, after
        position = after
    return None


# --- reading ------------------------------------------------------------------------------------------

_HEADER_SHAPE: Final = SHAPE_OF[Header]
_PROPERTIES_SHAPE: Final = SHAPE_OF[Properties]
_ABSOLUTE_EXPIRY_INDEX: Final = _PROPERTIES_SHAPE.names.index("absolute-expiry-time")


def decode_header(message: Buffer) -> Header:
    """The header with the specification's defaults filled in, also for a missing section."""
    found = _find(message, _HEADER)
    if found is None:
        return Header(durable=False, priority=PRIORITY_DEFAULT, first_acquirer=False, delivery_count=0)
    header: Header = read_fields(_HEADER_SHAPE, message, found[1], found[2], 0)[0]
    return header


def decode_properties(message: Buffer) -> Properties:
    """The properties; all None for a missing section."""
    found = _find(message, _PROPERTIES)
    if found is None:
        return Properties()
    properties: Properties = read_fields(_PROPERTIES_SHAPE, message, found[1], found[2], 0)[0]
    return properties


def decode_annotations(message: Buffer) -> dict[Any, Any]:
    """The message-annotations; empty for a missing section."""
    return _decode_map(message, _MESSAGE_ANNOTATIONS)


def decode_application_properties(message: Buffer) -> dict[Any, Any]:
    """The application-properties; empty for a missing section."""
    return _decode_map(message, _APPLICATION)


def _decode_map(message: Buffer, rank: int) -> dict[Any, Any]:
    found = _find(message, rank)
    if found is None:
        return {}
    items: dict[Any, Any] = read_value(message, found[1], found[2], 0)[0]
    return items


def attributes(message: Buffer) -> Attributes:
    """Durability, priority and the two ways to expire; of the properties only the expiry time is decoded."""
    header = decode_header(message)
    properties = _find(message, _PROPERTIES)
    expiry = None if properties is None else _absolute_expiry(message, properties[1], properties[2])
    return Attributes(header.durable, header.priority, header.ttl, expiry)


def _absolute_expiry(message: Buffer, position: int, end: int) -> int | None:
    """One field of the properties, earlier ones skipped; `position` is at the list's constructor."""
    code = message[position]
    if code == 0x45:
        return None
    count, position, end = decoder.open_compound("properties", code == 0xD0, message, position + 1, end)
    if count <= _ABSOLUTE_EXPIRY_INDEX:
        return None
    for _ in range(_ABSOLUTE_EXPIRY_INDEX):
        position = skip(message, position, end)
    if position >= end:
        raise truncated("properties.absolute-expiry-time", 1, position, end)
    expiry: int | None = TIMESTAMP.readers[message[position]](message, position + 1, end, 1)[0]
    return expiry


# --- rewriting ----------------------------------------------------------------------------------------


def encode_header(header: Header) -> bytes:
    """The header section; fields that have their default are left out."""
    kept = Header(ttl=header.ttl)
    if header.durable:
        kept.durable = True
    if header.priority != PRIORITY_DEFAULT:
        kept.priority = header.priority
    if header.first_acquirer:
        kept.first_acquirer = True
    if header.delivery_count:
        kept.delivery_count = header.delivery_count
    return write_composite(kept)


def with_header(message: Buffer, header: Header) -> bytes:
    """The message with this header in place of its own, if any; the rest is the same to the byte."""
    found = _find(message, _HEADER)
    rest = 0 if found is None else found[2]
    return encode_header(header) + bytes(memoryview(message)[rest:])


def with_annotations(
    message: Buffer, annotations: Mapping[Symbol, Any], bytes_max: int | None = None
) -> bytes:
    """The message with these message-annotations added, or in place of those of the same key.

    All else is the same to the byte, the other annotations too. Raises ValueError for a value that is of
    no AMQP type, and where all annotations together would be more than `bytes_max`; DecodeError for a message
    whose head is malformed.
    """
    view = memoryview(message)
    found = _find(message, _MESSAGE_ANNOTATIONS)
    if found is None:
        head_end = rest = _end_of_head(message)
        pairs: list[bytes] = []
        count = 0
    else:
        head_end, value_at, rest = found
        pairs, count = _other_pairs(message, value_at, rest, annotations)
    pairs.extend(write_symbol(key) + write_value(value) for key, value in annotations.items())
    data = b"".join(pairs)
    if bytes_max is not None and len(data) > bytes_max:
        raise ValueError(f"expected at most {bytes_max} bytes of message-annotations, found {len(data)}")
    section = b"\x00\x53\x72" + write_map_data(count + 2 * len(annotations), data)
    return b"".join((view[:head_end], section, view[rest:]))


def with_delivery_annotations(message: Buffer, annotations: Mapping[Symbol, Any]) -> bytes:
    """The message with these delivery-annotations in place of its own. Raises ValueError, DecodeError."""
    return _with_section(message, _DELIVERY_ANNOTATIONS, b"\x00\x53\x71" + write_value(dict(annotations)))


def with_application_properties(message: Buffer, properties: Mapping[str, Any]) -> bytes:
    """The message with these application-properties in place of its own; the rest is the same to the byte.

    Raises ValueError for a value that is of no AMQP type, DecodeError for a malformed message.
    """
    return _with_section(message, _APPLICATION, b"\x00\x53\x74" + write_value(dict(properties)))


def with_properties(message: Buffer, properties: Properties) -> bytes:
    """The message with these properties in place of its own, all else to the byte. Raises DecodeError."""
    return _with_section(message, _PROPERTIES, write_composite(properties))


def _with_section(message: Buffer, rank: int, section: bytes) -> bytes:
    """The message with an encoded section of a rank before the body, in place of its own."""
    found = _find(message, rank)
    if found is not None:
        start, rest = found[0], found[2]
    else:
        before = [_find(message, lower) for lower in range(rank)]
        start = rest = max((each[2] for each in before if each is not None), default=0)
    view = memoryview(message)
    return b"".join((view[:start], section, view[rest:]))


def without_annotations(message: Buffer, keys: Iterable[Symbol]) -> bytes:
    """The message without the message-annotations of these keys; all else is the same to the byte.

    Raises DecodeError for a message whose head is malformed.
    """
    found = _find(message, _MESSAGE_ANNOTATIONS)
    if found is None:
        return bytes(message)
    start, value_at, rest = found
    pairs, count = _other_pairs(message, value_at, rest, frozenset(keys))
    section = b"\x00\x53\x72" + write_map_data(count, b"".join(pairs)) if pairs else b""
    view = memoryview(message)
    return b"".join((view[:start], section, view[rest:]))


def _end_of_head(message: Buffer) -> int:
    """Where message-annotations go when there are none: after the header and delivery-annotations."""
    position = 0
    for rank in (_HEADER, _DELIVERY_ANNOTATIONS):
        found = _find(message, rank)
        if found is not None:
            position = found[2]
    return position


def _other_pairs(
    message: Buffer, position: int, end: int, replaced: Container[Symbol]
) -> tuple[list[bytes], int]:
    """The encoded pairs of a map without those of the replaced keys, and how many items they are."""
    count, position, end = decoder.open_compound(
        "message-annotations", message[position] == 0xD1, message, position + 1, end
    )
    if count % 2:
        raise unexpected("an even count of items in message-annotations", str(count), position)
    view = memoryview(message)
    pairs: list[bytes] = []
    for _ in range(count // 2):
        key, value_at = read_value(message, position, end, 1)
        after = skip(message, value_at, end)
        if not (isinstance(key, Symbol) and key in replaced):
            pairs.append(bytes(view[position:after]))
        position = after
    decoder.check_filled("message-annotations", position, end)
    return pairs, 2 * len(pairs)


__all__ = [
    "Attributes",
    "Header",
    "Properties",
    "Sections",
    "attributes",
    "decode_annotations",
    "decode_application_properties",
    "decode_header",
    "decode_properties",
    "encode_header",
    "scan",
    "with_annotations",
    "with_application_properties",
    "with_header",
    "with_properties",
    "without_annotations",
]
