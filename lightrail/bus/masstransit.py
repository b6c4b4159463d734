"""MassTransit's JSON envelope, so that services in .NET and in Python handle each other's messages.

After MassTransit 8.5: `JsonMessageEnvelope`, `SystemTextJsonMessageSerializer`,
`SystemTextJsonRawMessageSerializer`, `MessageHeaders`. Names of types are `urn:message:NAMESPACE:CLASS`;
`names` maps our classes to them. Values and names of properties are those of .NET (dotnet.py).
docs/bus/masstransit.md has the table of what is translated.
"""

import datetime as dt
import json
import os
import platform
import socket
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from lightrail.bus.context import CONVERSATION, FAULT_ADDRESS, REQUEST
from lightrail.bus.dotnet import NO_TIME, guid, read_time, translation, write_time
from lightrail.bus.errors import ConfigurationError, NotReadableError
from lightrail.bus.fault import PREFIX, fault_of
from lightrail.bus.formats import JSON, Read, dumps
from lightrail.bus.messages import Conventions, MessageType, message_type
from lightrail.bus.typed_values import within
from lightrail.transport import Envelope, Header

CONTENT_TYPE: Final = "application/vnd.masstransit+json"
URN: Final = "urn:message:"
QUEUE: Final = "queue:"
"""Scheme of MassTransit's short addresses, which every one of its transports completes with its own host."""
MESSAGE_TYPE: Final = "MT-MessageType"
"""Header of raw JSON: URNs of the message's types, with semicolons between them."""
INITIATOR: Final = "MT-InitiatorId"
"""Header: correlation id, or else request id, of the message whose handler sent this one."""
SOURCE: Final = "MT-Source-Address"
ACTIVITY: Final = "MT-Activity-Id"
TRACE: Final = "traceparent"
"""The same context of a trace, as OpenTelemetry names it."""
FAULT_BASE: Final = "urn:message:MassTransit:Fault"
"""The interface that all faults have."""
_HANDLER: Final = "lightrail-handler"
_ATTEMPTS: Final = "lightrail-attempts"
OURS: Final = "lightrail-"
RAW: Final[Mapping[str, str]] = {
    "messageId": "MessageId",
    "requestId": "RequestId",
    "correlationId": "CorrelationId",
    "conversationId": "ConversationId",
    "initiatorId": INITIATOR,
    "sourceAddress": SOURCE,
    "responseAddress": "MT-Response-Address",
    "faultAddress": "MT-Fault-Address",
}
"""By field of the envelope: the header that has its value where the body is the message alone."""
_NOT_COPIED: Final = frozenset((*RAW.values(), MESSAGE_TYPE, "MT-Host-Info"))


