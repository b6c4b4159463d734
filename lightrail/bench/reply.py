"""Replies: the request's reply-to, message-id and body are its address, correlation-id and body.

::

    [header 00 53 70 c0 02 01 41]                      when durable (spec 3.2.1)
    00 53 73 list  to (field 2), correlation-id (5)    properties (spec 3.2.4)
    00 53 75 a0 len | 00 53 75 b0 len4                 data section (spec 3.2.6), as in the request
"""

from dataclasses import dataclass
from typing import Final

from lightrail.bench.message import MalformedMessageError, Parsed, data_section, descriptor, skip
from lightrail.bench.values import NULL, listed

PROPERTIES: Final = 0x73
MESSAGE_ID: Final = 0
TO: Final = 2
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
"""Indexes in the list of properties."""
_DURABLE_HEADER: Final = bytes.fromhex("005370c00201" + "41")
_PROPERTIES: Final = bytes.fromhex("005373")


@dataclass(frozen=True, slots=True)
class Reply:
    """A message and its address."""

    address: str
    octets: bytes


def properties(message: bytes | bytearray) -> list[bytes]:
    """The fields of a message's properties, each as it is encoded; raises MalformedMessageError."""
    position, end = 0, len(message)
    while position < end:
        code, start = descriptor(message, position)
        stop = skip(message, start)
        if code == PROPERTIES:
            return _fields(message, start, stop)
        if code > PROPERTIES:
            break
        position = stop
    return []


def _fields(message: bytes | bytearray, start: int, stop: int) -> list[bytes]:
    if message[start] == 0x45:
        return []
    position = start + (3 if message[start] == 0xC0 else 9)
    fields = []
    while position < stop:
        end = skip(message, position)
        fields.append(bytes(message[position:end]))
        position = end
    return fields


def text_of(fields: list[bytes], index: int) -> str | None:
    """A field that is a text; None when it is missing or something else."""
    field = fields[index] if index < len(fields) else NULL
    if field[0] == 0xA1:
        return field[2:].decode()
    return field[5:].decode() if field[0] == 0xB1 else None


def reply_to(request: bytearray, parsed: Parsed, durable: bool) -> Reply:
    """The reply to a request; raises MalformedMessageError when the request asks for none."""
    fields = properties(request)
    address = text_of(fields, REPLY_TO)
    if address is None or fields[MESSAGE_ID] == NULL:
        raise MalformedMessageError("expected a request with a message-id and a reply-to, found none")
    sent = [NULL] * (CORRELATION_ID + 1)
    sent[TO], sent[CORRELATION_ID] = fields[REPLY_TO], fields[MESSAGE_ID]
    body = bytes(request[parsed.body : parsed.body + parsed.size])
    head = _DURABLE_HEADER if durable else b""
    return Reply(address, head + _PROPERTIES + listed(sent) + data_section(len(body)) + body)
