"""MassTransit's JSON envelope, so that services in .NET and in Python handle each other's messages.

After the documentation of MassTransit 8 (serialization, "Message Envelope"). Names of types are
`urn:message:NAMESPACE:CLASS`; `names` maps our classes to them. .NET writes names of properties as
camelCase, Python as snake_case: those of our classes are translated, keys of dicts are not.
"""

import datetime as dt
import json
import os
import platform
import re
import socket
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from lightrail.bus.errors import ConfigurationError, NotReadableError
from lightrail.bus.formats import Read, Written
from lightrail.bus.messages import known_type, message_type
from lightrail.bus.typed_values import fields_of, item_of
from lightrail.transport import Envelope

CONTENT_TYPE: Final = "application/vnd.masstransit+json"
URN: Final = "urn:message:"
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")


class MassTransit:
    """The format of MassTransit.

    Args:
        names: names in .NET by our class, as "Shop.Contracts:OrderPlaced".
        address: of this service, for `sourceAddress`.
    """

    def __init__(self, names: Mapping[Any, str], address: str = "loopback://localhost/") -> None:
        self._urns: dict[str, str] = {}
        self._wire_names: dict[str, str] = {}
        for cls, name in names.items():
            if ":" not in name or name.startswith(URN):
                raise ConfigurationError(
                    f'expected the name of a type in .NET as "Shop.Contracts:OrderPlaced", found {name!r}'
                )
            wire_name = message_type(cls).wire_name
            self._urns[wire_name] = URN + name
            self._wire_names[URN + name] = wire_name
        self._address = address

    def reads(self, envelope: Envelope) -> bool:
        """By the content type."""
        return (envelope.content_type or "").startswith(CONTENT_TYPE)

    def write(self, types: str, data: Any, *, id: str, source: str) -> Written:
        """An envelope with the message, its types and its source address.

        Raises ConfigurationError for a type without a name in .NET.
        """
        names = types.split()
        if names[0] not in self._urns:
            raise ConfigurationError(
                f"expected a name in .NET for {names[0]}, found none: add it to MassTransit(names=…)"
            )
        known = known_type(names[0])
        body = {
            "messageId": _guid(id),
            "requestId": None,
            "correlationId": None,
            "conversationId": _guid(id),
            "sourceAddress": self._address + source,
            "destinationAddress": None,
            "messageType": [self._urns[name] for name in names if name in self._urns],
            "message": data if known is None else _translated(data, known.cls, camel),
            "sentTime": dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z"),
            "headers": {},
            "host": _host(),
        }
        return Written(json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(), CONTENT_TYPE, {})

    def read(self, envelope: Envelope) -> Read:
        """The message of an envelope, with its types translated to our names."""
        try:
            body = json.loads(envelope.body)
        except ValueError as error:
            raise NotReadableError(f"expected MassTransit's JSON, found {envelope.body[:80]!r}") from error
        if not isinstance(body, dict) or "message" not in body:
            raise NotReadableError(f"expected MassTransit's envelope with a message, found {str(body)[:80]}")
        urns = body.get("messageType") or []
        names = tuple(self._wire_names.get(str(urn), str(urn)) for urn in urns)
        known = next((found for name in names if (found := known_type(name)) is not None), None)
        message = body["message"]
        return Read(names, message if known is None else _translated(message, known.cls, snake))


def _guid(id: str) -> str:
    """A message id for .NET: the id itself where it is a UUID, else a UUID derived from the id."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, id))


def _host() -> dict[str, Any]:
    return {
        "machineName": socket.gethostname(),
        "processName": "python",
        "processId": os.getpid(),
        "assembly": "lightrail",
        "assemblyVersion": version("lightrail"),
        "frameworkVersion": platform.python_version(),
        "massTransitVersion": "8.0.0",
        "operatingSystemVersion": platform.platform(),
    }


def camel(name: str) -> str:
    """order_id as orderId."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def snake(name: str) -> str:
    """orderId as order_id."""
    return _CAMEL.sub(r"_\1", name[:1].lower() + name[1:]).lower()


def _translated(data: Any, annotation: Any, translate: Any) -> Any:
    """Data with the names of the fields of classes translated; keys of dicts stay as they are."""
    if isinstance(data, list):
        item = item_of(annotation)
        return [_translated(each, item, translate) for each in data]
    if not isinstance(data, dict):
        return data
    fields = fields_of(annotation)
    if fields is None:
        item = item_of(annotation)
        return {key: _translated(each, item, translate) for key, each in data.items()}
    found = {}
    for key, each in data.items():
        known = fields.get(key, fields.get(snake(key)))
        found[translate(key)] = _translated(each, known, translate)
    return found
