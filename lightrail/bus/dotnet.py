"""Values as .NET's JSON serializers write them, translated from and to the JSON of `lightrail.bus.typed`.

System.Text.Json and Newtonsoft.Json agree on what is here, unless a comment names one of them. Names of
properties are camelCase there and snake_case here; readers compare them without case, as .NET does, and
without underscores, so that `MyXMLDoc` ("myXMLDoc") is the field `my_xml_doc` or `my_xmldoc`.
"""

import dataclasses
import datetime as dt
import enum
import re
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, is_typeddict

from lightrail.bus.errors import NotReadableError
from lightrail.bus.typed_values import fields_of, iso_duration, microseconds, within, wrong

Translate = Callable[[Any], Any]

NO_TIME: Final = "0001-01-01T00:00:00"
"""default(DateTime)."""
_DAYS_MAX: Final = 10_675_199
"""Of a TimeSpan, which counts units of 100 ns in 64 bits."""
_SPAN: Final = re.compile(r"(-)?(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,7}))?\Z")
"""A TimeSpan as text: [-][days.]hours:minutes:seconds[.fraction]."""
_FINER: Final = re.compile(r"(\.\d{6})\d+")
_UPPER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Translation(NamedTuple):
    """The two translations of a type's JSON values; None where both sides have the same.

    Attributes:
        write: into what .NET reads.
        read: of what .NET wrote. Raises NotReadableError.
        default: the value that .NET may leave out, as JSON: Newtonsoft.Json does so with 0, false, null and
            the empty Guid. NO_DEFAULT for types that are references in .NET, whose default is null.
    """

    write: Translate | None
    read: Translate | None
    default: Any


NO_DEFAULT: Final = object()
SAME: Final = Translation(None, None, NO_DEFAULT)
_MADE: Final[dict[Any, Translation]] = {}


def translation(annotation: Any) -> Translation:
    """The translation of a type, made once."""
    try:
        found = _MADE.get(annotation)
    except TypeError:  # For example, Annotated with a list is not hashable.
        return _make(annotation)
    if found is None:
        found = _MADE[annotation] = _make(annotation)
    return found


