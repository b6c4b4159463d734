"""One message as values of columns, by the complete decoder. This module defines the meaning of columns.

messages.py reads many messages at once with the same result, and leaves uncommon ones to this module.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from lightrail.amqp import sections
from lightrail.amqp.decoder import Buffer
from lightrail.amqp.messages import read_body
from lightrail.amqp.sections import Properties, Sections
from lightrail.amqp.values import DecodeError
from lightrail.filters.sections import MALFORMED
from lightrail.spark.decoding.texts import text_of, time_text

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
