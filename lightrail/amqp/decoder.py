"""Bytes to values: a table of readers, one for each constructor octet (types 1.6).

A reader is called with the position after the constructor; it returns the value and the position after it.
No memory is allocated for a size or count before its octets are known to be in the input, so time and memory
are bounded by the length of the input (times the nesting depth for time).
"""

import uuid
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from lightrail.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    truncated,
    unexpected,
)
from lightrail.model import limits

Buffer = bytes | bytearray | memoryview
Reader = Callable[[Buffer, int, int, int], tuple[Any, int]]
"""(buffer, position after the constructor, end, depth) -> (value, position after the value)"""

ZERO_WIDTH_COUNT_MAX: Final = 255
"""Elements of an array whose constructor needs no octets (null, true, uint0, ...): the input does not bound
their count."""
SYMBOL_CACHED_LENGTH_MAX: Final = 64
"""Longer symbols are not names of a protocol; caching them would let any peer fill our memory."""

_u32: Final = Struct(">I").unpack_from


def decode(buffer: Buffer, position: int, end: int) -> tuple[Any, int]:
    """Read one value from buffer[position:end]; returns it and the position after it.

    Raises DecodeError for anything but one well-formed value within the bounds. Keys of a map that are equal
    in Python (1 and true, symbol and string of the same letters) are duplicates.
    """
    return read_value(buffer, position, min(end, len(buffer)), 0)