def _make(annotation: Any) -> Translation:
    simple = _SIMPLE.get(annotation) if isinstance(annotation, type) else None
    if simple is not None:
        return simple
    if hasattr(annotation, "__supertype__"):
        return translation(annotation.__supertype__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return translation(arguments[0])
    if origin is Union or origin is types.UnionType:
        return _union(arguments)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration(annotation)
    if _is_class(annotation):
        return _class(annotation)
    if isinstance(origin, type) and arguments:
        if issubclass(origin, tuple) and arguments[-1] is not Ellipsis:
            return _tuple(arguments)
        if issubclass(origin, Mapping):
            return _values(arguments[-1])
        if issubclass(origin, Sequence | Set):
            return _items(arguments[0])
    return SAME


# --- names -----------------------------------------------------------------------------------------------


def camel(name: str) -> str:
    """order_id as orderId."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def snake(name: str) -> str:
    """orderId as order_id, myXMLDoc as my_xml_doc."""
    return _UPPER.sub("_", name).lower()


def plain_name(name: str) -> str:
    """A name without case and underscores, by which names of both sides are compared."""
    return name.replace("_", "").casefold()


def guid(id: str) -> str:
    """An id for .NET: the id itself where it is a UUID, else a UUID derived from the id."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, id))


# --- simple values ---------------------------------------------------------------------------------------


def _write_span(value: Any) -> str:
    """Seconds, or an ISO 8601 duration, as the text of a TimeSpan. Raises ValueError beyond its range."""
    span = iso_duration(value) if type(value) is str else dt.timedelta(seconds=value)
    sign = "-" if span < dt.timedelta(0) else ""
    span = abs(span)
    if span.days >= _DAYS_MAX:
        raise ValueError(f"expected a duration below {_DAYS_MAX} days for a TimeSpan of .NET, found {span}")
    days = f"{span.days}." if span.days else ""
    clock = (dt.datetime.min + dt.timedelta(seconds=span.seconds)).time().isoformat()
    fraction = f".{span.microseconds:06}0" if span.microseconds else ""
    return f"{sign}{days}{clock}{fraction}"


def _read_span(value: Any) -> Any:
    """The text of a TimeSpan as an ISO 8601 duration, without its units below a microsecond."""
    if type(value) is not str:
        return value
    found = _SPAN.match(value)
    if found is None:
        raise wrong("a TimeSpan of .NET as 1.02:03:04.5000000", value)
    sign, *numbers, fraction = found.groups()
    days, hours, minutes, seconds = (int(number or 0) for number in numbers)
    span = dt.timedelta(days, seconds, microseconds(fraction), 0, minutes, hours)
    whole = f"{span.days * 86_400 + span.seconds}.{span.microseconds:06}"
    # A form that pydantic and msgspec read as well, and without the rounding of a float.
    return f"{sign or ''}PT{whole}S"


def write_time(value: str) -> str:
    """UTC as Z: .NET reads +00:00 as a local time."""
    return f"{value[:-6]}Z" if value.endswith("+00:00") else value


def read_time(value: Any) -> Any:
    """Without the seventh digit, which is 100 ns: Python's times end with microseconds."""
    return _FINER.sub(r"\1", value) if type(value) is str else value


def _write_decimal(value: Any) -> Any:
    """Without an exponent. Raises ValueError for NaN and infinities, which .NET's decimal does not have."""
    try:
        number = Decimal(value)
    except (InvalidOperation, TypeError):
        return value
    if not number.is_finite():
        raise ValueError(f"expected a finite number for a decimal of .NET, found {value}")
    return format(number, "f")


_SIMPLE: Final[dict[type, Translation]] = {
    int: Translation(None, None, 0),
    float: Translation(None, None, 0.0),
    bool: Translation(None, None, False),
    type(None): Translation(None, None, None),
    uuid.UUID: Translation(None, None, str(uuid.UUID(int=0))),
    Decimal: Translation(_write_decimal, None, "0"),
    dt.datetime: Translation(write_time, read_time, NO_TIME),
    dt.date: Translation(None, None, "0001-01-01"),
    dt.time: Translation(write_time, read_time, "00:00:00"),
    dt.timedelta: Translation(_write_span, _read_span, "PT0S"),
}


def _enumeration(cls: type[enum.Enum]) -> Translation:
    """Numbers stay numbers; texts are the names in .NET, which its JsonStringEnumConverter reads."""
    by_name = {plain_name(each.name): each.value for each in cls}
    written: dict[Any, Any] = {}
    for each in cls:
        value = each.value
        if isinstance(value, str) and plain_name(value) != plain_name(each.name):
            # IN_TRANSIT = "in-transit" is InTransit in .NET.
            value = "".join(word[:1].upper() + word[1:].lower() for word in each.name.split("_"))
        written[each.value] = value

    def write(value: Any) -> Any:
        return written.get(value, value)

    def read(value: Any) -> Any:
        if type(value) is not str or value in written:
            return value
        return by_name.get(plain_name(value), value)

    has_zero = any(type(each.value) is int and each.value == 0 for each in cls)
    return Translation(write, read, 0 if has_zero else NO_DEFAULT)


# --- collections -----------------------------------------------------------------------------------------


def _items(annotation: Any) -> Translation:
    write, read, _ = translation(annotation)
    return Translation(
        None if write is None else lambda value: [write(item) for item in value],
        None if read is None else lambda value: _each_read(value, list, enumerate, read),
        NO_DEFAULT,
    )


def _values(annotation: Any) -> Translation:
    """Of a dict: its keys stay as they are."""
    write, read, _ = translation(annotation)
    return Translation(
        None if write is None else lambda value: {key: write(item) for key, item in value.items()},
        None if read is None else lambda value: _each_read(value, dict, dict.items, read),
        NO_DEFAULT,
    )


def _each_read(value: Any, cls: type, pairs: Callable[[Any], Iterable[Any]], read: Translate) -> Any:
    """The items of a list or dict. Raises NotReadableError with the position."""
    if type(value) is not cls:
        return value
    found = []
    for key, item in pairs(value):
        try:
            found.append((key, read(item)))
        except NotReadableError as error:
            raise within(f"[{key!r}]", error) from None
    return dict(found) if cls is dict else [item for _, item in found]


def _tuple(arguments: tuple[Any, ...]) -> Translation:
    each = [translation(argument) for argument in arguments]

    def through(translates: list[Translate | None]) -> Translate:
        def run(value: Any) -> Any:
            if type(value) is not list or len(value) != len(translates):
                return value
            return [item if one is None else one(item) for one, item in zip(translates, value, strict=True)]

        return run

    return Translation(through([one.write for one in each]), through([one.read for one in each]), NO_DEFAULT)


def _union(arguments: tuple[Any, ...]) -> Translation:
    options = [argument for argument in arguments if argument is not type(None)]
    default = None if len(options) < len(arguments) else NO_DEFAULT
    if len(options) == 1:
        write, read, _ = translation(options[0])
        return Translation(_unless_null(write), _unless_null(read), default)
    classes = [_Class(each) for each in options if _is_class(each)]
    if not classes:
        return Translation(None, None, default)
    return Translation(
        lambda value: value if type(value) is not dict else _fitting(classes, value).write(value),
        lambda value: value if type(value) is not dict else _fitting(classes, value).read(value),
        default,
    )


def _unless_null(translate: Translate | None) -> Translate | None:
    if translate is None:
        return None
    return lambda value: None if value is None else translate(value)


# --- classes ---------------------------------------------------------------------------------------------


class _Class:
    """The fields of a class, read with the first value: a class may have fields of its own type."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._fields: dict[str, Translation] | None = None
        self._required: frozenset[str] = frozenset()
        self.names: dict[str, str] = {}
        """By field: its name in .NET."""
        self.by_key: dict[str, str] = {}
        """By plain name: the field."""

    def prepare(self) -> dict[str, Translation]:
        """The translations of the fields by name."""
        if self._fields is None:
            cls = get_origin(self._annotation) or self._annotation
            given = dict(zip(getattr(cls, "__parameters__", ()), get_args(self._annotation), strict=False))
            hints = fields_of(cls) or {}
            self.names = {name: camel(name) for name in hints}
            self.by_key = {plain_name(name): name for name in hints}
            self._required = _required(cls)
            self._fields = {name: translation(given.get(hint, hint)) for name, hint in hints.items()}
        return self._fields

    def write(self, value: Any) -> Any:
        if type(value) is not dict:
            return value
        fields = self.prepare()
        found = {}
        for name, item in value.items():
            field = fields.get(name)
            if field is not None and field.write is not None:
                item = field.write(item)
            found[self.names.get(name, name)] = item
        return found

    def read(self, value: Any) -> Any:
        """Unknown names stay, in snake_case; missing ones get the defaults of their types in .NET.

        Raises NotReadableError for an object of other fields: all of its values would be defaults.
        """
        if type(value) is not dict:
            return value
        fields = self.prepare()
        others: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = self.by_key.get(plain_name(key))
            if name is None:
                others[snake(key)] = item
                continue
            if name in found and key != self.names[name]:
                # Two names that differ in case: the one that .NET would write is taken.
                continue
            read = fields[name].read
            try:
                found[name] = item if read is None else read(item)
            except NotReadableError as error:
                raise within(f".{name}", error) from None
        missing = [name for name in self._required if name not in found]
        if missing and others and not found:
            raise NotReadableError(
                f"expected fields such as {', '.join(sorted(self.names.values()))[:80]}, "
                f"found {', '.join(value)[:80]}"
            )
        for name in missing:
            if fields[name].default is not NO_DEFAULT:
                found[name] = fields[name].default
        return others | found


def _is_class(annotation: Any) -> bool:
    """Whether it has fields; it may have parameters, as Page[int]."""
    return fields_of(get_origin(annotation) or annotation) is not None


def _class(annotation: Any) -> Translation:
    made = _Class(annotation)
    return Translation(made.write, made.read, NO_DEFAULT)


def _fitting(classes: list[_Class], value: dict[str, Any]) -> _Class:
    """The class of a union that has the most of an object's names."""
    for each in classes:
        each.prepare()
    plain = {plain_name(key) for key in value}
    return max(classes, key=lambda each: len(plain & each.by_key.keys()))


def _required(cls: Any) -> frozenset[str]:
    """The fields without a default."""
    if is_typeddict(cls):
        return frozenset(cls.__required_keys__)
    if dataclasses.is_dataclass(cls):
        return frozenset(
            field.name
            for field in dataclasses.fields(cls)
            if field.init
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        )
    if hasattr(cls, "model_fields"):
        return frozenset(name for name, field in cls.model_fields.items() if field.is_required())
    msgspec = sys.modules["msgspec"]
    return frozenset(field.name for field in msgspec.structs.fields(cls) if field.required)
