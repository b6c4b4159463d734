"""The message that bench sends: its bytes are built once, and 24 of them are overwritten for each message.

::

    [header 00 53 70 c0 02 01 41]        when durable (spec 3.2.1)
    [properties, application-properties] when asked for (numbered.py)
    00 53 75 a0 len | 00 53 75 b0 len4   data section (spec 3.2.6)
    origin u64 | sequence u64 | intended send time u64 (ns of the monotonic clock) | padding

The origin identifies the sender and the run; the marker in its upper 16 bits distinguishes messages of bench
from others in the queue.
"""

import struct
from dataclasses import dataclass
from typing import Final

from lightrail.bench.numbered import PLAIN, Field, NumberedSections

STAMP: Final = struct.Struct(">QQQ")
SIZE_MIN: Final = STAMP.size
SIZE_MAX: Final = 1 << 30
MARKER: Final = 0x4C42
SEQUENCE_MAX: Final = 1 << 36
"""Larger sequence numbers are not from bench, which needs one byte of memory for each."""
SENDER_BITS: Final = 20
RUN_BITS: Final = 28
_SMALL_DATA: Final = bytes.fromhex("005375a0")
_LARGE_DATA: Final = bytes.fromhex("005375b0")


class MalformedMessageError(Exception):
    """A malformed message; the text says what was expected, what was found and where."""


def origin_of(run: int, sender: int) -> int:
    """The number that identifies one sender of one run."""
    return MARKER << 48 | (run & (1 << RUN_BITS) - 1) << SENDER_BITS | sender


def run_of(origin: int) -> int:
    """The run of an origin."""
    return origin >> SENDER_BITS & (1 << RUN_BITS) - 1


@dataclass(frozen=True, slots=True)
class Template:
    """An encoded message, the offset of its stamp, and the digits that are overwritten for every message."""

    buffer: bytearray
    stamp_at: int
    digits: tuple[Field, ...]


def data_section(size: int) -> bytes:
    """The head of a data section of ``size`` bytes."""
    return _SMALL_DATA + bytes([size]) if size < 256 else _LARGE_DATA + size.to_bytes(4, "big")


def build(size: int, durable: bool, numbered: NumberedSections = PLAIN, origin: int = 0) -> Template:
    """The encoded message with a body of ``size`` bytes."""
    sections, digits = numbered.sections(durable, origin)
    head = sections + data_section(size)
    padding = bytes(i % 251 for i in range(min(size, 4096)))
    body = (padding * (size // 4096 + 1))[:size]
    return Template(bytearray(head + body), len(head), digits)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The body of a message in its bytes, and whether the header marks it as redelivered."""

    body: int
    size: int
    redelivered: bool


def parse(message: bytes | bytearray) -> Parsed:
    """Find the first data section; raises MalformedMessageError.

    A message counts as redelivered when its delivery-count is above zero, or when first-acquirer is there and
    false: bench writes no such field, so a broker has added it (RabbitMQ does).
    """
    position, end = 0, len(message)
    redelivered = False
    while position < end:
        code, start = descriptor(message, position)
        stop = skip(message, start)
        if code == 0x70:
            redelivered = _is_redelivered(message, start, stop)
        elif code == 0x75:
            body = start + (2 if message[start] == 0xA0 else 5)
            return Parsed(body, stop - body, redelivered)
        position = stop
    raise MalformedMessageError(f"a message of {end} bytes without a data section")


def descriptor(message: bytes | bytearray, position: int) -> tuple[int, int]:
    """The code of the section at ``position``, and where its value begins (spec 1.2, 3.2)."""
    if message[position] != 0:
        raise MalformedMessageError(f"expected a section at {position}, found {message[position]:#04x}")
    end = skip(message, position + 1)
    if message[position + 1] in (0x53, 0x80):
        return int.from_bytes(message[position + 2 : end], "big"), end
    raise MalformedMessageError(f"expected the code of a section at {position + 1}")


def skip(message: bytes | bytearray, position: int) -> int:
    """Where the value at ``position`` ends (spec 1.2: the upper half of the code says how it is sized)."""
    code = message[position : position + 1]
    if not code:
        raise MalformedMessageError(f"expected a value at {position}, found the end")
    width = code[0] >> 4
    if 4 <= width <= 9:
        end = position + 1 + (0, 1, 2, 4, 8, 16)[width - 4]
    elif width in (0xA, 0xC, 0xE):
        end = position + 2 + int.from_bytes(message[position + 1 : position + 2], "big")
    elif width in (0xB, 0xD, 0xF):
        end = position + 5 + int.from_bytes(message[position + 1 : position + 5], "big")
    else:
        raise MalformedMessageError(f"expected a value at {position}, found {code[0]:#04x}")
    if end > len(message):
        raise MalformedMessageError(f"the value at {position} ends at {end}, the message at {len(message)}")
    return end


def _is_redelivered(message: bytes | bytearray, position: int, end: int) -> bool:
    """Read first-acquirer and delivery-count, the fields 3 and 4 of the header."""
    code = message[position]
    if code == 0x45:
        return False
    position += 3 if code == 0xC0 else 9
    for field in range(5):
        if position >= end:
            return False
        stop = skip(message, position)
        value = message[position:stop]
        if field == 3 and value in (b"\x42", b"\x56\x00"):
            return True
        if field == 4:
            return value[0] != 0x40 and any(value[1:])
        position = stop
    return False
