"""Values of AMQP types that Python has no type for, and the error for malformed bytes.

The others map to themselves: null None, boolean bool, double float, binary bytes, string str, uuid
uuid.UUID, list list, map dict (types 1.6).
"""

from dataclasses import dataclass
from typing import Any, Final

from lightrail.model import conditions


class DecodeError(Exception):
    """The peer's bytes violate the specification; the message names expected, found and offset."""

    condition: Final = conditions.DECODE_ERROR


def unexpected(expected: str, found: str, offset: int) -> DecodeError:
    return DecodeError(f"expected {expected}, found {found}, at offset {offset}")


def truncated(what: str, needed: int, offset: int, end: int) -> DecodeError:
    return unexpected(f"{needed} more octets of {what}", f"{max(0, end - offset)}", offset)


# Each class extends the Python type of its values, so that they compare equal to plain values and serve as
# such; the class alone decides the encoding.


class Symbol(str):
    """Seven-bit ASCII from a constrained domain (types 1.6.21)."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    """Plain int is encoded as long, too; decoding returns this class."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch, signed (types 1.6.17)."""

    __slots__ = ()


class Float(float):
    """IEEE 754 binary32; plain float is binary64."""

    __slots__ = ()


class Decimal32(bytes):
    """Four octets, kept as received: the broker never computes with decimals."""

    __slots__ = ()


class Decimal64(bytes):
    """Eight octets, kept as received."""

    __slots__ = ()


class Decimal128(bytes):
    """Sixteen octets, kept as received."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with an unknown descriptor (types 1.2)."""

    descriptor: Any
    value: Any


class Array(list[Any]):
    """Values of one constructor, whose format code is `code`, and whose `descriptor` is None without one."""

    __slots__ = ("code", "descriptor")

    def __init__(self, items: Any = (), code: int = 0x40, descriptor: Any = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor

    def __repr__(self) -> str:
        described = "" if self.descriptor is None else f", descriptor={self.descriptor!r}"
        return f"Array({list(self)!r}, code={self.code:#x}{described})"
