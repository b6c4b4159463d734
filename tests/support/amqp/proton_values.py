"""Our AMQP values as python-qpid-proton has them, and proton's reading of encoded values and messages."""

import math
from typing import Any

import cproton
import proton

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
from tests.support.amqp.strategies import ARRAY_CODES, BY_TYPE

TO_PROTON: dict[type, Any] = {
    UByte: proton.ubyte,
    UShort: proton.ushort,
    UInt: proton.uint,
    ULong: proton.ulong,
    Byte: proton.byte,
    Short: proton.short,
    Int: proton.int32,
    Long: int,
    Timestamp: proton.timestamp,
    Float: proton.float32,
    Char: proton.char,
    Symbol: proton.symbol,
    Decimal32: lambda octets: proton.decimal32(int.from_bytes(octets)),
    Decimal64: lambda octets: proton.decimal64(int.from_bytes(octets)),
    Decimal128: proton.decimal128,
}
PROTON_TYPES = {name: getattr(proton.Data, name.upper()) for name in BY_TYPE if name != "boolean"} | {
    "boolean": proton.Data.BOOL
}
TYPE_NAMES = {code: name for name, code in PROTON_TYPES.items()}
FROM_PROTON: dict[str, Any] = {
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "byte": Byte,
    "short": Short,
    "int": Int,
    "long": Long,
    "timestamp": Timestamp,
    "float": Float,
    "char": Char,
    "symbol": Symbol,
    "binary": bytes,
    "decimal32": lambda number: Decimal32(number.to_bytes(4)),
    "decimal64": lambda number: Decimal64(number.to_bytes(8)),
    "decimal128": Decimal128,
}


def to_proton(value: Any) -> Any:
    if isinstance(value, Described):
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    if isinstance(value, Array):
        descriptor: Any = proton.UNDESCRIBED if value.descriptor is None else to_proton(value.descriptor)
        return proton.Array(descriptor, PROTON_TYPES[ARRAY_CODES[value.code][0]], *map(to_proton, value))
    if isinstance(value, list):
        return [to_proton(item) for item in value]
    if isinstance(value, dict):
        return {to_proton(key): to_proton(item) for key, item in value.items()}
    return TO_PROTON.get(type(value), lambda same: same)(value)


def plain(value: Any) -> Any:
    """Without what proton does not keep: which of a type's constructors an array had, and NaN's bits."""
    if isinstance(value, Array):
        return ("array", ARRAY_CODES[value.code][0], plain(value.descriptor), [plain(item) for item in value])
    if isinstance(value, Described):
        return ("described", plain(value.descriptor), plain(value.value))
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return ("map", [(plain(key), plain(item)) for key, item in value.items()])
    if isinstance(value, float) and math.isnan(value):
        return (type(value), "nan")
    return (type(value), value)


def read(data: proton.Data) -> Any:
    """The current value of proton's tree in the form of `plain`.

    Walks the tree: get_object() would put binary into maps as memoryviews, which have no hash, and merge keys
    that differ in their type alone.
    """
    kind = data.type()
    if kind == proton.Data.DESCRIBED:
        descriptor, value = _inside(data)
        return ("described", descriptor, value)
    if kind == proton.Data.ARRAY:
        _, described, items_of = data.get_array()
        items = _inside(data)
        return ("array", TYPE_NAMES[items_of], items.pop(0) if described else plain(None), items)
    if kind == proton.Data.LIST:
        return _inside(data)
    if kind == proton.Data.MAP:
        items = _inside(data)
        return ("map", list(zip(items[::2], items[1::2], strict=True)))
    found = data.get_object()
    return plain(FROM_PROTON.get(TYPE_NAMES[kind], lambda same: same)(found))


def _inside(data: proton.Data) -> list[Any]:
    assert data.enter()
    items = []
    while data.next() is not None:
        items.append(read(data))
    data.exit()
    return items


def read_value(encoded: bytes) -> Any:
    """Proton's reading of one encoded value, in the form of `plain`."""
    data = proton.Data()
    assert data.decode(encoded) == len(encoded)
    data.rewind()
    data.next()
    return read(data)


class ReadMessage:
    """Proton's reading of a message: the sections that it has, in the form of `plain`, and its own encoding.

    The sections are read and encoded below proton.Message, which hands out memoryviews of memory that its
    own encode() writes over. Proton skips the footer, and has no difference between a body of null and none.
    """

    def __init__(self, payload: bytes) -> None:
        self.message = proton.Message()
        self.message._check(cproton.pn_message_decode(self.message._msg, payload))
        body = self._section(cproton.pn_message_body)
        self.body = plain(None) if body is None else body
        self.properties = self._section(cproton.pn_message_properties)
        self.annotations = self._section(cproton.pn_message_annotations)
        self.delivery_annotations = self._section(cproton.pn_message_instructions)

    def _section(self, find: Any) -> Any:
        data = proton.Data(find(self.message._msg))
        data.rewind()
        return read(data) if data.next() is not None else None

    def encode(self, size: int) -> bytes:
        """What proton makes of the sections, in at most `size` bytes."""
        length, encoded = cproton.pn_message_encode(self.message._msg, size)
        self.message._check(length)
        return bytes(encoded)
