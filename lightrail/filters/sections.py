"""Sections of an encoded message before its body, found by their sizes without decoding them."""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from lightrail.amqp.decoder import READERS, Buffer, read_value
from lightrail.amqp.values import DecodeError, Symbol, ULong, truncated, unexpected

_HEADER: Final = 0x70
_APPLICATION_PROPERTIES: Final = 0x74
FILTER_SECTIONS_MAX: Final[int] = 16
"""Sections before the body that filters read; there are five (messaging 3.2)."""
MALFORMED: Final = (DecodeError, IndexError, StructError, ValueError)
"""Exceptions that reading untrusted bytes may raise."""

_u32: Final = Struct(">I").unpack_from

_CODES: Final = {
    Symbol("amqp:header:list"): 0x70,
    Symbol("amqp:delivery-annotations:map"): 0x71,
    Symbol("amqp:message-annotations:map"): 0x72,
    Symbol("amqp:properties:list"): 0x73,
    Symbol("amqp:application-properties:map"): 0x74,
    Symbol("amqp:data:binary"): 0x75,
    Symbol("amqp:amqp-sequence:list"): 0x76,
    Symbol("amqp:amqp-value:*"): 0x77,
    Symbol("amqp:footer:map"): 0x78,
}

LISTS: Final = frozenset((0x45, 0xC0, 0xD0))
MAPS: Final = frozenset((0xC1, 0xD1))

ONE_OCTET: Final = -1
FOUR_OCTETS: Final = -2


def _width(code: int) -> int:
    """Octets of a value with its constructor; -1 and -2 for one and four octets of size, 0 for neither."""
    if code == 0 or READERS[code] is READERS[0x01]:
        return 0
    group = code >> 4
    if group >= 0xA:
        return FOUR_OCTETS if group & 1 else ONE_OCTET
    return 1 + (0, 1, 2, 4, 8, 16)[group - 4]


WIDTHS: Final = [_width(code) for code in range(256)]


def open_section(data: Buffer, position: int) -> tuple[int, int]:
    """The descriptor code of the section at `position`, and the offset of its value's constructor.

    Raises one of MALFORMED for bytes that do not begin a section of messaging 3.2.
    """
    if data[position + 1] == 0x53 and data[position] == 0:
        code = data[position + 2]
        value_at = position + 3
    else:
        if data[position] != 0:
            raise unexpected("a section", f"{data[position]:#04x}", position)
        descriptor, value_at = read_value(data, position + 1, len(data), 1)
        if isinstance(descriptor, Symbol):
            code = _CODES.get(descriptor, 0)
        elif isinstance(descriptor, ULong):
            code = int(descriptor)
        else:
            code = 0
    if not 0x70 <= code <= 0x78:
        raise unexpected("the descriptor of a section", f"{code:#x}", position)
    return code, value_at


def section_end(data: Buffer, value_at: int) -> int:
    """The offset after the list or map at `value_at`; raises one of MALFORMED."""
    code = data[value_at]
    if code == 0xC0 or code == 0xC1:
        after = value_at + 2 + data[value_at + 1]
    elif code == 0xD0 or code == 0xD1:
        after = value_at + 5 + _u32(data, value_at + 1)[0]
    elif code == 0x45:
        after = value_at + 1
    else:
        raise unexpected("a list or a map", f"{code:#04x}", value_at)
    if after > len(data):
        raise truncated("a section", after - value_at, value_at, len(data))
    return after


def find_section(data: Buffer, wanted: int) -> int:
    """The offset of the value of a section before the body, -1 if the section is absent.

    Reads no later sections. Raises one of MALFORMED.
    """
    position = 0
    end = len(data)
    for _ in _SECTIONS:
        if position >= end:
            break
        code, value_at = open_section(data, position)
        if code >= wanted:
            return value_at if code == wanted else -1
        position = section_end(data, value_at)
    return -1


BROKEN: Final = -2
_SECTIONS: Final = range(FILTER_SECTIONS_MAX)


def locate(data: Buffer) -> tuple[dict[int, int], int]:
    """Offsets of the values of the sections before the body, as far as they are well-formed, and their size.

    A section out of order (messaging 3.2), or a repeated one, is ignored, as in find_section. A message that
    does not begin with a section has BROKEN as its header, so that it has no defaults either.
    """
    found: dict[int, int] = {}
    latest = 0
    position = 0
    end = len(data)
    try:
        for _ in _SECTIONS:
            if position >= end:
                break
            code, value_at = open_section(data, position)
            if code > _APPLICATION_PROPERTIES:
                break
            if code > latest:
                found[code] = value_at
                latest = code
            position = section_end(data, value_at)
    except MALFORMED:
        if not found:
            found[_HEADER] = BROKEN
    return found, position


def open_items(data: Buffer, value_at: int) -> tuple[int, int, int]:
    """(count, start, end) of the items of the list or map at `value_at`; raises one of MALFORMED."""
    code = data[value_at]
    if code == 0xC0 or code == 0xC1:
        stop = value_at + 2 + data[value_at + 1]
        count = data[value_at + 2]
        start = value_at + 3
    elif code == 0xD0 or code == 0xD1:
        stop = value_at + 5 + _u32(data, value_at + 1)[0]
        count = _u32(data, value_at + 5)[0]
        start = value_at + 9
    elif code == 0x45:
        return 0, value_at + 1, value_at + 1
    else:
        raise unexpected("a list or a map", f"{code:#04x}", value_at)
    if not start <= stop <= len(data):
        raise truncated("a section", stop - start, start, len(data))
    return count, start, stop