def read_value(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    if position >= end:
        raise truncated("a value", 1, position, end)
    return READERS[buffer[position]](buffer, position + 1, end, depth)


def constructor_name(code: int) -> str:
    return f"constructor {code:#04x} ({NAMES[code]})" if code in NAMES else f"constructor {code:#04x}"


def refuse(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    raise unexpected("a constructor of AMQP 1.0", f"{buffer[position - 1]:#04x}", position - 1)


# --- fixed width ----------------------------------------------------------------------------------------


def constant(value: Any) -> Reader:
    """Reader of a constructor that is the whole value."""

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        return value, position

    return read


def small(name: str, values: Sequence[Any]) -> Reader:
    """Reader of one octet that chooses among 256 ready values."""

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        if position >= end:
            raise truncated(name, 1, position, end)
        return values[buffer[position]], position + 1

    return read


def fixed(name: str, form: str, make: Callable[[Any], Any] | None) -> Reader:
    """Reader of one number that struct knows; `make` turns it into the value."""
    packed = Struct(">" + form)
    unpack, width = packed.unpack_from, packed.size

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        after = position + width
        if after > end:
            raise truncated(name, width, position, end)
        (number,) = unpack(buffer, position)
        return (number if make is None else make(number)), after

    return read


def _opaque(name: str, width: int, make: Callable[[bytes], Any]) -> Reader:
    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        after = position + width
        if after > end:
            raise truncated(name, width, position, end)
        return make(bytes(buffer[position:after])), after

    return read


def _signed(octet: int) -> int:
    return octet - 256 if octet > 127 else octet


def _read_boolean(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    if position >= end:
        raise truncated("boolean", 1, position, end)
    octet = buffer[position]
    if octet > 1:
        raise unexpected("boolean 0x00 or 0x01", f"{octet:#04x}", position)
    return octet == 1, position + 1


def _read_char(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    after = position + 4
    if after > end:
        raise truncated("char", 4, position, end)
    (point,) = _u32(buffer, position)
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise unexpected("a Unicode character", f"{point:#x}", position)
    return Char(chr(point)), after


# --- variable width -------------------------------------------------------------------------------------


def _variable(name: str, wide: bool, make: Callable[[Buffer, int], Any]) -> Reader:
    """Reader of a size (one octet, or four) and so many octets, of which `make` makes the value."""

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        start = position + (4 if wide else 1)
        if start > end:
            raise truncated(f"the size of {name}", start - position, position, end)
        after = start + (_u32(buffer, position)[0] if wide else buffer[position])
        if after > end:
            raise truncated(name, after - start, start, end)
        return make(buffer[start:after], start), after

    return read


def _make_string(octets: Buffer, offset: int) -> str:
    try:
        return str(octets, "utf-8")
    except UnicodeDecodeError as error:
        raise unexpected("UTF-8", error.reason, offset + error.start) from None


_symbols: dict[bytes, Symbol] = {}


def _make_symbol(octets: Buffer, offset: int) -> Symbol:
    raw = bytes(octets)
    symbol = _symbols.get(raw)
    if symbol is None:
        if not raw.isascii():
            raise unexpected("ASCII in a symbol", "octets above 0x7f", offset)
        symbol = Symbol(raw, "ascii")
        if len(_symbols) < limits.SYMBOL_CACHE_MAX and len(raw) <= SYMBOL_CACHED_LENGTH_MAX:
            _symbols[raw] = symbol
    return symbol


# --- compound -------------------------------------------------------------------------------------------


def open_compound(name: str, wide: bool, buffer: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """Read size and count (types 1.6.22); returns (count, start of the items, end of the items)."""
    width = 4 if wide else 1
    start = position + 2 * width
    if start > end:
        raise truncated(f"the size and count of {name}", 2 * width, position, end)
    if wide:
        size, count = _u32(buffer, position)[0], _u32(buffer, position + 4)[0]
    else:
        size, count = buffer[position], buffer[position + 1]
    after = position + width + size
    if after < start:
        raise unexpected(f"a size of at least {width} for {name}", str(size), position)
    if after > end:
        raise truncated(name, size, position + width, end)
    return count, start, after


def check_depth(depth: int, offset: int) -> None:
    if depth >= limits.NESTING_DEPTH_MAX:
        raise unexpected(f"at most {limits.NESTING_DEPTH_MAX} values inside one another", "more", offset)


def check_count(name: str, count: int, start: int, after: int) -> None:
    # Each item takes an octet at least.
    if count > after - start:
        raise unexpected(f"a count of at most {after - start}, the octets of {name}", str(count), start)


def check_filled(name: str, position: int, after: int) -> None:
    if position != after:
        left = f"{after - position} octets left over"
        raise unexpected(f"the items of {name} to fill its size", left, position)


def _list(wide: bool) -> Reader:
    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        check_depth(depth, position)
        count, start, after = open_compound("list", wide, buffer, position, end)
        check_count("list", count, start, after)
        items = []
        position = start
        for _ in range(count):
            item, position = read_value(buffer, position, after, depth + 1)
            items.append(item)
        check_filled("list", position, after)
        return items, after

    return read


def mapping(
    wide: bool, key_readers: Sequence[Reader] | None, value_readers: Sequence[Reader] | None
) -> Reader:
    """Reader of a map; tables of readers restrict the constructors of keys and values."""

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        check_depth(depth, position)
        count, start, after = open_compound("map", wide, buffer, position, end)
        check_count("map", count, start, after)
        if count % 2:
            raise unexpected("an even count of items in a map", str(count), start)
        keys = READERS if key_readers is None else key_readers
        values = READERS if value_readers is None else value_readers
        items: dict[Any, Any] = {}
        position = start
        for _ in range(count // 2):
            key_at = position
            if position >= after:
                raise truncated("a key of a map", 1, position, after)
            key, position = keys[buffer[position]](buffer, position + 1, after, depth + 1)
            if position >= after:
                raise truncated("a value of a map", 1, position, after)
            value, position = values[buffer[position]](buffer, position + 1, after, depth + 1)
            try:
                if key in items:
                    raise unexpected("distinct keys in a map", "the same key twice", key_at)
                items[key] = value
            except TypeError:
                raise unexpected("a scalar key of a map", type(key).__name__, key_at) from None
        check_filled("map", position, after)
        return items, after

    return read


def _array(wide: bool) -> Reader:
    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        check_depth(depth, position)
        count, position, after = open_compound("array", wide, buffer, position, end)
        if position >= after:
            raise truncated("the constructor of an array", 1, position, after)
        code = buffer[position]
        descriptor = None
        if code == 0:
            descriptor, position = read_value(buffer, position + 1, after, depth + 1)
            if position >= after:
                raise truncated("the constructor of a described array", 1, position, after)
            code = buffer[position]
            if code == 0:
                expected = "a primitive constructor in a described array"
                raise unexpected(expected, "a second descriptor", position)
        position += 1
        # Before any element: a count of four octets could ask for billions of them.
        room = ZERO_WIDTH_COUNT_MAX if code >> 4 == 4 else after - position
        if count > room:
            raise unexpected(f"a count of at most {room} in an array", str(count), position)
        reader = READERS[code]
        if reader is refuse:
            raise unexpected("a constructor of AMQP 1.0", f"{code:#04x}", position - 1)
        items = Array((), code, descriptor)
        for _ in range(count):
            item, position = reader(buffer, position, after, depth + 1)
            items.append(item)
        check_filled("array", position, after)
        return items, after

    return read


def _read_described(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    check_depth(depth, position)
    descriptor, position = read_value(buffer, position, end, depth + 1)
    value, position = read_value(buffer, position, end, depth + 1)
    return Described(descriptor, value), position


# --- the table ------------------------------------------------------------------------------------------

_DEFINED: Final[dict[int, tuple[str, Reader]]] = {
    0x00: ("described", _read_described),
    0x40: ("null", constant(None)),
    0x41: ("true", constant(True)),
    0x42: ("false", constant(False)),
    0x43: ("uint0", constant(UInt(0))),
    0x44: ("ulong0", constant(ULong(0))),
    0x45: ("list0", lambda buffer, position, end, depth: ([], position)),
    0x50: ("ubyte", small("ubyte", [UByte(i) for i in range(256)])),
    0x51: ("byte", small("byte", [Byte(_signed(i)) for i in range(256)])),
    0x52: ("smalluint", small("uint", [UInt(i) for i in range(256)])),
    0x53: ("smallulong", small("ulong", [ULong(i) for i in range(256)])),
    0x54: ("smallint", small("int", [Int(_signed(i)) for i in range(256)])),
    0x55: ("smalllong", small("long", [Long(_signed(i)) for i in range(256)])),
    0x56: ("boolean", _read_boolean),
    0x60: ("ushort", fixed("ushort", "H", UShort)),
    0x61: ("short", fixed("short", "h", Short)),
    0x70: ("uint", fixed("uint", "I", UInt)),
    0x71: ("int", fixed("int", "i", Int)),
    0x72: ("float", fixed("float", "f", Float)),
    0x73: ("char", _read_char),
    0x74: ("decimal32", _opaque("decimal32", 4, Decimal32)),
    0x80: ("ulong", fixed("ulong", "Q", ULong)),
    0x81: ("long", fixed("long", "q", Long)),
    0x82: ("double", fixed("double", "d", None)),
    0x83: ("timestamp", fixed("timestamp", "q", Timestamp)),
    0x84: ("decimal64", _opaque("decimal64", 8, Decimal64)),
    0x94: ("decimal128", _opaque("decimal128", 16, Decimal128)),
    0x98: ("uuid", _opaque("uuid", 16, lambda octets: uuid.UUID(bytes=octets))),
    0xA0: ("vbin8", _variable("binary", False, lambda octets, offset: bytes(octets))),
    0xA1: ("str8", _variable("string", False, _make_string)),
    0xA3: ("sym8", _variable("symbol", False, _make_symbol)),
    0xB0: ("vbin32", _variable("binary", True, lambda octets, offset: bytes(octets))),
    0xB1: ("str32", _variable("string", True, _make_string)),
    0xB3: ("sym32", _variable("symbol", True, _make_symbol)),
    0xC0: ("list8", _list(False)),
    0xC1: ("map8", mapping(False, None, None)),
    0xD0: ("list32", _list(True)),
    0xD1: ("map32", mapping(True, None, None)),
    0xE0: ("array8", _array(False)),
    0xF0: ("array32", _array(True)),
}

NAMES: Final[dict[int, str]] = {code: name for code, (name, _) in _DEFINED.items()}
READERS: Final[list[Reader]] = [_DEFINED[code][1] if code in _DEFINED else refuse for code in range(256)]

# --- skipping -------------------------------------------------------------------------------------------

_FIXED_WIDTHS: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


def skip(buffer: Buffer, position: int, end: int) -> int:
    """The position after the value at `position`, by sizes alone: nothing inside is decoded."""
    descriptors = 0
    values = 1
    while values:
        if position >= end:
            raise truncated("a value", 1, position, end)
        code = buffer[position]
        position += 1
        if code == 0:
            # The descriptor and the described value follow; each of them may be described again.
            descriptors += 1
            check_depth(descriptors - 1, position)
            values += 1
            continue
        if code not in NAMES:
            raise unexpected("a constructor of AMQP 1.0", f"{code:#04x}", position - 1)
        group = code >> 4
        if group <= 9:
            after = position + _FIXED_WIDTHS[group]
        elif group & 1:
            if position + 4 > end:
                raise truncated("a size", 4, position, end)
            after = position + 4 + _u32(buffer, position)[0]
        else:
            if position >= end:
                raise truncated("a size", 1, position, end)
            after = position + 1 + buffer[position]
        if after > end:
            raise truncated(NAMES[code], after - position, position, end)
        position = after
        values -= 1
    return position
