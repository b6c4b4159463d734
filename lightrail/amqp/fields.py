"""Types of the fields of composites: allowed constructors, readers and writers.

Each type has its own table of 256 readers, so that checking the type costs nothing: the reader of a
constructor that is not allowed raises DecodeError. null is allowed; composite.py checks mandatory fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightrail.amqp.decoder import (
    NAMES,
    READERS,
    Buffer,
    Reader,
    constant,
    constructor_name,
    fixed,
    mapping,
    small,
)
from lightrail.amqp.encoder import (
    NULL,
    Writer,
    write_binary,
    write_boolean,
    write_map_data,
    write_string,
    write_symbol,
    write_symbols,
    write_uint,
    write_ulong,
    write_value,
)
from lightrail.amqp.values import Symbol, unexpected

DELIVERY_TAG_BYTES_MAX: Final = 32
"""Transport 2.8.7; a transaction-id has the same bound (transactions 4.5.4)."""


class FieldType:
    """Name as in the specification, table of readers by constructor, writer of values that are not None."""

    __slots__ = ("name", "readers", "write")

    def __init__(self, name: str, readers: Mapping[int, Reader], write: Writer) -> None:
        self.name = name
        self.readers: list[Reader] = [_refusing(name)] * 256
        self.write = write
        self.readers[0x40] = READERS[0x40]
        for code, reader in readers.items():
            self.readers[code] = reader


def _refusing(name: str) -> Reader:
    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        raise unexpected(name, constructor_name(buffer[position - 1]), position - 1)

    return read


def _checked(reader: Reader, expected: str, is_valid: Any) -> Reader:
    """A reader that checks the value of another one; `expected` describes valid values."""

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        value, after = reader(buffer, position, end, depth)
        if not is_valid(value):
            raise unexpected(expected, repr(value)[:80], position)
        return value, after

    return read


def _choice(name: str, base: "FieldType", codes: Sequence[int], choices: Sequence[Any]) -> FieldType:
    expected = f"{name} ({', '.join(map(str, choices))})"
    allowed = frozenset(choices)
    readers = {code: _checked(base.readers[code], expected, allowed.__contains__) for code in codes}
    return FieldType(name, readers, base.write)


def _readers(*codes: int) -> dict[int, Reader]:
    return {code: READERS[code] for code in codes}


def _read_string_as_symbol(code: int) -> Reader:
    reader = _checked(READERS[code], "ASCII where a symbol stands", str.isascii)

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        text, after = reader(buffer, position, end, depth)
        return Symbol(text), after

    return read


# Several clients send string where the specification says symbol (qpid-proton's own bindings let them);
# the meaning is plain, so strings of ASCII are read as symbols (ADR 51).
_STRINGS_AS_SYMBOLS: Final = {code: _read_string_as_symbol(code) for code in (0xA1, 0xB1)}


# --- scalars: integers come as plain int, their width is known from the field ---------------------------

_OCTETS: Final = range(256)

BOOLEAN: Final = FieldType("boolean", _readers(0x41, 0x42, 0x56), write_boolean)
UBYTE: Final = FieldType("ubyte", {0x50: small("ubyte", _OCTETS)}, lambda value: b"\x50" + value.to_bytes(1))
USHORT: Final = FieldType(
    "ushort", {0x60: fixed("ushort", "H", None)}, lambda value: b"\x60" + value.to_bytes(2)
)
UINT: Final = FieldType(
    "uint",
    {0x43: constant(0), 0x52: small("uint", _OCTETS), 0x70: fixed("uint", "I", None)},
    write_uint,
)
ULONG: Final = FieldType(
    "ulong",
    {0x44: constant(0), 0x53: small("ulong", _OCTETS), 0x80: fixed("ulong", "Q", None)},
    write_ulong,
)
TIMESTAMP: Final = FieldType(
    "timestamp", {0x83: fixed("timestamp", "q", None)}, lambda value: b"\x83" + value.to_bytes(8, signed=True)
)
STRING: Final = FieldType("string", _readers(0xA1, 0xB1), write_string)
SYMBOL: Final = FieldType("symbol", _readers(0xA3, 0xB3), write_symbol)
"""Of messages, which receivers get as they are."""
READ_SYMBOL: Final = FieldType("symbol", {**_readers(0xA3, 0xB3), **_STRINGS_AS_SYMBOLS}, write_symbol)
"""Of performatives, which are read here and nowhere else."""
BINARY: Final = FieldType("binary", _readers(0xA0, 0xB0), write_binary)
ANY: Final = FieldType("*", {code: READERS[code] for code in NAMES}, write_value)

# --- restricted scalars ---------------------------------------------------------------------------------

SENDER_SETTLE_MODE: Final = _choice("sender-settle-mode", UBYTE, (0x50,), (0, 1, 2))
RECEIVER_SETTLE_MODE: Final = _choice("receiver-settle-mode", UBYTE, (0x50,), (0, 1))
SASL_CODE: Final = _choice("sasl-code", UBYTE, (0x50,), (0, 1, 2, 3, 4))
TERMINUS_DURABILITY: Final = _choice("terminus-durability", UINT, (0x43, 0x52, 0x70), (0, 1, 2))
TERMINUS_EXPIRY_POLICY: Final = _choice(
    "terminus-expiry-policy",
    READ_SYMBOL,
    (0xA3, 0xB3, 0xA1, 0xB1),
    ("link-detach", "session-end", "connection-close", "never"),
)


def _short_binary(code: int, name: str) -> Reader:
    return _checked(
        READERS[code],
        f"at most {DELIVERY_TAG_BYTES_MAX} octets of {name}",
        lambda value: len(value) <= DELIVERY_TAG_BYTES_MAX,
    )


DELIVERY_TAG: Final = FieldType(
    "delivery-tag", {code: _short_binary(code, "delivery-tag") for code in (0xA0, 0xB0)}, write_binary
)


def _write_address(value: Any) -> bytes:
    return write_string(value) if isinstance(value, str) else write_value(value)


def _write_message_id(value: Any) -> bytes:
    return write_ulong(value) if isinstance(value, int) else write_value(value)


# Archetypes of which the specification defines primitive members alone; other members may be described types.
ADDRESS: Final = FieldType("*:address", _readers(0x00, 0xA1, 0xB1), _write_address)
MESSAGE_ID: Final = FieldType(
    "*:message-id", _readers(0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0, 0xA1, 0xB1), _write_message_id
)
TRANSACTION_ID: Final = FieldType(
    "*:txn-id",
    {0x00: READERS[0x00], **{code: _short_binary(code, "txn-id") for code in (0xA0, 0xB0)}},
    write_value,
)

# --- symbols, one or many -------------------------------------------------------------------------------


def _read_one_symbol(code: int) -> Reader:
    reader = READ_SYMBOL.readers[code]

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        symbol, after = reader(buffer, position, end, depth)
        return [symbol], after

    return read


def _read_many_symbols(wide: int) -> Reader:
    reader = READERS[wide]

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        array, after = reader(buffer, position, end, depth)
        if not array:
            return None, after
        is_text = array.code in (0xA1, 0xB1) and all(map(str.isascii, array))
        if not (is_text or array.code in (0xA3, 0xB3)) or array.descriptor is not None:
            raise unexpected("an array of symbols", f"one of {constructor_name(array.code)}", position)
        return list(map(Symbol, array)) if is_text else list(array), after

    return read


def _write_symbols(value: Any) -> bytes:
    if isinstance(value, str):
        return write_symbol(value)
    return write_symbols(value) if value else NULL


SYMBOLS: Final = FieldType(
    "symbol multiple",
    {
        **{code: _read_one_symbol(code) for code in (0xA3, 0xB3, 0xA1, 0xB1)},
        0xE0: _read_many_symbols(0xE0),
        0xF0: _read_many_symbols(0xF0),
    },
    _write_symbols,
)
"""list of Symbol; null and an empty array are the same, decoded as None (types 1.4). A single symbol may be
encoded from a str."""

# --- maps -----------------------------------------------------------------------------------------------


def map_type(name: str, keys: FieldType, values: FieldType) -> FieldType:
    """A map whose keys and values are of the given types."""
    write_key, write_item = keys.write, values.write

    def write(value: Mapping[Any, Any]) -> bytes:
        pairs = b"".join(
            write_key(key) + (NULL if item is None else write_item(item)) for key, item in value.items()
        )
        return write_map_data(2 * len(value), pairs)

    readers = {
        0xC1: mapping(False, keys.readers, values.readers),
        0xD1: mapping(True, keys.readers, values.readers),
    }
    return FieldType(name, readers, write)


def key_type(name: str, readers: Mapping[int, Reader], write: Writer) -> FieldType:
    """A type for keys: as any other, and never null."""
    made = FieldType(name, readers, write)
    made.readers[0x40] = _refusing(name)
    return made


SYMBOL_KEY: Final = key_type("symbol key", {**_readers(0xA3, 0xB3), **_STRINGS_AS_SYMBOLS}, write_symbol)
DELIVERY_TAG_KEY: Final = key_type(
    "delivery-tag key",
    {code: _short_binary(code, "delivery-tag") for code in (0xA0, 0xB0)},
    write_binary,
)

FIELDS: Final = map_type("fields", SYMBOL_KEY, ANY)
FILTER_SET: Final = map_type("filter-set", SYMBOL_KEY, ANY)