class MassTransit:
    """The format of MassTransit.

    Args:
        names: names in .NET by our class, as "Shop.Contracts:OrderPlaced"; of nested ones "Shop:Outer+Inner".
        address: of this bus's queues for .NET, before their names: "sb://HOST/" or, by default, "queue:".
        raw: whether messages are written without an envelope, for services with UseRawJsonSerializer. Both
            kinds are read.
    """

    def __init__(self, names: Mapping[Any, str], address: str = QUEUE, *, raw: bool = False) -> None:
        self._urns: dict[str, list[str]] = {}
        self._types: dict[str, MessageType] = {}
        for cls, name in names.items():
            if ":" not in name or name.startswith(URN):
                raise ConfigurationError(
                    f'expected the name of a type in .NET as "Shop.Contracts:OrderPlaced", found {name!r}'
                )
            type = message_type(cls)
            self._add(type, [URN + name])
            self._add(fault_of(type), [f"{FAULT_BASE}[[{name}]]", FAULT_BASE])
        self._names = dict(names)
        self._address = address
        self._raw = raw

    def _add(self, type: MessageType, urns: list[str]) -> None:
        self._urns[type.wire_name] = urns
        self._types[urns[0]] = type

    def conventions(self, prefix: str = "") -> Conventions:
        """Names at the broker of which events have those of MassTransit's topics on Service Bus."""
        return _Topics({message_type(cls): name for cls, name in self._names.items()}, prefix)

    def reads(self, envelope: Envelope) -> bool:
        """By the content type, or the header of raw JSON."""
        return (envelope.content_type or "").startswith(CONTENT_TYPE) or MESSAGE_TYPE in envelope.headers

    def knows_faults(self, request: Envelope) -> bool:
        """For requests in this format."""
        return self.reads(request)

    # --- writing -------------------------------------------------------------------------------------------

    def write(
        self, types: str, data: Any, envelope: Envelope, *, source: str, cause: Envelope | None
    ) -> None:
        """The message with its types, ids and addresses; the conversation becomes a Guid for all services.

        Raises:
            ConfigurationError: the type has no name in .NET.
            ValueError: .NET has no such value, as a duration of a million years.
        """
        name, *bases = types.split()
        if name not in self._urns:
            raise ConfigurationError(
                f"expected a name in .NET for {name}, found none: add it to MassTransit(names=…)"
            )
        urns = [urn for each in (name, *bases) for urn in self._urns.get(each, ())]
        message = self._written(self._types[self._urns[name][0]], data)
        context = self._context(envelope, source, cause)
        headers = {
            key: value
            for key, value in envelope.headers.items()
            if not key.startswith(OURS) and key not in _NOT_COPIED
        }
        if TRACE in headers:
            headers.setdefault(ACTIVITY, headers[TRACE])
        conversation = {CONVERSATION: context["conversationId"]}
        if self._raw:
            envelope.body, envelope.content_type = dumps(message), JSON
            raw = {RAW[key]: value for key, value in context.items() if value is not None}
            raw[MESSAGE_TYPE] = ";".join(urns)
            envelope.headers = {**envelope.headers, **headers, **raw, **conversation}
            return
        now = dt.datetime.now(dt.UTC)
        expires = None if envelope.ttl is None else now + dt.timedelta(seconds=envelope.ttl)
        body = {
            **context,
            "destinationAddress": None,
            "messageType": urns,
            "message": message,
            "expirationTime": None if expires is None else write_time(expires.isoformat()),
            "sentTime": write_time(now.isoformat()),
            "headers": headers,
            "host": _host(os.getpid()),
        }
        envelope.body, envelope.content_type = dumps(body), CONTENT_TYPE
        envelope.headers = {**envelope.headers, **conversation}

    def _written(self, type: MessageType, data: Any) -> Any:
        if type.wire_name.startswith(PREFIX):
            of = self._types[self._urns[type.wire_name.removeprefix(PREFIX)][0]]
            urns = self._urns[of.wire_name]
            return _fault_into(data, self._written(of, data["message"]), urns, _host(os.getpid()))
        write = translation(type.cls).write
        return data if write is None else write(data)

    def _context(self, envelope: Envelope, source: str, cause: Envelope | None) -> dict[str, Any]:
        """The ids and addresses; a request gets a correlation id that is the Guid of its requestId."""
        headers = envelope.headers
        request = headers.get(REQUEST)
        correlation: str | None = None
        if request is not None:
            request = guid(str(request))
        elif envelope.reply_to is not None:
            request = envelope.correlation_id = guid(envelope.correlation_id or envelope.id or "")
        elif envelope.correlation_id is not None:
            correlation = guid(envelope.correlation_id)
        initiator = None if cause is None else cause.correlation_id or cause.headers.get(REQUEST)
        fault_address = headers.get(FAULT_ADDRESS)
        return {
            "messageId": guid(envelope.id or ""),
            "requestId": request,
            "correlationId": correlation,
            "conversationId": guid(str(headers.get(CONVERSATION) or envelope.id)),
            "initiatorId": None if initiator is None else guid(str(initiator)),
            "sourceAddress": self._address + quote(source),
            "responseAddress": None if envelope.reply_to is None else self._uri(envelope.reply_to),
            "faultAddress": None if fault_address is None else self._uri(str(fault_address)),
        }

    def _uri(self, name: str) -> str:
        return self._address + quote(name, safe="/$")

    # --- reading -------------------------------------------------------------------------------------------

    def read(self, envelope: Envelope) -> Read:
        """The message of an envelope, with its types translated to our names, and what .NET has beside it.

        Raises NotReadableError.
        """
        try:
            body = json.loads(envelope.body)
        except (ValueError, RecursionError) as error:
            raise NotReadableError(f"expected MassTransit's JSON, found {envelope.body[:80]!r}") from error
        if (envelope.content_type or "").startswith(CONTENT_TYPE):
            if not isinstance(body, dict) or "message" not in body:
                raise NotReadableError(
                    f"expected MassTransit's envelope with a message, found {str(body)[:80]}"
                )
            message, urns, headers = body["message"], body.get("messageType") or [], body.get("headers") or {}
            if not isinstance(urns, list) or not isinstance(headers, dict):
                raise NotReadableError(
                    "expected a list of types and an object of headers, "
                    f"found {urns!r:.40} and {headers!r:.40}"
                )
            context = body
        else:
            message, headers = body, {}
            urns = str(envelope.headers[MESSAGE_TYPE]).split(";")
            found = ((key, envelope.headers.get(name)) for key, name in RAW.items())
            # Ids and addresses may be of types of AMQP.
            context = {key: None if value is None else str(value) for key, value in found}
        types = [self._types.get(str(urn)) for urn in urns]
        names = tuple(
            str(urn) if type is None else type.wire_name for urn, type in zip(urns, types, strict=True)
        )
        known = next((type for type in types if type is not None), None)
        return Read(names, self._read(known, message), _merged(envelope, context, headers))

    def _read(self, type: MessageType | None, message: Any) -> Any:
        if type is None:
            return message
        if type.wire_name.startswith(PREFIX):
            of = self._types[self._urns[type.wire_name.removeprefix(PREFIX)][0]]
            return _fault_from(message, lambda inner: self._read(of, inner))
        read = translation(type.cls).read
        return message if read is None else read(message)


