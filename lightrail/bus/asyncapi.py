"""A description of a bus in AsyncAPI 3.0: messages that it handles or declares to send, and their schemas."""

import dataclasses
import datetime as dt
import enum
import inspect
import sys
import types
import uuid
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, is_typeddict

from lightrail.bus.bus import Bus
from lightrail.bus.errors import ConfigurationError
from lightrail.bus.handlers import Registration, return_types
from lightrail.bus.messages import Kind, MessageType
from lightrail.bus.typed_values import fields_of

VERSION: Final = "3.0.0"
_SIMPLE: Final[Mapping[Any, Mapping[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": ["string", "number"], "description": "a decimal number"},
    dt.datetime: {"type": "string", "format": "date-time"},
    dt.date: {"type": "string", "format": "date"},
    dt.time: {"type": "string", "format": "time"},
    dt.timedelta: {"type": "number", "description": "seconds"},
    Any: {},
    object: {},
}


def describe(bus: Bus, *, title: str | None = None, release: str | None = None) -> dict[str, Any]:
    """The document, as JSON values.

    Args:
        title: of the service; by default the name of the bus.
        release: version of the service; by default LightRail's.
    """
    document = _Document(bus)
    for registration in bus.registrations:
        for type in registration.types:
            document.receives(registration, type)
    for type in bus.sent_types:
        document.sends(type)
    return {
        "asyncapi": VERSION,
        "info": {"title": title or bus.name, "version": release or version("lightrail")},
        "defaultContentType": "application/json",
        "channels": document.channels,
        "operations": document.operations,
        "components": {"messages": document.messages, "schemas": document.schemas},
    }


class _Document:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}

    def receives(self, registration: Registration, type: MessageType) -> None:
        channel = self._channel(type)
        name = f"{registration.function.__name__}.{type.wire_name}"
        operation: dict[str, Any] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{type.wire_name}"}],
        }
        text = inspect.getdoc(registration.function)
        if text:
            operation["description"] = text
        if type.kind is Kind.EVENT:
            operation["x-subscription"] = registration.subscription or self._bus.name
        if registration.is_responder:
            operation["reply"] = self._reply(registration)
        self.operations[name] = operation

    def sends(self, type: MessageType) -> None:
        channel = self._channel(type)
        self.operations[f"send.{type.wire_name}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{type.wire_name}"}],
        }

    def _reply(self, registration: Registration) -> dict[str, Any]:
        channel = f"{registration.function.__name__}.reply"
        answers = return_types(registration.function)
        messages = {each.wire_name: {"$ref": self._message(each)} for each in answers}
        self.channels[channel] = {"address": None, "messages": messages}
        return {
            "address": {"location": "$message.header#/reply-to"},
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        }

    def _channel(self, type: MessageType) -> str:
        conventions = self._bus.conventions
        name = f"{type.kind.value}.{type.wire_name}"
        if name not in self.channels:
            address = conventions.event(type) if type.kind is Kind.EVENT else conventions.command(type)
            self.channels[name] = {
                "address": address,
                "messages": {type.wire_name: {"$ref": self._message(type)}},
            }
        return name

    def _message(self, type: MessageType) -> str:
        if type.wire_name not in self.messages:
            made: dict[str, Any] = {
                "name": type.wire_name,
                "title": type.name,
                "contentType": "application/json",
                "payload": self._schema(type.cls),
            }
            text = inspect.getdoc(type.cls) if isinstance(type.cls, type_) else None
            if text and not text.startswith(f"{type.cls.__name__}("):
                made["description"] = text
            self.messages[type.wire_name] = made
        return f"#/components/messages/{type.wire_name}"

    # --- schemas -------------------------------------------------------------------------------------------

    def _schema(self, annotation: Any) -> dict[str, Any]:
        """JSON Schema of a type, draft 7; schemas of classes are added to the components."""
        try:
            simple = _SIMPLE.get(annotation)
        except TypeError:
            simple = None
        if simple is not None:
            return dict(simple)
        if hasattr(annotation, "__supertype__"):
            return self._schema(annotation.__supertype__)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._schema(arguments[0])
        if origin is Union or origin is types.UnionType:
            return {"anyOf": [self._schema(each) for each in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        cls = origin or annotation
        if isinstance(cls, type_):
            return self._schema_of_class(annotation, cls, arguments)
        raise ConfigurationError(f"expected a type that JSON can carry, found {annotation!r}")

    def _schema_of_class(self, annotation: Any, cls: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if issubclass(cls, enum.Enum):
            return {"enum": [each.value for each in cls]}
        if issubclass(cls, tuple) and arguments and arguments[-1] is not Ellipsis:
            items = [self._schema(each) for each in arguments]
            return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
        if not is_typeddict(cls) and issubclass(cls, Mapping):
            values = self._schema(arguments[1]) if arguments else {}
            return {"type": "object", "additionalProperties": values}
        if issubclass(cls, Sequence | Set):
            found: dict[str, Any] = {
                "type": "array",
                "items": self._schema(arguments[0]) if arguments else {},
            }
            if issubclass(cls, Set):
                found["uniqueItems"] = True
            return found
        pydantic = sys.modules.get("pydantic")
        if pydantic is not None and issubclass(cls, pydantic.BaseModel):
            schema: dict[str, Any] = cls.model_json_schema(ref_template="#/components/schemas/{model}")
            self.schemas.update(schema.pop("$defs", {}))
            self.schemas[cls.__name__] = schema
            return {"$ref": f"#/components/schemas/{cls.__name__}"}
        fields = fields_of(cls)
        if fields is None:
            raise ConfigurationError(f"expected a type that JSON can carry, found {annotation!r}")
        name = cls.__name__ if not arguments else f"{cls.__name__}Of{'And'.join(map(_name, arguments))}"
        if name not in self.schemas:
            # Before its fields: they may be of the same class.
            schema = self.schemas[name] = {"type": "object"}
            given = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
            schema["properties"] = {
                key: self._schema(given.get(hint, hint) if _is_variable(hint) else hint)
                for key, hint in fields.items()
            }
            required = _required(cls)
            if required:
                schema["required"] = required
        return {"$ref": f"#/components/schemas/{name}"}


type_: Final = type
"""The built-in `type`, for functions that have a parameter of that name."""


def _name(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation))


def _is_variable(hint: Any) -> bool:
    return type(hint).__name__ == "TypeVar"


def _required(cls: Any) -> list[str]:
    if is_typeddict(cls):
        return sorted(cls.__required_keys__)
    if dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        return [
            each.name
            for each in dataclasses.fields(cls)
            if each.init and each.default is missing and each.default_factory is missing
        ]
    msgspec = sys.modules.get("msgspec")
    if msgspec is not None and issubclass(cls, msgspec.Struct):
        return [each.name for each in msgspec.structs.fields(cls) if each.required]
    return []
