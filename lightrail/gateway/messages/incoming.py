"""Incoming: a delivered message as an HTTP answer, and as JSON for browsing.

Data sections are the body unchanged; an amqp-value string is text/plain. Any other body, and a message that
can't be decoded, is the whole encoded message as application/vnd.lightrail.amqp.
"""

import base64
import json
import uuid
from typing import Any, Final
from urllib.parse import quote

from lightrail.amqp.decoder import read_value
from lightrail.amqp.sections import (
    Header,
    Properties,
    decode_annotations,
    decode_application_properties,
    decode_header,
    decode_properties,
    scan,
    with_header,
)
from lightrail.amqp.values import DecodeError, Described, Symbol, Timestamp
from lightrail.gateway.bodies import AMQP, rfc3339

PROPERTY_HEADER: Final = "LightRail-Property-"
_DATA, _SEQUENCE, _VALUE = 0x75, 0x76, 0x77
_KIND: Final = {"amqp:data:binary": _DATA, "amqp:amqp-sequence:list": _SEQUENCE, "amqp:amqp-value:*": _VALUE}
_NAMES: Final = (
    ("message_id", "MessageId"),
    ("correlation_id", "CorrelationId"),
    ("subject", "Subject"),
    ("to", "To"),
    ("reply_to", "ReplyTo"),
    ("reply_to_group_id", "ReplyToGroupId"),
    ("group_id", "GroupId"),
    ("group_sequence", "GroupSequence"),
    ("content_type", "ContentType"),
    ("content_encoding", "ContentEncoding"),
    ("creation_time", "CreationTimeUtc"),
    ("absolute_expiry_time", "AbsoluteExpiryTimeUtc"),
)


def answer(
    message: bytes, message_format: int, attempts: int, *, whole: bool
) -> tuple[dict[str, Any], list[tuple[str, str]], str, bytes]:
    """(BrokerProperties, headers of application properties, content type, body) of a message.

    Args:
        attempts: failed deliveries counted by this broker, in addition to those in the header.
        whole: the encoded message becomes the body in any case.
    """
    if message_format:
        return {"MessageFormat": message_format, "DeliveryCount": attempts}, [], AMQP, message
    try:
        header = decode_header(message)
        properties = decode_properties(message)
        own = decode_application_properties(message)
        annotations = decode_annotations(message)
        kind, values = (0, []) if whole else _body(message)
    except (DecodeError, ValueError):
        return {"DeliveryCount": attempts}, [], AMQP, message
    shown = _shown(header, properties, attempts)
    if annotations:
        shown["Annotations"] = {str(key): _json(value) for key, value in annotations.items()}
    headers = [(_header_name(str(name)), json.dumps(_json(value))) for name, value in own.items()]
    if kind == _DATA:
        body = bytes(values[0]) if len(values) == 1 else b"".join(values)
        return shown, headers, _header_text(properties.content_type or "application/octet-stream"), body
    if kind == _VALUE and type(values[0]) is str:
        content_type = _header_text(properties.content_type or "text/plain; charset=utf-8")
        return shown, headers, content_type, values[0].encode()
    if attempts:
        header.delivery_count += attempts
        message = with_header(message, header)
    return shown, headers, AMQP, message


def as_json(message: bytes, message_format: int, attempts: int) -> dict[str, Any]:
    """A message for lists: its sections decoded, the body as text, as a value, or in base64."""
    try:
        if message_format:
            raise DecodeError(f"expected message-format 0, found {message_format}")
        header = decode_header(message)
        properties = decode_properties(message)
        own = decode_application_properties(message)
        annotations = decode_annotations(message)
        kind, values = _body(message)
    except (DecodeError, ValueError) as error:
        return {
            "error": str(error),
            "body": {"kind": "unreadable", "base64": base64.b64encode(message).decode()},
        }
    body: dict[str, Any]
    if kind == _DATA:
        data = b"".join(values)
        try:
            body = {"kind": "data", "text": data.decode()}
        except UnicodeDecodeError:
            body = {"kind": "data", "base64": base64.b64encode(data).decode()}
    elif kind == _VALUE and type(values[0]) is str:
        body = {"kind": "amqp-value", "text": values[0]}
    else:
        name = {_VALUE: "amqp-value", _SEQUENCE: "amqp-sequence"}.get(kind, "none")
        body = {"kind": name, "value": _json(values[0] if kind == _VALUE else values)}
    return {
        "header": {
            "durable": header.durable,
            "priority": header.priority,
            "ttl": header.ttl,
            "delivery_count": header.delivery_count + attempts,
        },
        "message_annotations": {str(key): _json(value) for key, value in annotations.items()},
        "properties": {
            name.replace("_", "-"): _json(value)
            for name in Properties.__slots__
            if (value := getattr(properties, name)) is not None
        },
        "application_properties": {str(key): _json(value) for key, value in own.items()},
        "body": body,
    }


def _body(message: bytes) -> tuple[int, list[Any]]:
    """(code of its sections, their values); (0, []) for a message without a body."""
    area = scan(message).body
    if area is None:
        return 0, []
    position, end = area
    values = []
    code = 0
    while position < end:
        section, position = read_value(message, position, end, 0)
        assert isinstance(section, Described), "scan() accepts only described sections"
        descriptor = section.descriptor
        code = _KIND[descriptor] if isinstance(descriptor, Symbol) else int(descriptor)
        values.append(section.value)
    return code, values


def _shown(header: Header, properties: Properties, attempts: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"DeliveryCount": header.delivery_count + attempts, "Priority": header.priority}
    if header.durable:
        shown["Durable"] = True
    if header.ttl is not None:
        shown["TimeToLive"] = header.ttl / 1000
    for attribute, name in _NAMES:
        value = getattr(properties, attribute)
        if value is not None:
            shown[name] = _json(value)
    return shown


def _header_name(name: str) -> str:
    """A header's name; characters that are not allowed in it are percent-encoded."""
    return PROPERTY_HEADER + quote(name, safe="!#$&'*+^`|")


def _header_text(text: str) -> str:
    """A sender's text as a header's value; percent-encoded where it would break the header."""
    return text if text.isprintable() and text.isascii() else quote(text, safe="/;=+ ")


def _json(value: Any) -> Any:
    """An AMQP value as JSON: binary in base64, times as in RFC 3339, text where JSON has no type."""
    match value:
        case None | bool():
            return value
        case Timestamp():
            return _time(value)
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            # JSON can't express infinity and not-a-number.
            return float(value) if value - value == 0 else str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case uuid.UUID():
            return str(value)
        case dict():
            return {str(_json(key)): _json(each) for key, each in value.items()}
        case list() | tuple():
            return [_json(each) for each in value]
        case Described():
            return {"descriptor": _json(value.descriptor), "value": _json(value.value)}
    return str(value)


def _time(at_ms: int) -> str | int:
    try:
        return rfc3339(at_ms)
    except (ValueError, OverflowError, OSError):
        return int(at_ms)
