"""Messages: all sections of messaging 3.2 as plain Python values, encoded and decoded on demand.

A message never changes: a received one is sent on with the same bytes, and `replace` makes another one.
"""

import dataclasses
from collections.abc import Mapping
from struct import error as StructError  # noqa: N812
from types import MappingProxyType
from typing import Any, Final, Unpack

from lightrail.amqp import sections
from lightrail.amqp.composite import write_composite
from lightrail.amqp.decoder import read_value
from lightrail.amqp.encoder import write_binary, write_items, write_map, write_value
from lightrail.amqp.sections import PRIORITY_DEFAULT, Area, Header, Properties, Sections
from lightrail.amqp.values import Decimal32, Decimal64, Decimal128, DecodeError, Symbol
from lightrail.client.bodies import Data, Sequence, body_sections, read_body
from lightrail.client.keywords import MessageChanges, MessageId

_DURABLE: Final = sections.encode_header(Header(durable=True))
_DELIVERY_ANNOTATIONS: Final = b"\x00\x53\x71"
_ANNOTATIONS: Final = b"\x00\x53\x72"
_APPLICATION: Final = b"\x00\x53\x74"
_DATA: Final = b"\x00\x53\x75"
_SEQUENCE: Final = b"\x00\x53\x76"
_VALUE: Final = b"\x00\x53\x77"
_FOOTER: Final = b"\x00\x53\x78"
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class Message:
    """One message.

    Args:
        body: bytes become a data section, `Sequence` and `Data` several sections, other values an amqp-value:
            None, text, numbers, booleans, uuid.UUID, lists, dicts, and the types of `lightrail.amqp.types`.
        id, correlation_id: a text, an integer from 0 on, a UUID, or bytes.
        ttl: seconds that it may wait in a queue, in milliseconds on the wire.
        expires_at, created_at: seconds since the Unix epoch.
        durable: the broker stores it durably.
        priority: 0 to 255; 4 is the default of the specification.
        properties: application-properties, simple values by str.
        annotations, delivery_annotations, footer: values by symbol, or by str, which is encoded as a symbol.
    """

    __slots__ = (
        "_annotations",
        "_application",
        "_areas",
        "_body",
        "_body_sections",
        "_delivery_annotations",
        "_footer",
        "_header",
        "_payload",
        "_properties",
    )

    _payload: bytes

    def __init__(
        self,
        body: Any = None,
        *,
        id: MessageId | None = None,
        subject: str | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        correlation_id: MessageId | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        group: str | None = None,
        group_sequence: int | None = None,
        reply_to_group: str | None = None,
        user_id: bytes | None = None,
        expires_at: float | None = None,
        created_at: float | None = None,
        durable: bool = True,
        priority: int = PRIORITY_DEFAULT,
        ttl: float | None = None,
        properties: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
        delivery_annotations: Mapping[str, Any] | None = None,
        footer: Mapping[str, Any] | None = None,
    ) -> None:
        self._body = body
        self._body_sections: bytes | None = None
        self._header = Header(durable, priority, None if ttl is None else _milliseconds("ttl", ttl), False, 0)
        self._properties = Properties(
            id,
            user_id,
            to,
            subject,
            reply_to,
            correlation_id,
            None if content_type is None else Symbol(content_type),
            None if content_encoding is None else Symbol(content_encoding),
            None if expires_at is None else _milliseconds("expires_at", expires_at),
            None if created_at is None else _milliseconds("created_at", created_at),
            group,
            group_sequence,
            reply_to_group,
        )
        self._application = properties or _NOTHING
        self._annotations = _symbols(annotations)
        self._delivery_annotations = _symbols(delivery_annotations)
        self._footer = _symbols(footer)

    @classmethod
    def decode(cls, payload: bytes) -> "Message":
        """A message from its encoded form; each section is decoded when it is first used."""
        message = cls.__new__(cls)
        message._payload = payload
        return message

    def encode(self) -> bytes:
        """All sections, in their order; of a received message, the same bytes.

        Raises TypeError or ValueError for a value that has no AMQP type.
        """
        try:
            return self._payload
        except AttributeError:
            pass
        try:
            payload = self._payload = self._encoded()
        except (StructError, OverflowError) as error:
            raise ValueError(f"expected values within the range of their AMQP types: {error}") from None
        return payload

    def _encoded(self) -> bytes:
        header = self._header
        plain = header.ttl is None and header.priority == PRIORITY_DEFAULT and not header.delivery_count
        parts = [_DURABLE if header.durable and plain else b"" if plain else sections.encode_header(header)]
        if self._delivery_annotations:
            parts.append(_DELIVERY_ANNOTATIONS + write_map(self._delivery_annotations))
        if self._annotations:
            parts.append(_ANNOTATIONS + write_map(self._annotations))
        if self._properties != _NO_PROPERTIES:
            parts.append(write_composite(self._properties))
        if self._application:
            parts.append(_APPLICATION + write_map(self._application))
        body = self._body
        if self._body_sections is not None:
            parts.append(self._body_sections)
        elif isinstance(body, bytes | bytearray | memoryview) and not isinstance(body, _DECIMALS):
            parts.append(_DATA + write_binary(bytes(body)))
        elif isinstance(body, Data):
            parts.extend(_DATA + write_binary(each) for each in body or (b"",))
        elif isinstance(body, Sequence):
            lists = [each if isinstance(each, list | tuple) else [each] for each in body] or [[]]
            parts.extend(_SEQUENCE + write_items(len(each), map(write_value, each)) for each in lists)
        else:
            parts.append(_VALUE + write_value(body))
        if self._footer:
            parts.append(_FOOTER + write_map(self._footer))
        return b"".join(parts)

    def replace(self, **changes: Unpack[MessageChanges]) -> "Message":
        """A copy with these arguments of the constructor changed; its delivery-count is 0.

        Raises DecodeError for a malformed received message.
        """
        made = Message(**changes)
        # Sections are copied as received: the attributes alone would lose described addresses, times before
        # 1970, and whether bytes are a data section or an amqp-value.
        header = {name: getattr(self._header, name) for name in _HEADER if name not in changes}
        made._header = dataclasses.replace(made._header, **header)
        kept = [field for name, field in _FIELDS.items() if name not in changes]
        fields = {field: getattr(self._properties, field) for field in kept}
        made._properties = dataclasses.replace(made._properties, **fields)
        if "body" not in changes:
            made._body, made._body_sections = self._body, self._body_sections
        for name, section in _MAPS.items():
            if name not in changes:
                setattr(made, section, getattr(self, section))
        return made

    # --- sections, read once --------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Decodes the section of an attribute of a received message."""
        read = _READERS.get(name)
        if read is None:
            raise AttributeError(name)
        value = read(self)
        setattr(self, name, value)
        return value

    def _map(self, area: Area | None) -> Mapping[Any, Any]:
        if area is None:
            return _NOTHING
        payload = self._payload
        _, value_at = read_value(payload, area[0] + 1, area[1], 1)
        found, _ = read_value(payload, value_at, area[1], 0)
        return MappingProxyType(found)

    # --- fields ---------------------------------------------------------------------------------------

    @property
    def body(self) -> Any:
        """Bytes of a data section, the value of an amqp-value, `Data` or `Sequence`; None without a body."""
        return self._body

    @property
    def id(self) -> MessageId | None:
        """message-id."""
        return self._properties.message_id

    @property
    def subject(self) -> str | None:
        """Subject, by which filters and routers may choose (3.2.4)."""
        return self._properties.subject

    @property
    def to(self) -> str | None:
        """Address of the node that the message is sent to."""
        return _address(self._properties.to)

    @property
    def reply_to(self) -> str | None:
        """Address of the node for answers."""
        return _address(self._properties.reply_to)

    @property
    def correlation_id(self) -> MessageId | None:
        """Id of a related message, as that of the request in an answer."""
        return self._properties.correlation_id

    @property
    def content_type(self) -> str | None:
        """MIME type of a body of bytes."""
        found = self._properties.content_type
        return None if found is None else str(found)

    @property
    def content_encoding(self) -> str | None:
        """Encoding of a body of bytes, such as gzip."""
        found = self._properties.content_encoding
        return None if found is None else str(found)

    @property
    def group(self) -> str | None:
        """group-id."""
        return self._properties.group_id

    @property
    def group_sequence(self) -> int | None:
        """Position of the message in its group."""
        return self._properties.group_sequence

    @property
    def reply_to_group(self) -> str | None:
        """reply-to-group-id: the group of answers."""
        return self._properties.reply_to_group_id

    @property
    def user_id(self) -> bytes | None:
        """The user who sent the message."""
        return self._properties.user_id

    @property
    def expires_at(self) -> float | None:
        """absolute-expiry-time, in seconds since the Unix epoch."""
        return _seconds(self._properties.absolute_expiry_time)

    @property
    def created_at(self) -> float | None:
        """creation-time, in seconds since the Unix epoch."""
        return _seconds(self._properties.creation_time)

    @property
    def durable(self) -> bool:
        """Whether the broker stores the message durably."""
        return bool(self._header.durable)

    @property
    def priority(self) -> int:
        """0 to 255; 4 by default."""
        return int(self._header.priority)

    @property
    def ttl(self) -> float | None:
        """Seconds."""
        return _seconds(self._header.ttl)

    @property
    def delivery_count(self) -> int:
        """Failed deliveries before this one (messaging 3.2.1)."""
        return int(self._header.delivery_count)

    @property
    def first_acquirer(self) -> bool:
        """Whether no receiver has acquired the message before."""
        return bool(self._header.first_acquirer)

    @property
    def properties(self) -> Mapping[str, Any]:
        """application-properties."""
        return self._application

    @property
    def annotations(self) -> Mapping[Any, Any]:
        """message-annotations."""
        return self._annotations

    @property
    def delivery_annotations(self) -> Mapping[Any, Any]:
        """delivery-annotations: for the next hop alone."""
        return self._delivery_annotations

    @property
    def footer(self) -> Mapping[Any, Any]:
        """footer: values computed over the body, such as a hash."""
        return self._footer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        try:
            shown = [f"{self.body!r:.80}"]
            shown += [f"{name}={getattr(self, name)!r:.40}" for name in _SHOWN if getattr(self, name)]
        except DecodeError as error:
            shown = [f"{len(self.encode())} bytes that are no message: {error}"]
        return f"Message({', '.join(shown)})"