class _Topics(Conventions):
    """Events at the topics that MassTransit makes on Service Bus: NAMESPACE/CLASS, and one for its faults."""

    def __init__(self, names: Mapping[MessageType, str], prefix: str) -> None:
        super().__init__(prefix)
        self._topics = {type.wire_name: _topic(name) for type, name in names.items()}
        self._topics |= {
            fault_of(type).wire_name: f"MassTransit/Fault--{_topic(name)}--" for type, name in names.items()
        }

    def command_router(self, type: MessageType) -> str | None:
        """The topic of a type: MassTransit publishes requests without an address."""
        topic = self._topics.get(type.wire_name)
        return None if topic is None else f"{self.prefix}{topic}"

    def event(self, type: MessageType) -> str:
        """The topic of a type with a name in .NET."""
        return self.command_router(type) or super().event(type)

    def fault(self, type: MessageType) -> str:
        """The topic of the faults of a type with a name in .NET."""
        return self.command_router(type) or super().fault(type)


def _topic(name: str) -> str:
    return name.replace(":", "/").replace("+", "-")


def _merged(envelope: Envelope, context: Mapping[str, Any], headers: Mapping[str, Any]) -> Envelope:
    """An envelope with the ids, addresses and headers that are in its body."""

    def text(key: str) -> str | None:
        value = context.get(key)
        if value is not None and not isinstance(value, str):
            raise NotReadableError(f"expected a text for {key}, found {value!r:.80}")
        return value

    found: dict[str, Header] = {
        **envelope.headers,
        **{key: _header(value) for key, value in headers.items()},
    }
    addresses = {key: text(key) for key in ("sourceAddress", "responseAddress", "faultAddress")}
    carried = {
        CONVERSATION: text("conversationId"),
        REQUEST: text("requestId"),
        FAULT_ADDRESS: name_of(addresses["faultAddress"]),
        INITIATOR: text("initiatorId"),
        SOURCE: addresses["sourceAddress"],
        TRACE: found.get(TRACE) or found.get(ACTIVITY) or found.get("Diagnostic-Id"),
    }
    found |= {key: value for key, value in carried.items() if value is not None}
    return envelope.replace(
        id=envelope.id or text("messageId"),
        correlation_id=text("correlationId") or envelope.correlation_id,
        reply_to=envelope.reply_to or name_of(addresses["responseAddress"]),
        headers=found,
    )


