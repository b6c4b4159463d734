"""One message as values of columns, by the complete decoder. This module defines the meaning of columns.

messages.py reads many messages at once with the same result, and leaves uncommon ones to this module.

Values of AMQP as text, for columns that hold values of any type (docs/formats/columns.md).
"""

import base64
import json
import math
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from lightrail.amqp import sections
from lightrail.amqp.decoder import Buffer
from lightrail.amqp.messages import read_body
from lightrail.amqp.sections import Properties, Sections
from lightrail.amqp.values import Array, Decimal32, Decimal64, Decimal128, DecodeError, Described, Timestamp
from lightrail.filters.sections import MALFORMED

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999
"""9999-12-31. Times after this, or before 0001-01-01, are shown as their milliseconds."""

_DECIMALS: Final = {Decimal32: (8, 101, 7), Decimal64: (10, 398, 16), Decimal128: (14, 6176, 34)}
"""Bits of the exponent, its bias, digits of the coefficient (IEEE 754-2008, 3.5.2)."""


def time_text(milliseconds: int) -> str:
    """ISO 8601 in UTC with milliseconds; the plain number for years without four digits."""
    if not TIME_MIN_MS <= milliseconds <= TIME_MAX_MS:
        return str(int(milliseconds))
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment:%H:%M:%S}".join((f"{moment.date().isoformat()}T", f".{moment.microsecond // 1000:03d}Z"))


def float_text(value: float) -> str:
    """The shortest digits from which this double can be read back; NaN, Infinity, -Infinity."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decimal_text(value: Decimal32 | Decimal64 | Decimal128) -> str:
    """The text of a decimal of IEEE 754 with a binary coefficient (types 1.6.13 to 1.6.15)."""
    width, bias, digits = _DECIMALS[type(value)]
    bits = 8 * len(value)
    number = int.from_bytes(value, "big")
    sign = number >> (bits - 1)
    combination = number >> (bits - 6) & 0x1F
    if combination == 0x1E:
        return "-Infinity" if sign else "Infinity"
    if combination == 0x1F:
        return "NaN"
    if combination >= 0x18:
        exponent = number >> (bits - 3 - width) & ((1 << width) - 1)
        coefficient = 4 << (bits - 3 - width) | number & ((1 << (bits - 3 - width)) - 1)
    else:
        exponent = number >> (bits - 1 - width) & ((1 << width) - 1)
        coefficient = number & ((1 << (bits - 1 - width)) - 1)
    if coefficient >= 10**digits:
        coefficient = 0
    return str(Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias)))


def text_of(value: Any) -> str | None:
    """A decoded value as text; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Timestamp):
        return time_text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return decimal_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """A value as JSON; values without a JSON type become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | Array):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Described):
        return {"descriptor": _plain(value.descriptor), "value": _plain(value.value)}
    if isinstance(value, int) and not isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return text_of(value)


def _key(key: Any) -> str:
    text = text_of(key)
    return "null" if text is None else text


PROPERTY_NAMES: Final = (
    *("message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type"),
    *("content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence"),
    "reply-to-group-id",
)
"""Fields of the properties section, in order (messaging 3.2.4)."""
TIMES: Final = frozenset({"absolute-expiry-time", "creation-time"})

OF_PROPERTIES: Final[dict[str, int]] = {
    "message_id": PROPERTY_NAMES.index("message-id"),
    "correlation_id": PROPERTY_NAMES.index("correlation-id"),
    "subject": PROPERTY_NAMES.index("subject"),
    "reply_to": PROPERTY_NAMES.index("reply-to"),
    "content_type": PROPERTY_NAMES.index("content-type"),
    "group_id": PROPERTY_NAMES.index("group-id"),
}
"""Columns that are one field of the properties, by the field's index."""

_FIELDS: Final = tuple(name.replace("-", "_") for name in PROPERTY_NAMES)


def read_columns(message: bytes, names: Collection[str]) -> tuple[dict[str, Any], bool]:
    """Values of these columns, and whether all of them could be decoded.

    The columns of a malformed section are null; if the sections can't be separated, all columns are null.
    A missing section is an empty map.
    """
    try:
        areas = sections.scan(message)
    except MALFORMED:
        return dict.fromkeys(names), False
    found: dict[str, Any] = {}
    whole = True
    for group, read in _GROUPS:
        wanted = group.intersection(names)
        if wanted:
            try:
                found |= read(message, areas, wanted)
            except MALFORMED:
                found |= dict.fromkeys(wanted)
                whole = False
    return found, whole


def _read_properties(message: bytes, areas: Sections, names: Collection[str]) -> dict[str, Any]:
    properties = Properties() if areas.properties is None else sections.decode_properties(message)
    texts = [_property(properties, field, name) for field, name in zip(_FIELDS, PROPERTY_NAMES, strict=True)]
    found: dict[str, Any] = {}
    for name in names:
        if name == "properties":
            found[name] = {
                known: text for known, text in zip(PROPERTY_NAMES, texts, strict=True) if text is not None
            }
        else:
            found[name] = texts[OF_PROPERTIES[name]]
    return found


def _property(properties: Properties, field: str, name: str) -> str | None:
    value = getattr(properties, field)
    if value is not None and name in TIMES:
        return time_text(value)
    return text_of(value)


def _read_application_properties(message: bytes, areas: Sections, names: Collection[str]) -> dict[str, Any]:
    return {"application_properties": _texts(sections.decode_application_properties(message))}


def _read_annotations(message: bytes, areas: Sections, names: Collection[str]) -> dict[str, Any]:
    return {"message_annotations": _texts(sections.decode_annotations(message))}


def _texts(items: dict[Any, Any]) -> dict[str, str | None]:
    """A map of texts. Keys must have distinct texts and none may be null, or the map is malformed."""
    found: dict[str, str | None] = {}
    for key, value in items.items():
        name = text_of(key)
        if name is None or name in found:
            raise DecodeError(f"expected keys with distinct texts, found {name!r}")
        found[name] = text_of(value)
    return found


def body_of(message: Buffer) -> bytes | None:
    """The body as bytes: the contents of data sections, the octets of a text or binary, the text of any other
    value, or the text of all items of sequences as one list; None without a body, and for null."""
    body = read_body(message)
    if body is None or (isinstance(body, bytes) and type(body) is bytes):
        return body
    text = text_of(body)
    return None if text is None else text.encode()


def _read_body(message: bytes, areas: Sections, names: Collection[str]) -> dict[str, Any]:
    return {"body": body_of(message)}


_GROUPS: Final[
    tuple[tuple[frozenset[str], Callable[[bytes, Sections, Collection[str]], dict[str, Any]]], ...]
] = (
    (frozenset({*OF_PROPERTIES, "properties"}), _read_properties),
    (frozenset({"application_properties"}), _read_application_properties),
    (frozenset({"message_annotations"}), _read_annotations),
    (frozenset({"body"}), _read_body),
)
