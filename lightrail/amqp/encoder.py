"""Values to bytes: the smallest encoding of each, chosen by the value's class (types 1.6).

A value that is out of range, not ASCII, or of no AMQP type raises ValueError.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
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
)

Writer = Callable[[Any], bytes]

NULL: Final = b"\x40"
_u32: Final = Struct(">I").pack
_code_u32: Final = Struct(">BI").pack
_code_u64: Final = Struct(">BQ").pack


def encode(value: Any) -> bytes:
    """The smallest encoding of a value; raises ValueError when it has none.

    Plain int is a long, float a double, str a string, bytes binary, dict a map, list and tuple a list; the
    classes of values.py are the types they are named for.
    """
    try:
        return write_value(value)
    except (StructError, OverflowError) as error:
        raise ValueError(f"expected a value within the range of its AMQP type: {error}") from None


def write_value(value: Any) -> bytes:
    writer = WRITERS.get(type(value))
    if writer is None:
        writer = _writer_of_base(value)
    return writer(value)


def _writer_of_base(value: Any) -> Writer:
    for base in type(value).__mro__[1:]:
        if base in WRITERS:
            return WRITERS[base]
    raise ValueError(f"expected a value of an AMQP type, found {type(value).__name__}")


# --- numbers --------------------------------------------------------------------------------------------

_SMALL_UINTS: Final = [b"\x43", *(bytes((0x52, octet)) for octet in range(1, 256))]
_SMALL_ULONGS: Final = [b"\x44", *(bytes((0x53, octet)) for octet in range(1, 256))]


def write_uint(value: int) -> bytes:
    return _SMALL_UINTS[value] if 0 <= value < 256 else _code_u32(0x70, value)


def write_ulong(value: int) -> bytes:
    return _SMALL_ULONGS[value] if 0 <= value < 256 else _code_u64(0x80, value)


def _fixed(code: int, form: str) -> Writer:
    pack = Struct(">B" + form).pack
    return lambda value: pack(code, value)


def _small_or(small: int, code: int, form: str) -> Writer:
    pack = Struct(">B" + form).pack
    return lambda value: bytes((small, value & 0xFF)) if -128 <= value < 128 else pack(code, value)


def write_boolean(value: Any) -> bytes:
    return b"\x41" if value else b"\x42"


# --- octets ---------------------------------------------------------------------------------------------


def _sized(code8: int, code32: int, data: bytes) -> bytes:
    size = len(data)
    return bytes((code8, size)) + data if size < 256 else _code_u32(code32, size) + data


def write_binary(value: bytes | bytearray | memoryview) -> bytes:
    return _sized(0xA0, 0xB0, bytes(value))


def write_string(value: str) -> bytes:
    return _sized(0xA1, 0xB1, value.encode())


def write_symbol(value: str) -> bytes:
    return _sized(0xA3, 0xB3, value.encode("ascii"))


def _char_octets(value: str) -> bytes:
    if len(value) != 1:
        raise ValueError(f"expected one character, found {len(value)}")
    return value.encode("utf-32-be")


def _opaque(name: str, width: int) -> Writer:
    def octets(value: bytes) -> bytes:
        if len(value) != width:
            raise ValueError(f"expected {width} octets of {name}, found {len(value)}")
        return bytes(value)

    return octets


_decimal32: Final = _opaque("decimal32", 4)
_decimal64: Final = _opaque("decimal64", 8)
_decimal128: Final = _opaque("decimal128", 16)

# --- compounds ------------------------------------------------------------------------------------------


def _compound(code8: int, code32: int, count: int, data: bytes) -> bytes:
    """Size and count before the items; the size covers the count (types 1.6.22)."""
    size = len(data)
    if size < 255 and count < 256:
        return bytes((code8, size + 1, count)) + data
    return _code_u32(code32, size + 4) + _u32(count) + data


def write_items(count: int, items: Iterable[bytes]) -> bytes:
    """A list of items that are encoded already."""
    return _compound(0xC0, 0xD0, count, b"".join(items)) if count else b"\x45"


def write_list(value: Sequence[Any]) -> bytes:
    return write_items(len(value), map(write_value, value))


def map_data(value: Mapping[Any, Any]) -> bytes:
    return b"".join(write_value(item) for pair in value.items() for item in pair)


def write_map_data(count: int, data: bytes) -> bytes:
    """A map of `count` items (two for each pair) that are encoded already."""
    return _compound(0xC1, 0xD1, count, data)


def write_map(value: Mapping[Any, Any]) -> bytes:
    return _compound(0xC1, 0xD1, 2 * len(value), map_data(value))


def write_described(value: Described) -> bytes:
    return b"\x00" + write_value(value.descriptor) + write_value(value.value)


def _array_data(value: Array) -> bytes:
    element = ELEMENTS.get(value.code)
    if element is None:
        raise ValueError(f"expected the format code of an AMQP type for an array, found {value.code:#x}")
    descriptor = b"" if value.descriptor is None else b"\x00" + write_value(value.descriptor)
    return b"".join((descriptor, bytes((value.code,)), *map(element, value)))


def write_array(value: Array) -> bytes:
    return _compound(0xE0, 0xF0, len(value), _array_data(value))


def write_symbols(values: Sequence[str]) -> bytes:
    """An array of symbols, of sym8 where they all fit."""
    code = 0xA3 if all(len(value) < 256 for value in values) else 0xB3
    return write_array(Array(values, code))


WRITERS: Final[dict[type, Writer]] = {
    type(None): lambda value: NULL,
    bool: write_boolean,
    UByte: _fixed(0x50, "B"),
    UShort: _fixed(0x60, "H"),
    UInt: write_uint,
    ULong: write_ulong,
    Byte: _fixed(0x51, "b"),
    Short: _fixed(0x61, "h"),
    Int: _small_or(0x54, 0x71, "i"),
    Long: _small_or(0x55, 0x81, "q"),
    int: _small_or(0x55, 0x81, "q"),
    Float: _fixed(0x72, "f"),
    float: _fixed(0x82, "d"),
    Decimal32: lambda value: b"\x74" + _decimal32(value),
    Decimal64: lambda value: b"\x84" + _decimal64(value),
    Decimal128: lambda value: b"\x94" + _decimal128(value),
    Char: lambda value: b"\x73" + _char_octets(value),
    Timestamp: _fixed(0x83, "q"),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    bytes: write_binary,
    bytearray: write_binary,
    memoryview: write_binary,
    str: write_string,
    Symbol: write_symbol,
    list: write_list,
    tuple: write_list,
    dict: write_map,
    Array: write_array,
    Described: write_described,
}
"""By class; composite.py adds composites."""

# --- elements of arrays: the data alone, in exactly the encoding of the array's format code -------------


def _constant(expected: Any) -> Writer:
    def write(value: Any) -> bytes:
        if value != expected:
            raise ValueError(f"expected {expected!r} in an array of nothing else, found {value!r}")
        return b""

    return write


def _data8(octets: Writer) -> Writer:
    def write(value: Any) -> bytes:
        data = octets(value)
        if len(data) > 255:
            raise ValueError(f"expected at most 255 octets in an array of short elements, found {len(data)}")
        return bytes((len(data),)) + data

    return write


def _data32(octets: Writer) -> Writer:
    def write(value: Any) -> bytes:
        data = octets(value)
        return _u32(len(data)) + data

    return write


def _utf8(value: str) -> bytes:
    return value.encode()


def _ascii(value: str) -> bytes:
    return value.encode("ascii")


def _counted(form: str, count: Callable[[Any], int], data: Writer) -> Writer:
    """Compound data with size and count of one octet (form B) or four (form I)."""
    pack = Struct(">" + 2 * form).pack
    width = Struct(form).size

    def write(value: Any) -> bytes:
        items = data(value)
        return pack(len(items) + width, count(value)) + items

    return write


def _pairs(value: Mapping[Any, Any]) -> int:
    return 2 * len(value)


def _list_data(value: Sequence[Any]) -> bytes:
    return b"".join(map(write_value, value))


ELEMENTS: Final[dict[int, Writer]] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(0),
    0x44: _constant(0),
    0x45: _constant([]),
    0x50: Struct(">B").pack,
    0x51: Struct(">b").pack,
    0x52: Struct(">B").pack,
    0x53: Struct(">B").pack,
    0x54: Struct(">b").pack,
    0x55: Struct(">b").pack,
    0x56: lambda value: b"\x01" if value else b"\x00",
    0x60: Struct(">H").pack,
    0x61: Struct(">h").pack,
    0x70: Struct(">I").pack,
    0x71: Struct(">i").pack,
    0x72: Struct(">f").pack,
    0x73: _char_octets,
    0x74: _decimal32,
    0x80: Struct(">Q").pack,
    0x81: Struct(">q").pack,
    0x82: Struct(">d").pack,
    0x83: Struct(">q").pack,
    0x84: _decimal64,
    0x94: _decimal128,
    0x98: lambda value: value.bytes,
    0xA0: _data8(bytes),
    0xA1: _data8(_utf8),
    0xA3: _data8(_ascii),
    0xB0: _data32(bytes),
    0xB1: _data32(_utf8),
    0xB3: _data32(_ascii),
    0xC0: _counted("B", len, _list_data),
    0xC1: _counted("B", _pairs, map_data),
    0xD0: _counted("I", len, _list_data),
    0xD1: _counted("I", _pairs, map_data),
    0xE0: _counted("B", len, _array_data),
    0xF0: _counted("I", len, _array_data),
}
