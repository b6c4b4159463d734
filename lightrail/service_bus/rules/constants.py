"""Constants of rules as clients send them: values of AMQP, and texts with a type of XML Schema.

Both become constants in JSON that keep their type and, over HTTP, their text (filters/rules/constants.py).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

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
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.rules.constants import constant_of
from lightrail.filters.rules.values import decimal128, text_of
from lightrail.filters.terms import (
    DATETIME_OFFSET,
    EPOCH_TICKS,
    TICKS_OF_MS,
    TIMESPAN,
    URI,
    Duration,
    value_of,
)

_EXACT_BELOW: Final = 1 << 53
"""Below this every whole number is a double."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# --- AMQP -------------------------------------------------------------------------------------------------

_TYPES: Final[Mapping[type, str]] = {
    Byte: "byte",
    Short: "short",
    Int: "int",
    Long: "long",
    int: "long",
    UByte: "ubyte",
    UShort: "ushort",
    UInt: "uint",
    ULong: "ulong",
    Float: "float",
    float: "double",
    Decimal32: "decimal",
    Decimal64: "decimal",
    Decimal128: "decimal",
    Char: "char",
    UUID: "uuid",
    Timestamp: "timestamp",
}
_DESCRIBED: Final[Mapping[str, str]] = {TIMESPAN: "timespan", DATETIME_OFFSET: "datetime-offset", URI: "uri"}


def from_amqp(value: Any) -> Any:
    """A value of AMQP as a constant. Raises FilterError."""
    kind = type(value)
    if kind is bool:
        return value
    if kind in (str, Symbol):
        return str(value)
    name = _DESCRIBED.get(str(value.descriptor)) if kind is Described else _TYPES.get(kind)
    if name is None:
        raise FilterError("a text, a number, a boolean, a time, a duration or a uuid", shown(value))
    found = value_of(value)
    constant = {name: _moment(found) if isinstance(found, Timestamp) else _text(found)}
    constant_of(constant)
    return constant


def to_amqp(constant: Any) -> Any:
    """A constant as a value of AMQP."""
    if not isinstance(constant, Mapping):
        return constant
    kind, value = next(iter(constant)), constant_of(constant)
    return _AMQP[kind](value)


def _offset(value: Any) -> Described:
    return Described(Symbol(DATETIME_OFFSET), Long(value * TICKS_OF_MS + EPOCH_TICKS))


_AMQP: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{
        name: kind
        for kind, name in _TYPES.items()
        if kind not in (int, Decimal32, Decimal64, Decimal128, UUID)
    },
    "decimal": decimal128,
    "uuid": lambda value: value,
    "timespan": lambda value: Described(TIMESPAN, Long(value)),
    "datetime-offset": _offset,
    "uri": lambda value: Described(Symbol(URI), value),
}


def _moment(value: Timestamp) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=int(value))
    except OverflowError:
        raise FilterError("a time between the years 1 and 9999", shown(int(value))) from None
    return moment.isoformat().replace("+00:00", "Z")


def _text(value: Any) -> str:
    return repr(value) if type(value) is float else text_of(value)


# --- XML --------------------------------------------------------------------------------------------------


class Typed(NamedTuple):
    """A text with a type of XML Schema, without a prefix."""

    kind: str
    text: str


XML_TYPES: Final[Mapping[str, str]] = {
    "byte": "byte",
    "short": "short",
    "int": "int",
    "long": "long",
    "unsignedByte": "ubyte",
    "unsignedShort": "ushort",
    "unsignedInt": "uint",
    "unsignedLong": "ulong",
    "float": "float",
    "double": "double",
    "decimal": "decimal",
    "char": "char",
    "guid": "uuid",
    "dateTime": "timestamp",
    "duration": "timespan",
    "anyURI": "uri",
}
_SHOWN: Final[Mapping[str, str]] = {
    "int": "int",
    "long": "long",
    "double": "double",
    "timestamp": "dateTime",
    "datetime-offset": "dateTime",
    "timespan": "duration",
    **dict.fromkeys(("byte", "short", "ubyte", "ushort"), "int"),
    **dict.fromkeys(("uint", "ulong"), "long"),
    **dict.fromkeys(("float", "decimal"), "double"),
}
"""Types that clients read; all others are shown as text."""
_BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "false": False, "1": True, "0": False}


def from_xml(found: Typed) -> Any:
    """A typed text as a constant. Raises FilterError."""
    kind, text = found
    if kind in ("string", ""):
        return text
    if kind == "boolean":
        if text.strip().lower() not in _BOOLEANS:
            raise FilterError("a value of type boolean", shown(text))
        return _BOOLEANS[text.strip().lower()]
    if kind not in XML_TYPES:
        raise FilterError(f"one of the types string, boolean, {', '.join(XML_TYPES)}", shown(kind))
    constant = {XML_TYPES[kind]: text if kind == "char" else text.strip()}
    constant_of(constant)
    return constant


def to_xml(constant: Any) -> Typed:
    """A constant as a typed text."""
    if isinstance(constant, Mapping):
        kind, text = next(iter(constant.items()))
        value = constant_of(constant)
        if isinstance(value, Duration) and not text.lstrip("-").startswith("P"):
            text = _iso(value)
        return Typed(_SHOWN.get(kind, "string"), text)
    if isinstance(constant, bool):
        return Typed("boolean", str(constant).lower())
    if isinstance(constant, int):
        # A number without a type; the client for JavaScript can't read the type long.
        kind = "int" if abs(constant) < 1 << 31 else "double" if abs(constant) < _EXACT_BELOW else "long"
        return Typed(kind, str(constant))
    return Typed("double" if isinstance(constant, float) else "string", str(constant))


def _iso(value: Duration) -> str:
    """A duration of XML Schema."""
    seconds, ticks = divmod(abs(value), 1000 * TICKS_OF_MS)
    fraction = f".{ticks:07}".rstrip("0") if ticks else ""
    days, seconds = divmod(seconds, 86_400)
    return f"{'-' if value < 0 else ''}P{days}DT{seconds}{fraction}S"
