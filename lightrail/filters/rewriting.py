"""Rewriting of messages: fields are set or removed, and all other bytes stay as they are."""

from collections.abc import Mapping
from typing import Any, Final

from lightrail.amqp.decoder import check_filled, skip
from lightrail.amqp.encoder import NULL, write_items, write_map_data
from lightrail.amqp.values import unexpected
from lightrail.filters.path import APPLICATION_PROPERTIES, HEADER, PROPERTIES
from lightrail.filters.sections import LISTS, MAPS, open_items, open_section, section_end

Changes = dict[int, dict[Any, bytes | None]]
"""By section, by index of a field or octets of a key: the encoded new value, for an entry of a map behind its
key; None to remove it."""
_OF_FIELDS: Final = frozenset((HEADER, PROPERTIES))
"""Sections that are lists."""


def changed(message: bytes, changes: Changes) -> bytes:
    """The message with these changes; a missing section is added when a field of it is set.

    Raises one of MALFORMED for malformed sections before the body.
    """
    pieces: list[bytes] = []
    pending = sorted(changes)
    position = 0
    end = len(message)
    while position < end and pending:
        code, value_at = open_section(message, position)
        while pending and pending[0] < code:
            pieces.append(_section(pending[0], b"", 0, changes[pending.pop(0)]))
        if not pending or code > APPLICATION_PROPERTIES:
            break
        after = section_end(message, value_at)
        if pending[0] == code:
            pieces.append(_section(code, message, value_at, changes[pending.pop(0)]))
        else:
            pieces.append(message[position:after])
        position = after
    pieces.extend(_section(code, b"", 0, changes[code]) for code in pending)
    pieces.append(message[position:])
    return b"".join(pieces)


def _section(code: int, message: bytes, value_at: int, changes: Mapping[Any, bytes | None]) -> bytes:
    """The changed section; a new one if it is missing, or empty if it is missing and no field is set."""
    if not message and not any(changes.values()):
        return b""
    change = _changed_list if code in _OF_FIELDS else _changed_map
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
