"""Hypothesis strategies for AMQP values and composites, and an equality that tells the types apart."""

import struct
from typing import Any

from hypothesis import strategies as st

from lightrail.amqp.composite import SHAPE_OF, Shape
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


def _integers(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [edge for edge in (low, high, 0, 1, 127, 128, 255, 256, -128, -129) if low <= edge <= high]
    return (st.integers(low, high) | st.sampled_from(edges)).map(kind)


def _octets(kind: type, width: int) -> st.SearchStrategy[Any]:
    return st.binary(min_size=width, max_size=width).map(kind)


characters = st.characters(exclude_categories=["Cs"])
text = st.text(characters, max_size=20) | st.text(characters, min_size=250, max_size=300)
ascii_text = st.text(st.characters(max_codepoint=127), max_size=20)
symbols = ascii_text.map(Symbol)
binary = st.binary(max_size=20) | st.binary(min_size=250, max_size=300)

BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "ubyte": _integers(UByte, 8, False),
    "ushort": _integers(UShort, 16, False),
    "uint": _integers(UInt, 32, False),
    "ulong": _integers(ULong, 64, False),
    "byte": _integers(Byte, 8, True),
    "short": _integers(Short, 16, True),
    "int": _integers(Int, 32, True),
    "long": _integers(Long, 64, True),
    "timestamp": _integers(Timestamp, 64, True),
    "float": st.floats(width=32).map(Float),
    "double": st.floats(),
    "decimal32": _octets(Decimal32, 4),
    "decimal64": _octets(Decimal64, 8),
    "decimal128": _octets(Decimal128, 16),
    "char": characters.map(Char),
    "uuid": st.uuids(),
    "binary": binary,
    "string": text,
    "symbol": symbols,
}
scalars = st.one_of(*BY_TYPE.values())
keys = scalars.filter(lambda value: value == value)
"""Scalars that are equal to themselves: a NaN is not."""

ARRAY_CODES: dict[int, tuple[str, st.SearchStrategy[Any]]] = {
    0x40: ("null", st.none()),
    0x41: ("boolean", st.just(True)),
    0x42: ("boolean", st.just(False)),
    0x43: ("uint", st.just(UInt(0))),
    0x44: ("ulong", st.just(ULong(0))),
    0x50: ("ubyte", BY_TYPE["ubyte"]),
    0x51: ("byte", BY_TYPE["byte"]),
    0x52: ("uint", st.integers(0, 255).map(UInt)),
    0x53: ("ulong", st.integers(0, 255).map(ULong)),
    0x54: ("int", st.integers(-128, 127).map(Int)),
    0x55: ("long", st.integers(-128, 127).map(Long)),
    0x56: ("boolean", st.booleans()),
    0x60: ("ushort", BY_TYPE["ushort"]),
    0x61: ("short", BY_TYPE["short"]),
    0x70: ("uint", BY_TYPE["uint"]),
    0x71: ("int", BY_TYPE["int"]),
    0x72: ("float", BY_TYPE["float"]),
    0x73: ("char", BY_TYPE["char"]),
    0x74: ("decimal32", BY_TYPE["decimal32"]),
    0x80: ("ulong", BY_TYPE["ulong"]),
    0x81: ("long", BY_TYPE["long"]),
    0x82: ("double", BY_TYPE["double"]),
    0x83: ("timestamp", BY_TYPE["timestamp"]),
    0x84: ("decimal64", BY_TYPE["decimal64"]),
    0x94: ("decimal128", BY_TYPE["decimal128"]),
    0x98: ("uuid", BY_TYPE["uuid"]),
    0xA0: ("binary", st.binary(max_size=255)),
    0xA1: ("string", st.text(characters, max_size=60)),
    0xA3: ("symbol", symbols),
    0xB0: ("binary", binary),
    0xB1: ("string", text),
    0xB3: ("symbol", symbols),
}


@st.composite
def scalar_arrays(draw: st.DrawFn) -> Array:
    code = draw(st.sampled_from(sorted(ARRAY_CODES)))
    items = draw(st.lists(ARRAY_CODES[code][1], max_size=5))
    return Array(items, code, draw(st.none() | symbols))


