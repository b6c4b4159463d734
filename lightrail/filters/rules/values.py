"""Values of rules: what operators do with properties and constants (terms.py).

Operators follow those of C#, as Microsoft's pages say: whole numbers divide to whole numbers, text joins with
anything, decimals are exact. Values that don't go together are not equal and have no order: the comparison is
false. Arithmetic with them is unknown.
"""

import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from typing import Any, Final
from uuid import UUID

from lightrail.amqp.values import Decimal128, Timestamp
from lightrail.filters.errors import EvaluationError
from lightrail.filters.terms import OPAQUE, TICKS_OF_MS, Duration

RULE_TEXT_MAX: Final[int] = 64 * 1024
"""Characters of a text that `+` makes."""
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS_MS: Final = 62_000_000_000_000
"""Milliseconds before and after 1970 that have a date of four digits."""


_COUNTED: Final = Context(prec=28, traps=[DivisionByZero, InvalidOperation, Overflow])
"""Decimals of .NET have 28 digits."""


def decimal128(value: Decimal) -> Decimal128:
    """A decimal as Microsoft's AMQP library writes it, for whose clients rules are."""
    sign, digits, exponent = _COUNTED.plus(value).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    if exponent < -28:
        # Exponents reach -1,000,026: at once, and not digit by digit.
        number, exponent = number // 10 ** min(-28 - exponent, len(digits)), -28
    if exponent > 0:
        # More than 28 digits are more than 96 bits.
        number, exponent = number * 10 ** min(exponent, 29), 0
    if number >= 1 << 96:
        raise EvaluationError("a decimal has more than 96 bits")
    biased = 6176 + exponent
    octets = bytearray(number.to_bytes(16))
    octets[0] = biased >> 9 & 0x7F | sign << 7
    octets[1] = biased << 1 & 0xFE
    return Decimal128(octets)


NewId = Callable[[], UUID]
NO_ID: Final = UUID(int=0)
"""What newid() makes where a rule is only checked."""

# --- text ------------------------------------------------------------------------------------------------

_SPAN: Final = re.compile(
    r"(-?)(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,7}))?)?\Z", re.ASCII
)
_ISO: Final = re.compile(
    r"(-?)P(?:(\d{1,8})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,7})\d*)?S)?)?\Z", re.ASCII
)


def span_of(text: str) -> Duration:
    """A duration such as 1.02:03:04.5 or PT1H30M. Raises ValueError."""
    found = _SPAN.match(text) or _ISO.match(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError("a duration such as 01:30:00 or PT1H30M")
    sign, *parts, fraction = found.groups()
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    ticks = total * 1000 * TICKS_OF_MS + int((fraction or "0").ljust(7, "0"))
    if ticks > INTEGER_MAX:
        raise ValueError("a duration of at most 10,675,199 days")
    return Duration(-ticks if sign else ticks)


def moment_of(text: str) -> Timestamp:
    """A time of ISO 8601; one without an offset is in UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return Timestamp((found - _EPOCH) // timedelta(milliseconds=1))


def text_of(value: Any) -> str:
    """A value joined to a text, as ToString() of .NET writes it for the invariant culture."""
    kind = type(value)
    if kind is bool:
        return "True" if value else "False"
    if kind is float:
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value).upper()
    if kind is Timestamp and abs(value) < _MOMENTS_MS:
        text: str = (_EPOCH + timedelta(milliseconds=value)).isoformat(timespec="milliseconds")
        return text
    if kind is Duration:
        seconds, ticks = divmod(abs(value), 1000 * TICKS_OF_MS)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        sign, whole = "-" if value < 0 else "", f"{days}." if days else ""
        fraction = f".{ticks:07}" if ticks else ""
        return f"{sign}{whole}{hours:02}:{minutes:02}:{seconds:02}{fraction}"
    return str(value)


# --- comparing -------------------------------------------------------------------------------------------

_NUMBERS: Final = frozenset((int, float, Decimal))
_ORDERED: Final = frozenset((int, float, str, Decimal, Timestamp, Duration))

COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES: Final = frozenset(("=", "<>"))


def compares(name: str) -> Callable[[Any, Any], bool | None]:
    """A comparison of two values: None if one is unknown, False for values that don't go together."""
    compare, is_equality = COMPARE[name], name in EQUALITIES

    def test(one: Any, other: Any) -> bool | None:
        kind = type(one)
        if kind is not type(other):
            if one is None or other is None:
                return None
            pair = _together(one, other)
            return False if pair is None else compare(*pair)
        if kind in _ORDERED:
            return compare(one, other)
        if one is None:
            return None
        return is_equality and kind in (bool, UUID, bytes) and compare(one, other)

    return test


def _together(one: Any, other: Any) -> tuple[Any, Any] | None:
    """Two values of different kinds as values of one kind; None if they don't go together."""
    kind, other_kind = type(one), type(other)
    if kind in _NUMBERS and other_kind in _NUMBERS:
        if float in (kind, other_kind):
            return float(one), float(other)
        return one, other
    if UUID in (kind, other_kind) and str in (kind, other_kind):
        return str(one), str(other)
    if kind is str:
        return None if (found := _read_as(one, other_kind)) is None else (found, other)
    if other_kind is str:
        return None if (found := _read_as(other, kind)) is None else (one, found)
    return None


def _read_as(text: str, kind: type) -> Any:
    """A text as a value of a kind that has a text form: None if it has none, or the text is not of it."""
    read = _READERS.get(kind)
    try:
        return None if read is None else read(text)
    except ValueError:
        return None


_READERS: Final[dict[type, Callable[[str], Any]]] = {Timestamp: moment_of, Duration: span_of}


def is_plain(value: Any) -> bool:
    """Whether a matcher finds the values that are equal to this constant by its form in tables."""
    if type(value) is str:
        return all(_read_as(value, kind) is None for kind in _READERS)
    return type(value) is bool or (type(value) in (int, float) and abs(value) < 1 << 53)


# --- computing -------------------------------------------------------------------------------------------


def _quotient(one: int, other: int) -> int:
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


def _remainder(one: int, other: int) -> int:
    rest = abs(one) % abs(other)
    return rest if one >= 0 else -rest


def _float_quotient(one: float, other: float) -> float:
    if other:
        return one / other
    # As in C#: no error.
    return math.nan if not one or math.isnan(one) else math.copysign(math.inf, one) * math.copysign(1, other)


def _float_remainder(one: float, other: float) -> float:
    return math.fmod(one, other) if other and math.isfinite(one) else math.nan


_WHOLE: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
}
_FLOAT: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _float_quotient,
    "%": _float_remainder,
}
_EXACT: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _COUNTED.add,
    "-": _COUNTED.subtract,
    "*": _COUNTED.multiply,
    "/": _COUNTED.divide,
    "%": _COUNTED.remainder,
}


