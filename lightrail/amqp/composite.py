"""Composite types (types 1.4): described lists of fields with names, types and defaults, mandatory or not.

A composite is a dataclass whose fields are declared with `mandatory` and `optional`; `@composite` makes the
tables from them, once. `read_composite` and `write_composite` then run along the tables.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from struct import error as StructError  # noqa: N812
from typing import Any, Final, TypeVar

from lightrail.amqp import decoder, encoder
from lightrail.amqp.decoder import Buffer, read_value
from lightrail.amqp.fields import FieldType
from lightrail.amqp.values import DecodeError, Described, Symbol, ULong, truncated, unexpected

Composite = TypeVar("Composite", bound=type)

_DECLARATION: Final = "amqp"


@dataclass(slots=True, eq=False, repr=False)
class Declaration:
    """One field, as the specification declares it."""

    type: FieldType
    mandatory: bool
    default: Any
    assumed: Any = None


def mandatory(type: FieldType, assumed: Any = None) -> Any:
    """A field that may not be null. Its annotation is for decoded values; an unset field is None.

    Args:
        assumed: value of a null that a peer sends nevertheless; None: such a null is an error (ADR 51).
    """
    return field(default=None, metadata={_DECLARATION: Declaration(type, True, None, assumed)})


def optional(type: FieldType, default: Any = None) -> Any:
    """A field that may be null, which means `default`: decoding fills it in, construction does not."""
    return field(default=None, metadata={_DECLARATION: Declaration(type, False, default)})


class Shape:
    """The tables of one composite type."""

    __slots__ = (
        "cls",
        "code",
        "declarations",
        "defaults",
        "demanded",
        "get",
        "mandatory",
        "name",
        "names",
        "prefix",
        "provides",
        "readers",
        "shared",
        "symbol",
        "width",
        "writers",
    )

    def __init__(self, cls: type, code: int, symbol: str, provides: tuple[str, ...]) -> None:
        declared = [(item.name, item.metadata[_DECLARATION]) for item in fields(cls)]
        self.cls: Callable[..., Any] = cls
        self.code = code
        self.symbol = Symbol(symbol)
        self.name = symbol.split(":")[1]
        self.provides = frozenset(provides)
        self.names = [name.replace("_", "-") for name, _ in declared]
        self.declarations: list[Declaration] = [declaration for _, declaration in declared]
        self.width = len(declared)
        self.readers = [declaration.type.readers for declaration in self.declarations]
        self.writers = [declaration.type.write for declaration in self.declarations]
        self.mandatory = [index for index, item in enumerate(self.declarations) if item.mandatory]
        self.demanded = [index for index in self.mandatory if self.declarations[index].assumed is None]
        """Mandatory fields whose null is an error also when a peer sends it."""
        values = [item.default if item.assumed is None else item.assumed for item in self.declarations]
        self.defaults = [(index, value) for index, value in enumerate(values) if value is not None]
        """Values of nulls that are received."""
        self.get = _getter([name for name, _ in declared])
        self.prefix = b"\x00" + encoder.write_ulong(code)
        self.shared = cls() if not declared else None
        """The one instance of a composite without fields."""


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads all fields of an object at once; attrgetter returns no tuple for fewer than two."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda value: ()
    get = attrgetter(names[0])
    return lambda value: (get(value),)


SHAPES: Final[dict[int | str, Shape]] = {}
"""By descriptor, numeric and symbolic."""
SHAPE_OF: Final[dict[type, Shape]] = {}


def composite(code: int, symbol: str, *provides: str) -> Callable[[Composite], Composite]:
    """Register the dataclass below by its descriptors; `provides` are its archetypes."""

    def register(cls: Composite) -> Composite:
        shape = Shape(cls, code, symbol, provides)
        SHAPES[ULong(code)] = SHAPES[shape.symbol] = shape
        SHAPE_OF[cls] = shape
        encoder.WRITERS[cls] = write_composite
        return cls

    return register


# --- reading --------------------------------------------------------------------------------------------


def read_descriptor(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, Shape | None, int]:
    """Read what follows 0x00; returns the descriptor, its shape or None, and the position after it."""
    if position + 1 < end and buffer[position] == 0x53:
        code = buffer[position + 1]
        return code, SHAPES.get(code), position + 2
    descriptor, position = read_value(buffer, position, end, depth)
    # Descriptors of other types are reserved (types 1.3), a uint of the same number is not the same.
    shape = SHAPES.get(descriptor) if isinstance(descriptor, ULong | Symbol) else None
    return descriptor, shape, position


def read_fields(shape: Shape, buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
    """Read the list of a composite; `position` is at its constructor."""
    decoder.check_depth(depth, position)
    if position >= end:
        raise truncated(shape.name, 1, position, end)
    code = buffer[position]
    if code == 0xC0 or code == 0xD0:
        count, start, after = decoder.open_compound(shape.name, code == 0xD0, buffer, position + 1, end)
    elif code == 0x45:
        count, start, after = 0, position + 1, position + 1
    else:
        raise unexpected(f"the list of {shape.name}", decoder.constructor_name(code), position)
    if count > shape.width:
        raise unexpected(f"at most {shape.width} fields of {shape.name}", str(count), start)
    values: list[Any] = [None] * shape.width
    readers = shape.readers
    index = 0
    position = start
    try:
        for index in range(count):
            if position >= after:
                raise truncated("a field", 1, position, after)
            values[index], position = readers[index][buffer[position]](buffer, position + 1, after, depth + 1)
    except DecodeError as error:
        raise DecodeError(f"{shape.name}.{shape.names[index]}: {error}") from None
    if position != after:
        decoder.check_filled(shape.name, position, after)
    for index in shape.demanded:
        if values[index] is None:
            raise unexpected(f"{shape.name}.{shape.names[index]}, which is mandatory", "null", start)
    for index, default in shape.defaults:
        if values[index] is None:
            values[index] = default
    return shape.shared if shape.shared is not None else shape.cls(*values), after


def archetype(name: str, provided: str) -> FieldType:
    """A field for composites that provide an archetype; an unknown descriptor is decoded as Described."""

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        descriptor_at = position
        decoder.check_depth(depth, position)
        descriptor, shape, position = read_descriptor(buffer, position, end, depth + 1)
        if shape is None:
            value, position = read_value(buffer, position, end, depth + 1)
            return Described(_full(descriptor), value), position
        if provided not in shape.provides:
            raise unexpected(name, shape.name, descriptor_at)
        return read_fields(shape, buffer, position, end, depth)

    return FieldType(name, {0x00: read}, encoder.write_value)


def _full(descriptor: Any) -> Any:
    return ULong(descriptor) if type(descriptor) is int else descriptor


def value_or_composite(name: str, provided: str) -> FieldType:
    """A field for any value; composites that provide the archetype are read as such."""
    made = FieldType(name, dict(enumerate(decoder.READERS)), encoder.write_value)
    described = decoder.READERS[0x00]

    def read(buffer: Buffer, position: int, end: int, depth: int) -> tuple[Any, int]:
        _, shape, after = read_descriptor(buffer, position, end, depth + 1)
        if shape is None or provided not in shape.provides:
            return described(buffer, position, end, depth)
        return read_fields(shape, buffer, after, end, depth)

    made.readers[0x00] = read
    return made


# --- writing --------------------------------------------------------------------------------------------


def write_composite(value: Any) -> bytes:
    """Described list with its trailing nulls left out; raises ValueError naming the field that is wrong."""
    shape = SHAPE_OF[type(value)]
    items: list[bytes] = []
    filled = 0
    values = shape.get(value)
    for index in shape.mandatory:
        if values[index] is None:
            raise ValueError(f"expected {shape.name}.{shape.names[index]}, which is mandatory, found None")
    try:
        for item, write in zip(values, shape.writers, strict=True):
            if item is None:
                items.append(encoder.NULL)
            else:
                octets = write(item)
                items.append(octets)
                if octets is not encoder.NULL:
                    filled = len(items)
    except (StructError, OverflowError, ValueError) as error:
        raise ValueError(f"{shape.name}.{shape.names[len(items)]}: {error}") from None
    del items[filled:]
    return shape.prefix + encoder.write_items(filled, items)
