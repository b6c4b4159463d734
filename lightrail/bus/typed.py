"""Typed JSON: converts values of annotated classes to JSON and back, checking every value.

Dataclasses and TypedDicts are read here; models of pydantic and msgspec by their own libraries, where those
are installed. Unknown fields are ignored, so that messages of newer senders can be read.
"""

import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, is_typeddict

from lightrail.bus.errors import ConfigurationError, NotReadableError
from lightrail.bus.typed_values import SIMPLE, Converter, enumeration, hints_of, literal, plain, within, wrong

_MADE: Final[dict[Any, Converter]] = {}


def converter(annotation: Any) -> Converter:
    """The converter of a type, made once. Raises ConfigurationError for a type that JSON can't carry."""
    try:
        found = _MADE.get(annotation)
    except TypeError:  # For example, Annotated with a list is not hashable.
        return _make(annotation)
    if found is None:
        found = _MADE[annotation] = _make(annotation)
    return found


def _make(annotation: Any) -> Converter:
    simple = SIMPLE.get(annotation) if isinstance(annotation, type) else None
    if simple is not None:
        return simple
    if annotation is Any or annotation is object:
        return Converter(None, lambda value: value)
    if annotation is None:
        return SIMPLE[type(None)]
    if hasattr(annotation, "__supertype__"):
        return converter(annotation.__supertype__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return converter(arguments[0])
    if origin is Union or origin is types.UnionType:
        return _union(arguments)
    if origin is Literal:
        return literal(arguments)
    if origin is None and isinstance(annotation, type):
        return _of_class(annotation)
    if dataclasses.is_dataclass(origin):
        return _dataclass(annotation)
    if isinstance(origin, type):
        if issubclass(origin, tuple):
            return _tuple(arguments)
        if issubclass(origin, Mapping):
            return _mapping(arguments)
        if issubclass(origin, Sequence | Set):
            return _sequence(origin, arguments[0])
    raise _unknown(annotation)


def _unknown(annotation: Any) -> ConfigurationError:
    return ConfigurationError(
        f"expected a type that JSON can carry, found {annotation!r}: use dataclasses, TypedDicts, models of "
        "pydantic or msgspec, and the types that docs/bus/messages.md lists"
    )


def _of_class(cls: type) -> Converter:
    if is_typeddict(cls):
        return _typed_dict(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls)
    if issubclass(cls, enum.Enum):
        return enumeration(cls)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return _pydantic(cls, pydantic)
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and issubclass(cls, msgspec.Struct):
        return _msgspec(cls, msgspec)
    if cls in (list, Sequence):
        return _sequence(list, Any)
    if cls in (dict, Mapping):
        return _mapping((str, Any))
    if cls in (tuple, set, frozenset):
        return _sequence(cls, Any)
    raise _unknown(cls)


# --- collections -----------------------------------------------------------------------------------------


def _union(arguments: tuple[Any, ...]) -> Converter:
    options = [(argument, converter(argument)) for argument in arguments]

    def dump(value: Any) -> Any:
        if value is None:
            return None
        for argument, each in options:
            if _is_of(value, argument):
                return value if each.dump is None else each.dump(value)
        raise TypeError(f"expected one of {arguments}, found {value!r:.80}")

    def load(value: Any) -> Any:
        errors = []
        for _, each in options:
            try:
                return each.load(value)
            except NotReadableError as error:
                errors.append(str(error))
        raise NotReadableError("; or ".join(errors))

    if all(each.dump is None for _, each in options):
        return Converter(None, load)
    return Converter(dump, load)


def _is_of(value: Any, argument: Any) -> bool:
    """Whether a value is of a type, by its class alone."""
    origin = get_origin(argument) or argument
    if is_typeddict(origin):
        return isinstance(value, dict)
    if origin is Literal:
        return value in get_args(argument)
    return origin is Any or (isinstance(origin, type) and isinstance(value, origin))


def _sequence(origin: type, argument: Any) -> Converter:
    each = converter(argument)
    dump_each, load_each = each
    make: Callable[[Any], Any] = list
    if issubclass(origin, tuple | frozenset):
        make = origin
    elif issubclass(origin, Set):
        make = set

    def load(value: Any) -> Any:
        if type(value) is not list:
            raise wrong("a list", value)
        found = []
        for index, item in enumerate(value):
            try:
                found.append(load_each(item))
            except NotReadableError as error:
                raise within(f"[{index}]", error) from None
        return found if make is list else make(found)

    if dump_each is None:
        return Converter(list, load)
    return Converter(lambda value: [dump_each(item) for item in value], load)


def _tuple(arguments: tuple[Any, ...]) -> Converter:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(tuple, arguments[0])
    each = [converter(argument) for argument in arguments]

    def dump(value: Any) -> Any:
        return [item if one.dump is None else one.dump(item) for one, item in zip(each, value, strict=True)]

    def load(value: Any) -> Any:
        if type(value) is not list or len(value) != len(each):
            raise wrong(f"a list of {len(each)}", value)
        found = []
        for index, (one, item) in enumerate(zip(each, value, strict=True)):
            try:
                found.append(one.load(item))
            except NotReadableError as error:
                raise within(f"[{index}]", error) from None
        return tuple(found)

    return Converter(dump, load)


def _mapping(arguments: tuple[Any, ...]) -> Converter:
    keys, values = (converter(argument) for argument in arguments)
    dump_key, load_key = keys
    dump_value, load_value = values
    if arguments[0] is int:
        dump_key, load_key = str, _load_whole

    def dump(value: Any) -> Any:
        return {
            key if dump_key is None else dump_key(key): item if dump_value is None else dump_value(item)
            for key, item in value.items()
        }

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong("an object", value)
        found = {}
        for key, item in value.items():
            try:
                found[load_key(key)] = load_value(item)
            except NotReadableError as error:
                raise within(f"[{key!r}]", error) from None
        return found

    return Converter(dump, load)


def _load_whole(text: Any) -> int:
    try:
        return int(text)
    except ValueError:
        raise wrong("a whole number", text) from None


# --- classes ---------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class _Lazy:
    """The converter of a class under construction: a class may have fields of its own type."""

    made: Converter | None = None

    def dump(self, value: Any) -> Any:
        assert self.made is not None
        return value if self.made.dump is None else self.made.dump(value)

    def load(self, value: Any) -> Any:
        assert self.made is not None
        return self.made.load(value)


def _dataclass(annotation: Any) -> Converter:
    lazy = _Lazy()
    _MADE[annotation] = Converter(lazy.dump, lazy.load)
    cls = get_origin(annotation) or annotation
    parameters = getattr(cls, "__parameters__", ())
    given = dict(zip(parameters, get_args(annotation), strict=False))
    hints = hints_of(cls)
    fields = [
        (field.name, converter(given.get(hints[field.name], hints[field.name])), _is_required(field))
        for field in dataclasses.fields(cls)
        if field.init
    ]
    dumps = [(name, each.dump) for name, each, _ in fields]

    def dump(value: Any) -> Any:
        return {
            name: getattr(value, name) if convert is None else convert(getattr(value, name))
            for name, convert in dumps
        }

    loads = [(name, each.load, required) for name, each, required in fields]
    what = f"an object for {cls.__name__}"

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong(what, value)
        found = {}
        for name, convert, required in loads:
            if name in value:
                try:
                    found[name] = convert(value[name])
                except NotReadableError as error:
                    raise within(f".{name}", error) from None
            elif required:
                raise NotReadableError(f".{name}: expected a value, found none")
        try:
            return cls(**found)
        except (TypeError, ValueError) as error:
            # Raised by __post_init__.
            raise NotReadableError(f"{cls.__name__}: {error}") from error

    lazy.made = _MADE[annotation] = Converter(dump, load)
    return lazy.made


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _typed_dict(cls: Any) -> Converter:
    lazy = _Lazy()
    _MADE[cls] = Converter(lazy.dump, lazy.load)
    fields = {name: converter(plain(hint)) for name, hint in hints_of(cls).items()}
    required = cls.__required_keys__

    def dump(value: Any) -> Any:
        return {
            name: item if (convert := fields[name].dump) is None else convert(item)
            for name, item in value.items()
            if name in fields
        }

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong(f"an object for {cls.__name__}", value)
        found = {}
        for name, each in fields.items():
            if name in value:
                try:
                    found[name] = each.load(value[name])
                except NotReadableError as error:
                    raise within(f".{name}", error) from None
            elif name in required:
                raise NotReadableError(f".{name}: expected a value, found none")
        return found

    lazy.made = _MADE[cls] = Converter(dump, load)
    return lazy.made


def _pydantic(cls: Any, pydantic: Any) -> Converter:
    def load(value: Any) -> Any:
        try:
            return cls.model_validate(value)
        except pydantic.ValidationError as error:
            raise NotReadableError(str(error)) from error

    return Converter(lambda value: value.model_dump(mode="json"), load)


def _msgspec(cls: Any, msgspec: Any) -> Converter:
    def load(value: Any) -> Any:
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise NotReadableError(str(error)) from error

    return Converter(msgspec.to_builtins, load)
