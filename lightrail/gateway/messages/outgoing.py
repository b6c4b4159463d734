"""Outgoing: the AMQP message of an HTTP request.

The body becomes one data section, or with `?body=text` an amqp-value string; `BrokerProperties` holds what
AMQP has in header and properties, `LightRail-Property-NAME` headers are the application properties. A body of
type application/vnd.lightrail.amqp is the message itself and is sent unchanged.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from lightrail.amqp.composite import write_composite
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, Properties, attributes, encode_header, scan
from lightrail.amqp.values import DecodeError, Long, Symbol, Timestamp
from lightrail.gateway.bodies import milliseconds
from lightrail.gateway.errors import ProblemError, invalid
from lightrail.model.policy_fields import SECONDS_MAX

PROPERTY: Final = "lightrail-property-"
TTL_MS_MAX: Final = (1 << 32) - 1
"""A ttl is a uint of milliseconds (messaging 3.2.1)."""
_OPEN: Final = b"\x00\x53"
_ANNOTATIONS, _APPLICATION, _DATA, _VALUE = (_OPEN + bytes((code,)) for code in (0x72, 0x74, 0x75, 0x77))


class Outgoing(NamedTuple):
    """A message to send to a shard."""

    message: bytes
    durable: bool
    priority: int
    expires_at_ms: int
    """0: the message does not expire."""
    message_format: int = 0


@dataclass(slots=True, eq=False, repr=False)
class _Wanted:
    """Sections of the message from BrokerProperties."""

    header: Header = field(default_factory=lambda: Header(durable=True, priority=4))
    properties: Properties = field(default_factory=Properties)
    annotations: dict[Symbol, Any] = field(default_factory=dict)


def as_it_is(message: bytes, now_ms: int) -> Outgoing:
    """A message that is encoded already. Raises ProblemError: the bytes are no AMQP message."""
    try:
        sections = scan(message)
        if not message or sections.body is None:
            raise DecodeError("expected a message with a body, found none")
        durable, priority, ttl, expiry = attributes(message)
    except DecodeError as error:
        raise ProblemError(422, f"the body is no AMQP message: {error}") from None
    expires = now_ms + ttl if ttl is not None else 0
    if expiry is not None:
        expires = max(1, min(expires, expiry) if expires else expiry)
    return Outgoing(bytes(message), durable, priority, expires)


def from_request(
    body: bytes,
    content_type: str,
    broker_properties: str | None,
    own: Mapping[str, Any],
    *,
    text: bool,
    now_ms: int,
) -> Outgoing:
    """The message of a request.

    Args:
        content_type: of the request, with its parameters; empty without one.
        broker_properties: the header's JSON text.
        own: application properties, see `own_properties`.
        text: the body is UTF-8 and becomes an amqp-value string.
    """
    wanted = _Wanted()
    _apply(wanted, _decoded(broker_properties) if broker_properties is not None else {})
    if wanted.properties.content_type is None and content_type and not text:
        wanted.properties.content_type = _symbol("Content-Type", content_type)
    return _encode(wanted, own, body, text, now_ms)


def from_json(value: Any, now_ms: int) -> Outgoing:
    """One message of a batch: `{"Body": TEXT, "BrokerProperties": {...}, "UserProperties": {...}}`."""
    known = ("Body", "BrokerProperties", "UserProperties")
    if not isinstance(value, dict) or any(key not in known for key in value):
        raise ProblemError(
            422, f"expected objects with {', '.join(known)} in a batch, found {str(value)[:80]!a}"
        )
    wanted = _Wanted()
    _apply(wanted, _object("BrokerProperties", value.get("BrokerProperties", {})))
    own = {
        key: _simple(key, each)
        for key, each in _object("UserProperties", value.get("UserProperties", {})).items()
    }
    body = value.get("Body", "")
    if isinstance(body, str):
        data = body.encode(errors="replace")
        if wanted.properties.content_type is None:
            wanted.properties.content_type = Symbol("text/plain")
    else:
        data = json.dumps(body).encode()
        if wanted.properties.content_type is None:
            wanted.properties.content_type = Symbol("application/json")
    return _encode(wanted, own, data, False, now_ms)


def own_properties(headers: Mapping[str, str]) -> dict[str, Any]:
    """Application properties from the LightRail-Property-NAME headers of a request.

    The name is percent-decoded. A value is JSON (a string, a number, true, false, null), or else a plain
    string.
    """
    found = {}
    for header, text in headers.items():
        if header.lower().startswith(PROPERTY):
            name = unquote(header[len(PROPERTY) :])
            try:
                value = json.loads(text)
            except ValueError:
                value = text
            found[name] = _simple(name, value)
    return found


def _encode(wanted: _Wanted, own: Mapping[str, Any], body: bytes, text: bool, now_ms: int) -> Outgoing:
    header = wanted.header
    parts = [encode_header(header)]
    if wanted.annotations:
        parts.append(_ANNOTATIONS + encode(wanted.annotations))
    if wanted.properties != _NO_PROPERTIES:
        parts.append(write_composite(wanted.properties))
    if own:
        parts.append(_APPLICATION + encode(dict(own)))
    if text:
        try:
            parts.append(_VALUE + encode(body.decode()))
        except UnicodeDecodeError as error:
            raise ProblemError(422, f"?body=text requires UTF-8, the body is not UTF-8: {error}") from None
    else:
        parts.append(_DATA + encode(body))
    expires = now_ms + header.ttl if header.ttl is not None else 0
    return Outgoing(b"".join(parts), bool(header.durable), header.priority, expires)


_NO_PROPERTIES: Final = Properties()


# --- BrokerProperties ---------------------------------------------------------------------------------


def _decoded(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProblemError(
            400, f"the header BrokerProperties is no JSON: {error}", field="BrokerProperties", found=text[:80]
        ) from None
    return _object("BrokerProperties", value)


def _object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(field, value, "a JSON object")
    return value


def _apply(wanted: _Wanted, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        setter = _SETTERS.get(key)
        if setter is None:
            raise invalid(
                f"BrokerProperties.{key}", value, "no such property; there are " + ", ".join(_SETTERS)
            )
        if value is not None:
            setter(wanted, key, value)


def _simple(name: str, value: Any) -> Any:
    if isinstance(value, (dict, list)):
        raise invalid(f"application property {name}", value, "a string, a number, true, false or null")
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(1 << 63) <= value < 1 << 63:
            raise invalid(f"application property {name}", value, "a number of 64 bits")
        return Long(value)
    return _text(name, value) if isinstance(value, str) else value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(key, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(key, ascii(value), "a string that UTF-8 can encode") from None
    return value


def _symbol(key: str, value: Any) -> Symbol:
    text = _text(key, value)
    if not text.isascii() or len(text) > 1024:
        raise invalid(key, value, "at most 1024 characters of ASCII")
    return Symbol(text)


def _seconds(key: str, value: Any, most: float) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise invalid(key, value, f"seconds from 0 to {most:g}")
    return round(value * 1000)


def _property(
    attribute: str, convert: Callable[[str, Any], Any] = _text
) -> Callable[[_Wanted, str, Any], None]:
    def setter(wanted: _Wanted, key: str, value: Any) -> None:
        setattr(wanted.properties, attribute, convert(key, value))

    return setter


def _durable(wanted: _Wanted, key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise invalid(key, value, "true or false")
    wanted.header.durable = value


def _priority(wanted: _Wanted, key: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value <= 9:
        raise invalid(key, value, "a whole number from 0 to 9")
    wanted.header.priority = value


def _time_to_live(wanted: _Wanted, key: str, value: Any) -> None:
    wanted.header.ttl = _seconds(key, value, TTL_MS_MAX / 1000)


def _scheduled(wanted: _Wanted, key: str, value: Any) -> None:
    try:
        at_ms = milliseconds(_text(key, value))
    except ValueError:
        raise invalid(key, value, "a time such as 2030-01-31T12:00:00Z") from None
    wanted.annotations[Symbol("x-opt-delivery-time")] = Timestamp(at_ms)


def _delay(wanted: _Wanted, key: str, value: Any) -> None:
    wanted.annotations[Symbol("x-opt-delivery-delay")] = Long(_seconds(key, value, SECONDS_MAX))


_SETTERS: Final[Mapping[str, Callable[[_Wanted, str, Any], None]]] = {
    "MessageId": _property("message_id"),
    "CorrelationId": _property("correlation_id"),
    "Subject": _property("subject"),
    "Label": _property("subject"),
    "To": _property("to"),
    "ReplyTo": _property("reply_to"),
    "ReplyToGroupId": _property("reply_to_group_id"),
    "GroupId": _property("group_id"),
    "SessionId": _property("group_id"),
    "ContentType": _property("content_type", _symbol),
    "ContentEncoding": _property("content_encoding", _symbol),
    "Durable": _durable,
    "Priority": _priority,
    "TimeToLive": _time_to_live,
    "ScheduledEnqueueTimeUtc": _scheduled,
    "DeliveryDelay": _delay,
}
BROKER_PROPERTIES: Final = tuple(_SETTERS)
