"""Typed JSON: converters of simple values, such as texts, times, enumerations and literals.

Annotations of classes: the types of fields, and of items of collections.
"""

import base64
import binascii
import dataclasses
import datetime as dt
import enum
import re
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, is_typeddict

from lightrail.bus.errors import ConfigurationError, NotReadableError

_ISO_DURATION: Final = re.compile(
    r"(-)?P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?\Z"
)


def hints_of(cls: Any) -> dict[str, Any]:
    """Annotations of a class by name. Raises ConfigurationError where one can't be read at run time."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{cls.__qualname__}: expected annotations that can be read at run time, found {error}: "
            "define the class before it is used, at the level of a module"
        ) from error


def plain(hint: Any) -> Any:
    """An annotation without Required and NotRequired."""
    return get_args(hint)[0] if get_origin(hint) in (typing.Required, typing.NotRequired) else hint


def fields_of(annotation: Any) -> Mapping[str, Any] | None:
    """Annotations of the fields of a class, or of the class of an Optional; None for other types."""
    for each in _options(annotation):
        if not isinstance(each, type):
            continue
        if is_typeddict(each):
            return {name: plain(hint) for name, hint in hints_of(each).items()}
        if dataclasses.is_dataclass(each):
            return hints_of(each)
        fields = getattr(each, "model_fields", None) or getattr(each, "__struct_fields__", None)
        if fields:
            hints = hints_of(each)
            return {name: hints.get(name) for name in fields}
    return None


def item_of(annotation: Any) -> Any:
    """Annotation of the items of a list or of the values of a dict; None if it is unknown."""
    for each in _options(annotation):
        arguments = get_args(each)
        if arguments:
            return arguments[-1] if arguments[-1] is not Ellipsis else arguments[0]
    return None


def _options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


Convert = Callable[[Any], Any]


class Converter(NamedTuple):
    """The two conversions of a type.

    Attributes:
        dump: converts a value to a JSON value; None if they are equal.
        load: converts a JSON value to a value. Raises NotReadableError with the position and the fault.
    """

    dump: Convert | None
    load: Convert


def wrong(expected: str, found: Any) -> NotReadableError:
    """The error of a value that does not match its type."""
    return NotReadableError(f"expected {expected}, found {found!r:.80}")


def within(where: str, error: NotReadableError) -> NotReadableError:
    """The error of a part, with the position of the part."""
    text = str(error)
    return NotReadableError(f"{where}{text}" if text.startswith(("[", ".")) else f"{where}: {text}")


def _exactly(cls: type, what: str) -> Converter:
    def load(value: Any) -> Any:
        if type(value) is not cls:
            raise wrong(what, value)
        return value

    return Converter(None, load)


def _load_float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise wrong("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise wrong("a number in the range of a float", value) from None


def _parsed(cls: Any, parse: Callable[[str], Any], dump: Convert, what: str) -> Converter:
    def load(value: Any) -> Any:
        if type(value) is not str:
            raise wrong(what, value)
        try:
            return parse(value)
        except (ValueError, binascii.Error):
            raise wrong(what, value) from None

    return Converter(dump, load)


def _load_decimal(value: Any) -> Decimal:
    """Reads a text, as the bus writes it, or a number, as other senders may."""
    if type(value) is str or type(value) is int or type(value) is float:
        try:
            return Decimal(str(value))
        except InvalidOperation:
            pass
    raise wrong("a decimal number", value)


def iso_duration(text: str) -> dt.timedelta:
    """A duration as pydantic and msgspec write one, as P1DT2H3M4.5S. Raises ValueError."""
    found = _ISO_DURATION.match(text)
    if found is None:
        raise ValueError(f"expected a duration as P1DT2H3M4.5S, found {text!r:.80}")
    sign, *numbers, fraction = found.groups()
    weeks, days, hours, minutes, seconds = (int(number or 0) for number in numbers)
    span = dt.timedelta(days, seconds, microseconds(fraction), 0, minutes, hours, weeks)
    return -span if sign else span


def microseconds(fraction: str | None) -> int:
    """Of the digits behind the point of a number of seconds."""
    return int((fraction or "").ljust(6, "0")[:6])


def _load_duration(value: Any) -> dt.timedelta:
    """Reads a number of seconds, as the bus writes it, or the text of an ISO 8601 duration."""
    try:
        if type(value) is str:
            return iso_duration(value)
        return dt.timedelta(seconds=_load_float(value))
    except (OverflowError, ValueError):
        raise wrong("a number of seconds or P1DT2H3M4.5S, in the range of a duration", value) from None


SIMPLE: Final[dict[type, Converter]] = {
    str: _exactly(str, "a text"),
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "true or false"),
    type(None): _exactly(type(None), "null"),
    float: Converter(None, _load_float),
    bytes: _parsed(
        bytes,
        lambda text: base64.b64decode(text, validate=True),
        lambda value: base64.b64encode(value).decode(),
        "bytes in base64",
    ),
    uuid.UUID: _parsed(uuid.UUID, uuid.UUID, str, "a UUID"),
    Decimal: Converter(str, _load_decimal),
    dt.datetime: _parsed(
        dt.datetime,
        dt.datetime.fromisoformat,
        lambda value: value.isoformat(),
        "a time as 2030-01-31T12:00:00Z",
    ),
    dt.date: _parsed(dt.date, dt.date.fromisoformat, lambda value: value.isoformat(), "a date as 2030-01-31"),
    dt.time: _parsed(dt.time, dt.time.fromisoformat, lambda value: value.isoformat(), "a time as 12:00:00"),
    dt.timedelta: Converter(lambda value: value.total_seconds(), _load_duration),
}


def literal(values: tuple[Any, ...]) -> Converter:
    """The converter of a Literal."""
    shown = " or ".join(repr(value) for value in values)

    def load(value: Any) -> Any:
        for each in values:
            if value == each and type(value) is type(each):
                return each
        raise wrong(shown, value)

    return Converter(None, load)


def enumeration(cls: type[enum.Enum]) -> Converter:
    """The converter of an Enum, by the values of its members."""
    by_value = {each.value: each for each in cls}
    shown = ", ".join(repr(value) for value in by_value)

    def load(value: Any) -> Any:
        try:
            return by_value[value]
        except (KeyError, TypeError):
            raise wrong(f"one of {shown}", value) from None

    return Converter(lambda value: value.value, load)
