"""Actions of subscriptions: they set or remove fields of a message, and keep all other bytes.

    {"set": {"subject": "copied", "application-properties.hops": 1}, "remove": ["reply-to"]}
    {"set": {"subject": {"parameter": "@to"}}, "parameters": {"@to": "copied"}}

An action may change `subject`, `reply-to`, `to`, `content-type`, `correlation-id` and `group-id` of the
properties, application properties, and message annotations whose names begin with `x-opt-`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightrail.amqp.encoder import write_string, write_symbol, write_value
from lightrail.amqp.values import ULong
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.parameters import check_parameters, value_of
from lightrail.filters.path import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, PROPERTIES, Path, parse_path
from lightrail.filters.rewriting import Changes, changed
from lightrail.filters.sections import MALFORMED

ACTION_ENTRIES_MAX: Final[int] = 64
"""Fields that one action sets or removes."""
CHANGEABLE: Final = ("subject", "reply-to", "to", "content-type", "correlation-id", "group-id")
ANNOTATION_PREFIX: Final = "x-opt-"

_INTEGER_MIN: Final = -(1 << 63)
_INTEGER_MAX: Final = (1 << 63) - 1
_ULONG_MAX: Final = (1 << 64) - 1


@dataclass(slots=True, eq=False, repr=False)
class Action:
    """A compiled action; `spec` is the JSON it was made from."""

    spec: Mapping[str, Any]
    _changes: Changes
    weight: int = 0
    """It evaluates nothing for a message."""

    def apply(self, message: bytes) -> bytes:
        """The changed message; all other sections, fields and entries keep their bytes.

        A missing section is added when a field of it is set. A message with malformed sections before the
        body is returned unchanged. Never raises.
        """
        try:
            return changed(message, self._changes)
        except MALFORMED:
            return message

    def __repr__(self) -> str:
        return f"Action({self.spec!r})"


# --- compiling ------------------------------------------------------------------------------------------


def compile_action(spec: Mapping[str, Any]) -> Action:
    """Compile the JSON of an action. Raises FilterError with the expected and found values."""
    if not isinstance(spec, Mapping):
        raise FilterError("an object with set or remove", shown(spec))
    unknown = next((key for key in spec if key not in ("set", "remove", "parameters")), None)
    if unknown is not None:
        raise FilterError("no other keys than set, remove and parameters", shown(unknown))
    parameters = check_parameters(spec["parameters"]) if "parameters" in spec else {}
    values = spec.get("set", {})
    removed = spec.get("remove", [])
    if not isinstance(values, Mapping):
        raise FilterError("an object of paths and values", shown(values), part="set")
    if isinstance(removed, str) or not isinstance(removed, Sequence):
        raise FilterError("a list of paths", shown(removed), part="remove")
    count = len(values) + len(removed)
    if not 0 < count <= ACTION_ENTRIES_MAX:
        raise FilterError(f"1 to {ACTION_ENTRIES_MAX} fields to set or remove", str(count))
    changes: Changes = {}
    for text, value in values.items():
        path = _changeable(text, "set")
        if _field(path) in changes.get(path.section, {}):
            raise FilterError("each field once", shown(text), part="set")
        try:
            constant = value_of(value, parameters)
        except FilterError as error:
            raise error.within(f"set.{path.text}") from None
        _change(changes, path, _encoded(path, constant))
    for text in removed:
        path = _changeable(text, "remove")
        if _field(path) in changes.get(path.section, {}):
            raise FilterError("each field once", shown(path.text), part="remove")
        _change(changes, path, None)
    return Action(dict(spec), changes)


def _field(path: Path) -> int | bytes:
    """The index of a field of the properties, else the key in a map."""
    return path.index if path.section == PROPERTIES else path.key


def _change(changes: Changes, path: Path, encoded: bytes | None) -> None:
    changes.setdefault(path.section, {})[_field(path)] = encoded


def _changeable(text: Any, part: str) -> Path:
    try:
        path = parse_path(text if isinstance(text, str) else "")
    except FilterError as error:
        raise error.within(part) from None
    if path.section == APPLICATION_PROPERTIES or path.text in CHANGEABLE:
        return path
    is_ours = path.name.startswith(ANNOTATION_PREFIX) and path.name.isascii()
    if path.section == MESSAGE_ANNOTATIONS and is_ours:
        return path
    raise FilterError(
        f"one of {', '.join(CHANGEABLE)}, application-properties.NAME, "
        f"message-annotations.{ANNOTATION_PREFIX}NAME",
        shown(path.text),
        part=part,
    )


def _encoded(path: Path, value: Any) -> bytes:
    """A property encoded, or a pair of key and value."""
    if path.section == PROPERTIES:
        return _PROPERTY_WRITERS.get(path.name, _write_string)(path, value)
    key = write_string(path.name) if path.section == APPLICATION_PROPERTIES else write_symbol(path.name)
    if not isinstance(value, str | bool | int | float):
        raise _refusal(path, "a string, a number or a boolean (remove deletes a field)", value)
    if type(value) is int and not _INTEGER_MIN <= value <= _INTEGER_MAX:
        raise _refusal(path, "a whole number of at most 64 bits", value)
    return key + (_write_string(path, value) if isinstance(value, str) else write_value(value))


def _refusal(path: Path, expected: str, value: Any) -> FilterError:
    return FilterError(expected, shown(value), part=f"set.{path.text}")


def _write_string(path: Path, value: Any) -> bytes:
    if not isinstance(value, str):
        raise _refusal(path, "a string", value)
    try:
        return write_string(value)
    except UnicodeEncodeError:
        raise _refusal(path, "text that UTF-8 can encode", value) from None


def _write_symbol(path: Path, value: Any) -> bytes:
    if not isinstance(value, str) or not value.isascii():
        raise _refusal(path, "a string of ASCII", value)
    return write_symbol(value)


def _write_message_id(path: Path, value: Any) -> bytes:
    if type(value) is int:
        if not 0 <= value <= _ULONG_MAX:
            raise _refusal(path, "a string, or a whole number of 64 bits without a sign", value)
        return write_value(ULong(value))
    return _write_string(path, value)


_PROPERTY_WRITERS: Final[dict[str, Callable[[Path, Any], bytes]]] = {
    "content-type": _write_symbol,
    "correlation-id": _write_message_id,
}
