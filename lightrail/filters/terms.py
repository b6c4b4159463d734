"""Terms: the form of AMQP values in which filters compare them; values, the form in which rules do.

Rules of Azure Service Bus compute with more kinds of values:

    AMQP                                     value of a rule
    string, symbol, char, binary of UTF-8    str
    integers                                 int of 64 bits
    float, double                            float
    boolean                                  bool
    decimal32, decimal64, decimal128         Decimal
    uuid                                     UUID
    timestamp, com.microsoft:datetime-offset Timestamp
    com.microsoft:timespan                   Duration
    com.microsoft:uri                        str
    anything else                            OPAQUE: it exists, and is equal to nothing
    null, and a property that is not there   None: unknown
"""

import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from lightrail.amqp.values import (
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


class Opaque:
    """A present value that can't be compared: a decimal, list, map or described value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE: Final = Opaque()


def _text_of(octets: bytes) -> str | bytes:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets


_TERM_OF: Final[dict[type, Callable[[Any], Any]]] = {
    Symbol: str,
    Char: str,
    uuid.UUID: str,
    bytes: _text_of,
    Float: float,
    **dict.fromkeys((Byte, Short, Int, Long, UByte, UShort, UInt, ULong, Timestamp), int),
}
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))


def term(value: Any) -> Any:
    """The form of a value that filters compare: None, bool, int, float or str; bytes that are not UTF-8;
    otherwise OPAQUE.

    Symbols and characters are text, a uuid is its 36 characters, binary is decoded as UTF-8, a timestamp is
    its milliseconds.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    convert = _TERM_OF.get(kind)
    return OPAQUE if convert is None else convert(value)


# --- values of rules ----------------------------------------------------------------------------------

TIMESPAN: Final = Symbol("com.microsoft:timespan")
DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
URI: Final = "com.microsoft:uri"
"""Descriptors of Microsoft's AMQP library for types of .NET that AMQP has not."""
TICKS_OF_MS: Final = 10_000
"""Ticks of 100 ns, in which .NET counts, in a millisecond."""
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""Ticks from the year 1 to 1970."""


class Duration(int):
    """A duration in ticks of 100 ns: a TimeSpan of .NET."""

    __slots__ = ()


_KEPT: Final = frozenset((uuid.UUID, Timestamp, Decimal, Duration))


def value_of(found: Any) -> Any:
    """The value of a decoded AMQP value."""
    kind = type(found)
    if kind in _PLAIN or kind in _KEPT:
        return found
    if kind is Described:
        return _described(found)
    layout = _LAYOUTS.get(kind)
    return term(found) if layout is None else _decimal(found, *layout)


def key_of(found: Any) -> Any:
    """The form of a value in the tables of a matcher: equal forms are equal values for constants in them."""
    value = value_of(found)
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Decimal:
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if kind is uuid.UUID else (kind.__name__, value)


def _described(found: Described) -> Any:
    name, value = str(found.descriptor), term(found.value)
    if name == URI and type(value) is str:
        return value
    if type(value) is int:
        if name == TIMESPAN:
            return Duration(value)
        if name == DATETIME_OFFSET:
            return Timestamp((value - EPOCH_TICKS) // TICKS_OF_MS)
    return OPAQUE


_LAYOUTS: Final[dict[type, tuple[int, int]]] = {
    Decimal32: (8, 101),
    Decimal64: (10, 398),
    Decimal128: (14, 6176),
}
"""Bits of the exponent, and its bias (IEEE 754, binary integer decimals)."""
_DOTNET: Final = 0x0C
"""The first octet of every decimal128 of Microsoft's AMQP library, which puts the exponent two bits too low.
By the letter such a number would be smaller than 10 to the power of -4,000."""


def _decimal(octets: bytes, bits: int, bias: int) -> Any:
    width = 8 * len(octets)
    number = int.from_bytes(octets)
    if octets[0] & 0x60 == 0x60:
        return OPAQUE
    rest = width - 1 - bits
    exponent = number >> rest & (1 << bits) - 1
    if bits == 14 and octets[0] & 0x7F == _DOTNET:
        exponent = _DOTNET << 9 | octets[1] >> 1
    sign = number >> width - 1
    digits = Decimal(number & (1 << rest) - 1)
    if exponent - bias < -6200 or digits.adjusted() > 40:
        return OPAQUE
    found = digits.scaleb(exponent - bias)
    return -found if sign else found
