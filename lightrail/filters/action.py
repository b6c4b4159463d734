"""Actions of subscriptions: they set or remove fields of a message, and keep all other bytes.

    {"set": {"subject": "copied", "application-properties.hops": 1}, "remove": ["reply-to"]}
    {"set": {"subject": {"parameter": "@to"}}, "parameters": {"@to": "copied"}}

An action may change `subject`, `reply-to`, `to`, `content-type`, `correlation-id` and `group-id` of the
properties, application properties, and message annotations whose names begin with `x-opt-`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightrail.amqp.decoder import check_filled, skip
from lightrail.amqp.encoder import (
    NULL,
    write_items,
    write_map_data,
    write_string,
    write_symbol,
    write_value,
)
from lightrail.amqp.values import ULong, unexpected
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.parameters import check_parameters, value_of
from lightrail.filters.path import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, PROPERTIES, Path, parse_path
from lightrail.filters.sections import LISTS, MALFORMED, MAPS, open_items, open_section, section_end

ACTION_ENTRIES_MAX: Final[int] = 64
"""Fields that one action sets or removes."""
CHANGEABLE: Final = ("subject", "reply-to", "to", "content-type", "correlation-id", "group-id")
ANNOTATION_PREFIX: Final = "x-opt-"

_INTEGER_MIN: Final = -(1 << 63)
_INTEGER_MAX: Final = (1 << 63) - 1
_ULONG_MAX: Final = (1 << 64) - 1

Changes = dict[int, dict[Any, bytes | None]]
"""By section, by index of a property or octets of a key: the encoded new value, None to remove it."""


@dataclass(slots=True, eq=False, repr=False)
class Action:
    """A compiled action; `spec` is the JSON it was made from."""

    spec: Mapping[str, Any]
    _changes: Changes

    def apply(self, message: bytes) -> bytes:
        """The changed message; all other sections, fields and entries keep their bytes.

        A missing section is added when a field of it is set. A message with malformed sections before the
        body is returned unchanged. Never raises.
        """
        try:
            return self._changed(message)
        except MALFORMED:
            return message

    def _changed(self, message: bytes) -> bytes:
        pieces: list[bytes] = []
        pending = sorted(self._changes)
        position = 0
        end = len(message)
        while position < end and pending:
            code, value_at = open_section(message, position)
            while pending and pending[0] < code:
                pieces.append(_section(pending[0], b"", 0, self._changes[pending.pop(0)]))
            if not pending or code > APPLICATION_PROPERTIES:
                break
            after = section_end(message, value_at)
            if pending[0] == code:
                pieces.append(_section(code, message, value_at, self._changes[pending.pop(0)]))
            else:
                pieces.append(message[position:after])
            position = after
        pieces.extend(_section(code, b"", 0, self._changes[code]) for code in pending)
        pieces.append(message[position:])
        return b"".join(pieces)

    def __repr__(self) -> str:
        return f"Action({self.spec!r})"


def _section(code: int, message: bytes, value_at: int, changes: Mapping[Any, bytes | None]) -> bytes:
    """The changed section; a new one if it is missing, or empty if it is missing and no field is set."""
    if not message and not any(changes.values()):
        return b""
    change = _changed_list if code == PROPERTIES else _changed_map
    return bytes((0x00, 0x53, code)) + change(message, value_at, changes)


def _changed_list(message: bytes, value_at: int, changes: Mapping[int, bytes | None]) -> bytes:
    fields: list[bytes] = []
    if message:
        if message[value_at] not in LISTS:
            raise unexpected("a list", f"{message[value_at]:#04x}", value_at)
        count, position, stop = open_items(message, value_at)
        for _ in range(count):
            after = skip(message, position, stop)
            fields.append(message[position:after])
            position = after
        check_filled("properties", position, stop)
    for index, value in changes.items():
        if value is not None and index >= len(fields):
            fields.extend([NULL] * (index + 1 - len(fields)))
        if index < len(fields):
            fields[index] = NULL if value is None else value
    return write_items(len(fields), fields)


def _changed_map(message: bytes, value_at: int, changes: Mapping[bytes, bytes | None]) -> bytes:
    pairs: list[bytes] = []
    written: set[bytes] = set()
    if message:
        if message[value_at] not in MAPS:
            raise unexpected("a map", f"{message[value_at]:#04x}", value_at)
        count, position, stop = open_items(message, value_at)
        if count % 2:
            raise unexpected("an even count of items in a map", str(count), value_at)
        for _ in range(count // 2):
            value_from = skip(message, position, stop)
            after = skip(message, value_from, stop)
            key = _key(message[position:value_from])
            if key is None or key not in changes:
                pairs.append(message[position:after])
            else:
                value = changes[key]
                if value is not None and key not in written:
                    # At the position of the former value, with the original key.
                    pairs.append(message[position:value_from] + value[_key_width(value) :])
                    written.add(key)
            position = after
        check_filled("the section", position, stop)
    pairs.extend(pair for key, pair in changes.items() if pair is not None and key not in written)
    return write_map_data(2 * len(pairs), b"".join(pairs))


def _key_width(pair: bytes) -> int:
    """Octets of the key of an encoded pair."""
    return skip(pair, 0, len(pair))


def _key(encoded: bytes) -> bytes | None:
    """The octets of a key that is a string or a symbol, None for any other."""
    if encoded[0] in (0xA1, 0xA3):
        return encoded[2:]
    return encoded[5:] if encoded[0] in (0xB1, 0xB3) else None


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
