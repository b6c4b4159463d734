"""Numbered sections: sections of a message with numbers that change with every message, overwritten in place.

::

    00 53 70 c0 04 02 41|42 50 | priority            header (spec 3.2.1)
    00 53 73 c0|d0 …   properties: message-id, group-id (spec 3.2.4)
    00 53 74 c1 len 02 | name | value            application-properties with one text (spec 3.2.5)

All values have the same length in all messages, so that only their octets are overwritten.
"""

from dataclasses import dataclass
from typing import Final

from lightrail.bench import application
from lightrail.bench.values import NULL, listed, text

ID_DIGITS: Final = 12
"""Of the sequence number in a message-id: more than one byte per message of memory could ever hold."""
NAME_MAX: Final = 64
"""Bytes of the name of an application property."""
COUNT_MAX: Final = 1_000_000_000
PRIORITIES_MAX: Final = 10
_DURABLE_HEADER: Final = bytes.fromhex("005370c00201" + "41")
_HEADER_OF_TWO: Final = bytes.fromhex("005370c00402")
_PROPERTIES: Final = bytes.fromhex("005373")
_APPLICATION_PROPERTIES: Final = bytes.fromhex("005374")
_REPLY_TO_FIELD: Final = 4
_GROUP_FIELD: Final = 10
"""Index of group-id in the list of properties; message-id is the first."""


def message_id(origin: int, sequence: int) -> str:
    """The message-id of one message of one sender."""
    return f"{origin:016x}-{sequence:0{ID_DIGITS}}"


@dataclass(frozen=True, slots=True)
class Digits:
    """Digits in a buffer: the sequence number modulo ``count``, ``width`` bytes from ``at``."""

    at: int
    width: int
    count: int

    def write(self, buffer: bytearray, sequence: int) -> None:
        """Write the digits of one message."""
        buffer[self.at : self.at + self.width] = b"%0*d" % (self.width, sequence % self.count)


@dataclass(frozen=True, slots=True)
class Octet:
    """One byte of a buffer: the sequence number modulo ``count``."""

    at: int
    count: int

    def write(self, buffer: bytearray, sequence: int) -> None:
        """Write that of one message."""
        buffer[self.at] = sequence % self.count


Field = Digits | Octet | application.Times
"""A part that is overwritten for every message."""


@dataclass(frozen=True, slots=True)
class NumberedSections:
    """The numbered parts of a message."""

    priorities: int = 0
    """Priorities that are sent in turn; 0: none."""
    message_ids: bool = False
    groups: int = 0
    """Group-ids that are sent in turn; 0: none."""
    property: tuple[str, int] | None = None
    """Name of an application property, and how many values of it are sent in turn."""
    application: bool = False
    """Messages as applications send them (application.py), with a message-id of its own for each."""
    list32: bool = False
    """Lists of such messages are encoded as list32."""
    ttl_ms: int = 0
    """Time to live in the header of such messages; 0: none."""
    jms: bool = False
    """Such messages have the annotations of JMS clients, and with a ttl an absolute-expiry-time."""
    reply_to: str | None = None
    """The address at which the sender waits for a reply to each."""

    def sections(self, durable: bool, origin: int) -> tuple[bytes, tuple[Field, ...]]:
        """The sections before the body, and their parts that are overwritten; empty when there are none."""
        if self.application:
            return self._application(durable, origin)
        found = _DURABLE_HEADER if durable else b""
        digits: list[Field] = []
        if self.priorities:
            found = _HEADER_OF_TWO + (b"\x41" if durable else b"\x42") + b"\x50\x04"
            digits.append(Octet(len(found) - 1, self.priorities))
        if self.message_ids or self.groups or self.reply_to is not None:
            found += self._properties(len(found), origin, digits)
        if self.property is not None:
            name, count = self.property
            key = name.encode()
            width = len(str(count - 1))
            entries = b"\x02\xa1" + bytes([len(key)]) + key + b"\xa1" + bytes([width])
            head = _APPLICATION_PROPERTIES + b"\xc1" + bytes([len(entries) + width])
            found += head + entries
            digits.append(Digits(len(found), width, count))
            found += b"0" * width
        return found, tuple(digits)

    def _application(self, durable: bool, origin: int) -> tuple[bytes, tuple[Field, ...]]:
        found = application.sections(
            durable, self.priorities > 0, self.ttl_ms, self.jms, f"{origin:016x}-", ID_DIGITS, self.list32
        )
        digits: list[Field] = [Digits(found.id_digits_at, ID_DIGITS, 10**ID_DIGITS)]
        if self.priorities:
            digits.append(Octet(found.priority_at, self.priorities))
        if found.times is not None:
            digits.append(found.times)
        return found.octets, tuple(digits)

    def _properties(self, at: int, origin: int, digits: list[Field]) -> bytes:
        fields = [NULL] * (_GROUP_FIELD + 1)
        numbers: list[tuple[int, int, int]] = []
        if self.message_ids:
            fields[0] = text(message_id(origin, 0))
            numbers.append((0, ID_DIGITS, 10**ID_DIGITS))
        if self.reply_to is not None:
            fields[_REPLY_TO_FIELD] = text(self.reply_to)
        if self.groups:
            width = len(str(self.groups - 1))
            fields[_GROUP_FIELD] = text("0" * width)
            numbers.append((_GROUP_FIELD, width, self.groups))
        while fields[-1] == NULL:
            fields.pop()
        encoded = _PROPERTIES + listed(fields)
        for field, width, count in numbers:
            end = at + len(encoded) - len(b"".join(fields[field + 1 :]))
            digits.append(Digits(end - width, width, count))
        return encoded


PLAIN: Final = NumberedSections()
