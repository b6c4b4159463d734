"""Constants of rules in JSON: parameters, and values of correlation filters, each with the sent type.

    "red"    true    {"int": "5"}    {"double": "1.5"}    {"timestamp": "2026-05-06T07:08:09Z"}

Text and booleans are themselves; any other constant is an object with its type and its text. Plain numbers of
JSON are accepted as long and double.
"""

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from lightrail.filters.errors import FilterError, shown
from lightrail.filters.parameters import FILTER_PARAMETERS_BYTES
from lightrail.filters.rules.values import INTEGER_MAX, INTEGER_MIN, moment_of, span_of


def _whole(bits: int, *, signed: bool = True) -> Callable[[str], int]:
    least = -(1 << bits - 1) if signed else 0
    most = (1 << bits - signed) - 1

    def read(text: str) -> int:
        value = int(text) if len(text) <= 40 else most + 1
        if not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return read


def _double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text) if len(text) <= 64 else None
    except InvalidOperation:
        value = None
    # Compared without abs(), which overflows for exponents of seven digits.
    if value is None or not value.is_finite() or not -(1 << 96) < value < 1 << 96:
        raise ValueError("a decimal of at most 96 bits")
    return value


def _char(text: str) -> str:
    if len(text) != 1:
        raise ValueError("one character")
    return text


TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "byte": _whole(8),
    "short": _whole(16),
    "int": _whole(32),
    "long": _whole(64),
    "ubyte": _whole(8, signed=False),
    "ushort": _whole(16, signed=False),
    "uint": _whole(32, signed=False),
    "ulong": _whole(64, signed=False),
    "float": _double,
    "double": _double,
    "decimal": _decimal,
    "char": _char,
    "uuid": UUID,
    "timestamp": moment_of,
    "datetime-offset": moment_of,
    "timespan": span_of,
    "uri": str,
}
"""Types of AMQP, and those that the library of .NET describes, with what reads their text."""


def constant_of(found: Any) -> Any:
    """The value of a constant. Raises FilterError."""
    if isinstance(found, str | bool):
        return found
    if isinstance(found, int) and INTEGER_MIN <= found <= INTEGER_MAX:
        return found
    if isinstance(found, float) and math.isfinite(found):
        return found
    if isinstance(found, Mapping) and len(found) == 1:
        kind, text = next(iter(found.items()))
        read = TYPES.get(kind)
        if read is not None and isinstance(text, str):
            try:
                return read(text)
            except ValueError as error:
                raise FilterError(f"a value of type {kind} ({error})", shown(text)) from None
    raise FilterError(
        f'a text, a boolean, or an object of a type and its text, such as {{"int": "5"}} (types are '
        f"{', '.join(TYPES)})",
        shown(found),
    )


def constants_of(found: Any, part: str) -> dict[str, Any]:
    """The values of an object of constants by name. Raises FilterError."""
    if not isinstance(found, Mapping) or not found:
        raise FilterError("an object of one or more names and constants", shown(found), part=part)
    made: dict[str, Any] = {}
    for name, constant in found.items():
        if not isinstance(name, str) or not name:
            raise FilterError("a name", shown(name), part=part)
        try:
            made[name] = constant_of(constant)
        except FilterError as error:
            raise error.within(f"{part}.{name}") from None
    size = len(json.dumps(dict(found)))
    if size > FILTER_PARAMETERS_BYTES:
        raise FilterError(f"at most {FILTER_PARAMETERS_BYTES} bytes of JSON", f"{size} bytes", part=part)
    return made


def parameters_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a rule by name in lower case: rules don't distinguish case. Raises FilterError."""
    if "parameters" not in spec:
        return {}
    found = constants_of(spec["parameters"], "parameters")
    made: dict[str, Any] = {}
    for name, value in found.items():
        if not name.startswith("@") or name.lower() in made:
            raise FilterError("a name that begins with @, each once", shown(name), part="parameters")
        made[name.lower()] = value
    return made