def computes(name: str) -> Callable[[Any, Any], Any]:
    """An operator of arithmetic. Raises EvaluationError: division by zero, more than 64 bits."""
    whole, double, exact, joins = _WHOLE[name], _FLOAT[name], _EXACT[name], name == "+"

    def compute(one: Any, other: Any) -> Any:
        if one is None or other is None:
            return None
        kind, other_kind = type(one), type(other)
        try:
            if kind is int and other_kind is int:
                return _bounded(whole(one, other), name)
            if kind in _NUMBERS and other_kind in _NUMBERS:
                if float in (kind, other_kind):
                    return double(float(one), float(other))
                return exact(Decimal(one), Decimal(other))
        except (ArithmeticError, ValueError):
            raise EvaluationError(
                f"{one} {name} {other} can't be computed: a division by zero, or too large a number"
            ) from None
        if joins and str in (kind, other_kind) and OPAQUE not in (one, other):
            # Texts and octets are measured first: two thousand rules may join a message's largest.
            size = sum(len(each) for each in (one, other) if type(each) in (str, bytes))
            text = text_of(one) + text_of(other) if size <= RULE_TEXT_MAX else ""
            if (found := max(size, len(text))) > RULE_TEXT_MAX:
                raise EvaluationError(f"a text has {found} characters, more than {RULE_TEXT_MAX}")
            return text
        return _of_times(name, one, other)

    return compute


def negated(value: Any) -> Any:
    """Unary minus. Raises EvaluationError."""
    kind = type(value)
    if kind is int:
        return _bounded(-value, "-")
    if kind is Duration:
        return Duration(-value)
    return -value if kind in _NUMBERS else None


def _bounded(value: int, name: str) -> int:
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    raise EvaluationError(f"the result of {name} has more than 64 bits")


def _of_times(name: str, one: Any, other: Any) -> Any:
    """Times and durations: a duration more or less, and the duration between two times."""
    if name not in "+-":
        return None
    sign = 1 if name == "+" else -1
    match one, other:
        case Duration(), Duration():
            return Duration(_bounded(one + sign * other, name))
        case Timestamp(), Duration():
            return Timestamp(_bounded(one + sign * (other // TICKS_OF_MS), name))
        case Duration(), Timestamp() if sign > 0:
            return Timestamp(_bounded(other + one // TICKS_OF_MS, name))
        case Timestamp(), Timestamp() if sign < 0:
            return Duration(_bounded((one - other) * TICKS_OF_MS, name))
    return None