@st.composite
def _compound_arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Array:
    kinds = {
        0x45: st.just([]),
        0xD0: st.lists(inner, max_size=3),
        0xD1: st.dictionaries(keys, inner, max_size=3),
        0xF0: scalar_arrays(),
    }
    code = draw(st.sampled_from(sorted(kinds)))
    return Array(draw(st.lists(kinds[code], max_size=3)), code, draw(st.none() | symbols))


def _extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Described, BY_TYPE["ulong"] | symbols, inner),
        scalar_arrays(),
        _compound_arrays(inner),
    )


values = st.recursive(scalars, _extend, max_leaves=12)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in AMQP type, through and through; a NaN is the same as a NaN of the same bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    if isinstance(left, Array) and (left.code != right.code or not same(left.descriptor, right.descriptor)):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    return bool(left == right)


# --- composites ---------------------------------------------------------------------------------------


def _extend_plainly(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Without NaN, so that composites can be compared with ==."""
    return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)


_maps = st.dictionaries(symbols, st.recursive(keys, _extend_plainly, max_leaves=3), max_size=3)
_uints = BY_TYPE["uint"].map(int)
_short_binary = st.binary(max_size=32)
_unknown = st.builds(Described, st.just(Symbol("x:unknown")), BY_TYPE["uint"])


def _providing(archetype: str) -> st.SearchStrategy[Any]:
    shapes = [shape for shape in SHAPE_OF.values() if archetype in shape.provides]
    known = st.sampled_from(sorted(shapes, key=lambda shape: shape.code)).flatmap(composites)
    return known if archetype == "error" else known | _unknown


FIELD_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "ubyte": st.integers(0, 255),
    "ushort": BY_TYPE["ushort"].map(int),
    "uint": _uints,
    "ulong": BY_TYPE["ulong"].map(int),
    "timestamp": BY_TYPE["timestamp"].map(int),
    "string": text,
    "symbol": symbols,
    "binary": binary,
    "*": keys,
    "sender-settle-mode": st.integers(0, 2),
    "receiver-settle-mode": st.integers(0, 1),
    "sasl-code": st.integers(0, 4),
    "terminus-durability": st.integers(0, 2),
    "terminus-expiry-policy": st.sampled_from(
        [Symbol(name) for name in ("link-detach", "session-end", "connection-close", "never")]
    ),
    "delivery-tag": _short_binary,
    "*:address": text | _unknown,
    "*:message-id": BY_TYPE["ulong"] | st.uuids() | binary | text,
    "*:txn-id": _short_binary,
    "symbol multiple": st.lists(symbols, min_size=1, max_size=3),
    "fields": _maps,
    "filter-set": _maps,
    "node-properties": st.dictionaries(
        symbols,
        keys | st.deferred(lambda: _providing("lifetime-policy")),
        max_size=3,
    ),
    "map": st.dictionaries(
        _short_binary, st.none() | st.deferred(lambda: _providing("delivery-state")), max_size=3
    ),
    "error": st.deferred(lambda: _providing("error")),
    "*:source": st.deferred(lambda: _providing("source")),
    "*:target": st.deferred(lambda: _providing("target")),
    "*:delivery-state": st.deferred(lambda: _providing("delivery-state")),
    "*:outcome": st.deferred(lambda: _providing("outcome")),
}


def composites(shape: Shape) -> st.SearchStrategy[Any]:
    """Composites of one type, any optional field of which may be None."""
    fields = {
        name.replace("-", "_"): FIELD_VALUES[declaration.type.name]
        if declaration.mandatory
        else st.none() | FIELD_VALUES[declaration.type.name]
        for name, declaration in zip(shape.names, shape.declarations, strict=True)
    }
    return st.builds(shape.cls, **fields)


def filled(composite: Any) -> Any:
    """The composite as decoding gives it: with the defaults of the specification for what is None."""
    shape = SHAPE_OF.get(type(composite))
    if shape is None:
        return composite
    made = [
        declaration.default if value is None else _filled_value(value)
        for value, declaration in zip(shape.get(composite), shape.declarations, strict=True)
    ]
    return shape.cls(*made)


def _filled_value(value: Any) -> Any:
    if type(value) is dict:
        return {key: filled(item) for key, item in value.items()}
    return filled(value)