# --- faults ----------------------------------------------------------------------------------------------

# A Fault<T> has a list of exceptions, each with its class, text and trace. The bus's Fault has one exception,
# and the name of a handler and a count of attempts, which go into the data of the exception.


def _fault_into(fault: dict[str, Any], message: Any, urns: list[str], host: dict[str, Any]) -> dict[str, Any]:
    """A fault of the bus, as JSON, as that of MassTransit.

    Args:
        message: the one that could not be handled, as .NET has it.
        urns: of its types.
        host: this process, as MassTransit describes one.
    """
    id = fault["id"]
    # The same where the message fails again: its handler's other messages have the same ids as well.
    own = uuid.uuid5(uuid.NAMESPACE_OID, f"{id}/{fault['handler']}/fault")
    exception = {
        "exceptionType": fault["exception"],
        "innerException": None,
        "stackTrace": "",
        "message": fault["text"],
        "source": fault["handler"],
        "data": {_HANDLER: fault["handler"], _ATTEMPTS: fault["attempts"]},
    }
    return {
        "faultId": str(own),
        "faultedMessageId": None if id is None else guid(id),
        "timestamp": write_time(fault["at"]),
        "exceptions": [exception],
        "host": host | {"machineName": fault["host"]},
        "faultMessageTypes": urns,
        "message": message,
    }


def _fault_from(fault: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    """A fault of MassTransit as that of the bus, with the first of its exceptions.

    Args:
        read: translates the message that could not be handled.

    Raises NotReadableError.
    """
    if not isinstance(fault, dict) or "message" not in fault:
        raise NotReadableError(f"expected a Fault of MassTransit with a message, found {str(fault)[:80]}")
    exceptions = fault.get("exceptions") or [{}]
    first, host = exceptions[0] if isinstance(exceptions, list) else None, fault.get("host") or {}
    if not isinstance(first, dict) or not isinstance(host, dict):
        raise NotReadableError(
            "expected a list of exceptions and an object for the host, "
            f"found {exceptions!r:.40} and {host!r:.40}"
        )
    data = first.get("data") or {}
    if not isinstance(data, dict):
        raise NotReadableError(f"expected an object for the data of an exception, found {data!r:.40}")
    try:
        message = read(fault["message"])
    except NotReadableError as error:
        raise within(".message", error) from None
    return {
        "message": message,
        "id": fault.get("faultedMessageId"),
        "exception": first.get("exceptionType") or "",
        "text": first.get("message") or "",
        "handler": data.get(_HANDLER) or first.get("source") or "",
        "host": host.get("machineName") or "",
        "attempts": data.get(_ATTEMPTS, 1),
        "at": read_time(fault.get("timestamp", NO_TIME)),
    }


# --- values ----------------------------------------------------------------------------------------------


def _header(value: Any) -> Header:
    """A header's value; objects and lists, which only the envelope can carry, as JSON."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def name_of(address: str | None) -> str | None:
    """The name of the queue at an address of MassTransit: its path, whatever the host is.

    Raises NotReadableError for an address without a path.
    """
    if address is None:
        return None
    try:
        name = unquote(urlsplit(address).path).strip("/")
    except ValueError:
        name = ""
    if not name:
        raise NotReadableError(
            f"expected an address with the name of a queue, as sb://host/name, found {address!r}"
        )
    return name


@cache
def _host(process: int) -> dict[str, Any]:
    """This process, as MassTransit describes one. Read once: version() takes longer than all the rest."""
    return {
        "machineName": socket.gethostname(),
        "processName": "python",
        "processId": process,
        "assembly": "lightrail",
        "assemblyVersion": version("lightrail"),
        "frameworkVersion": platform.python_version(),
        "massTransitVersion": "8.5.12.0",
        "operatingSystemVersion": platform.platform(),
    }
