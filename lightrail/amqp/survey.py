"""The beginning of a message, surveyed by sizes: where its header ends, whether it may expire."""

from dataclasses import dataclass
from typing import Final

from lightrail.amqp.values import DecodeError

_HEADER: Final = 0x70
_DELIVERY_ANNOTATIONS: Final = 0x71
_PROPERTIES: Final = 0x73
_FOOTER: Final = 0x78
_SECTION_NAMES: Final = {
    b"amqp:header:list": 0x70,
    b"amqp:delivery-annotations:map": 0x71,
    b"amqp:message-annotations:map": 0x72,
    b"amqp:properties:list": 0x73,
    b"amqp:application-properties:map": 0x74,
    b"amqp:data:binary": 0x75,
    b"amqp:amqp-sequence:list": 0x76,
    b"amqp:amqp-value:*": 0x77,
    b"amqp:footer:map": 0x78,
}


@dataclass(slots=True, eq=False, repr=False)
class MessageSurvey:
    """Offsets in the beginning of a message, found without decoding it.

    `head_end`: end of its header section, 0 without one. `prefix_end`: end of the descriptor of the first
    section that is neither header nor annotations, 0 when that is not encoded the usual way.
    `properties`: offset of the constructor of the properties' list, 0 without.
    `next_hop`: offsets of the delivery-annotations, None without.
    `may_expire`: there are more than eight properties, so that one may be absolute-expiry-time.
    """

    head_end: int
    prefix_end: int
    properties: int
    may_expire: bool
    next_hop: tuple[int, int] | None


def descriptor(message: bytes, position: int) -> tuple[int, int]:
    """Code of the section whose descriptor begins at `position`, and the offset after the descriptor."""
    form = message[position + 1]
    if form == 0x53:
        return message[position + 2], position + 3
    if form == 0x80:
        return int.from_bytes(message[position + 2 : position + 10], "big"), position + 10
    if form == 0xA3:
        end = position + 3 + message[position + 2]
        return _SECTION_NAMES.get(message[position + 3 : end], 0), end
    if form == 0xB3:
        end = position + 6 + int.from_bytes(message[position + 2 : position + 6], "big")
        return _SECTION_NAMES.get(message[position + 6 : end], 0), end
    return 0, position + 2


def survey(message: bytes) -> MessageSurvey:
    """Walk over header and annotations by their sizes (messaging 3.2). Raises DecodeError."""
    position = 0
    head_end = 0
    next_hop = None
    newest = 0
    try:
        while position < len(message):
            if message[position]:
                raise DecodeError(
                    f"expected the descriptor of a section (0x00), found {message[position]:#04x} at offset"
                    f" {position} of the message"
                )
            code, value = descriptor(message, position)
            if not _HEADER <= code <= _FOOTER:
                raise DecodeError(
                    f"expected a message section, found descriptor {bytes(message[position:value][:24])!r}"
                    f" at offset {position} of the message"
                )
            # Here the walk ends, whatever follows: no later section says how a message is stored or how long
            # it lives.
            if code >= _PROPERTIES:
                # Another form of descriptor (a ulong of nine octets, a symbol) is left to the complete
                # decoder: 0 says that to shapes.
                plain = value == position + 3
                if code != _PROPERTIES:
                    return MessageSurvey(head_end, value if plain else 0, 0, False, next_hop)
                form = message[value]
                if form == 0xC0:
                    return MessageSurvey(
                        head_end, value + 1 if plain else 0, value, message[value + 2] > 8, next_hop
                    )
                if form == 0xD0:
                    many = int.from_bytes(message[value + 5 : value + 9], "big") > 8
                    return MessageSurvey(head_end, 0, value, many, next_hop)
                return MessageSurvey(head_end, value + 1 if plain else 0, 0, False, next_hop)
            # Sections are in the order of their descriptors, each at most once (messaging 3.2).
            if code <= newest:
                raise DecodeError(
                    f"expected a section after {newest:#04x}, found {code:#04x} at offset {position}"
                    " of the message"
                )
            newest, start = code, position
            form = message[value]
            if form == 0x45 and code == _HEADER:
                position = value + 1
            elif form in (0xC0, 0xC1):
                position = value + 2 + message[value + 1]
            elif form in (0xD0, 0xD1):
                position = value + 5 + int.from_bytes(message[value + 1 : value + 5], "big")
            else:
                raise DecodeError(
                    f"expected a list or map as section {code:#04x}, found constructor {form:#04x} at offset"
                    f" {value} of the message"
                )
            if position > len(message):
                raise DecodeError(
                    f"expected section {code:#04x} to end within the message of {len(message)} bytes,"
                    f" found its end at {position}"
                )
            if code == _HEADER:
                head_end = position
            elif code == _DELIVERY_ANNOTATIONS:
                next_hop = start, position
    except IndexError:
        raise DecodeError(
            f"expected a whole section, found the end of the message at offset {len(message)}"
        ) from None
    return MessageSurvey(head_end, 0, 0, False, next_hop)


_WIDTHS: Final = {0x40: 0, 0x43: 0, 0x44: 0, 0x52: 1, 0x53: 1, 0x70: 4, 0x80: 8, 0x83: 8, 0x98: 16}
"""Octets after the constructors of fixed width that message-id, user-id and other fields have."""
_EXPIRY_INDEX: Final = 8
_PROPERTIES_COUNT: Final = 13


def never_expires(data: bytes, position: int, stop: int) -> bool:
    """Whether the properties, size octet at `position`, have no absolute-expiry-time for sure (3.2.4).

    False also for uncommon or malformed properties, for the complete decoder. JMS clients set
    creation-time, the field after, on every message.
    """
    end = position + 1 + data[position]
    count = data[position + 1]
    position += 2
    if end > stop or not _EXPIRY_INDEX < count <= _PROPERTIES_COUNT or count > end - position:
        return False
    for _ in range(_EXPIRY_INDEX):
        if position >= end:
            return False
        code = data[position]
        width = _WIDTHS.get(code)
        if width is not None:
            position += 1 + width
        elif code in (0xA0, 0xA1, 0xA3):
            if position + 1 >= end:
                return False
            position += 2 + data[position + 1]
        else:
            return False
    return position < end and data[position] == 0x40
