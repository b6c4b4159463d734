"""Path: a field of a message, parsed from its name."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from lightrail.amqp.composite import SHAPE_OF, Shape
from lightrail.amqp.decoder import Reader
from lightrail.amqp.sections import Header, Properties
from lightrail.filters.errors import FilterError, shown

FILTER_PATH_BYTES: Final[int] = 512
"""Bytes of the name of an application property or annotation in a filter or action."""
FILTER_PATHS_KEPT: Final[int] = 4_096
"""Parsed paths that a process caches."""
HEADER: Final = 0x70
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
FOLDED: Final = 0x174
"""Application properties whose names are compared without regard to case, for rules of Azure Service Bus."""

_SHAPES: Final[dict[int, tuple[str, Shape]]] = {
    HEADER: ("header", SHAPE_OF[Header]),
    PROPERTIES: ("properties", SHAPE_OF[Properties]),
}
_MAPS: Final = {
    "application-properties": APPLICATION_PROPERTIES,
    "message-annotations": MESSAGE_ANNOTATIONS,
}


class Path:
    """One field of a message. Two paths are equal when they mean the same field.

    `text` is the canonical name (`subject`, `priority`, `application-properties.colour`), `section` the
    descriptor code of its section, `name` the field or key. For a field of a list `index` is its position,
    `readers` has its constructors and `default` its value when it is absent; for an entry of a map `key` is
    the name's octets.
    """

    __slots__ = ("default", "index", "key", "name", "readers", "section", "text")

    def __init__(self, section: int, name: str) -> None:
        self.section = section
        self.name = name
        self.key = name.encode()
        self.index = -1
        self.default: Any = None
        self.readers: Sequence[Reader] = ()
        if section in _SHAPES:
            shape = _SHAPES[section][1]
            self.index = shape.names.index(name)
            self.readers = shape.readers[self.index]
            self.default = shape.declarations[self.index].default
            self.text = name
        elif section == FOLDED:
            self.key = name.lower().encode()
            self.text = f"application-properties~{name.lower()}"
        else:
            prefix = next(prefix for prefix, code in _MAPS.items() if code == section)
            self.text = f"{prefix}.{name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Path({self.text!r})"


_FIELDS: Final[dict[str, Path]] = {}
"""The fields of the header and the properties by all of their names."""
for _section, (_prefix, _shape) in _SHAPES.items():
    for _name in _shape.names:
        _FIELDS[_name] = _FIELDS[f"{_prefix}.{_name}"] = Path(_section, _name)

SUBJECT: Final = _FIELDS["subject"]
FIELD_NAMES: Final = tuple(dict.fromkeys(path.text for path in _FIELDS.values()))
"""Canonical names of the fields of the header and the properties."""


@lru_cache(maxsize=FILTER_PATHS_KEPT)
def entry(section: int, name: str) -> Path:
    """The path of an entry of application-properties or message-annotations; raises FilterError.

    `section` may be FOLDED.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise FilterError("text that UTF-8 can encode as a name", shown(name)) from None
    if not 0 < size <= FILTER_PATH_BYTES:
        raise FilterError(f"a name of 1 to {FILTER_PATH_BYTES} bytes", f"{size} bytes")
    return Path(section, name)


def parse_path(text: str) -> Path:
    """The path of a name: `subject`, `properties.subject`, `header.priority`,
    `application-properties.NAME`, `message-annotations.NAME`. Raises FilterError.
    """
    path = _FIELDS.get(text)
    if path is not None:
        return path
    prefix, dot, name = text.partition(".")
    section = _MAPS.get(prefix)
    if section is None or not dot:
        raise FilterError(
            f"one of {', '.join(FIELD_NAMES)}, application-properties.NAME, message-annotations.NAME",
            shown(text),
        )
    return entry(section, name)