_SHOWN: Final = ("id", "subject", "correlation_id", "group", "properties")
_NO_PROPERTIES: Final = Properties()
_DECIMALS: Final = (Decimal32, Decimal64, Decimal128)
"""Subclasses of bytes that are AMQP types and not binary."""
_HEADER: Final = ("durable", "priority", "ttl")
"""The arguments of the constructor that are fields of the header, by the same names."""
_FIELDS: Final = {
    "id": "message_id",
    "user_id": "user_id",
    "to": "to",
    "subject": "subject",
    "reply_to": "reply_to",
    "correlation_id": "correlation_id",
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "expires_at": "absolute_expiry_time",
    "created_at": "creation_time",
    "group": "group_id",
    "group_sequence": "group_sequence",
    "reply_to_group": "reply_to_group_id",
}
"""By argument of the constructor: the field of properties (messaging 3.2.4)."""
_MAPS: Final = {
    "properties": "_application",
    "annotations": "_annotations",
    "delivery_annotations": "_delivery_annotations",
    "footer": "_footer",
}
"""By argument of the constructor: the attribute with the map."""
_READERS: Final[Mapping[str, Any]] = {
    "_areas": lambda message: _areas(message._payload),
    "_header": lambda message: sections.decode_header(message._payload),
    "_properties": lambda message: sections.decode_properties(message._payload),
    "_application": lambda message: message._map(message._areas.application_properties),
    "_annotations": lambda message: message._map(message._areas.message_annotations),
    "_delivery_annotations": lambda message: message._map(message._areas.delivery_annotations),
    "_footer": lambda message: message._map(message._areas.footer),
    "_body": lambda message: read_body(message._payload, message._areas.body),
    "_body_sections": lambda message: body_sections(message._payload, message._areas.body),
}
"""Decoders of a received message, by attribute. They raise DecodeError."""


def _areas(payload: bytes) -> Sections:
    return sections.scan(payload)


def _symbols(values: Mapping[str, Any] | None) -> Mapping[Any, Any]:
    if not values:
        return _NOTHING
    return {Symbol(key) if type(key) is str else key: value for key, value in values.items()}


def _milliseconds(name: str, seconds: float) -> int:
    if seconds < 0:
        raise ValueError(f"expected {name} of 0 seconds or more, found {seconds}")
    return round(seconds * 1000)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _address(found: Any) -> str | None:
    return None if found is None else str(found)
