"""Frames and protocol headers: their layout (transport 2.2, 2.3; security 5.3.1).

Templates: the bytes that all transfer frames of a sending link share (transport 2.7.5).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, ClassVar, Final, Protocol

from lightrail.amqp.unsettled import WIRE

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8

FRAME_HEADER: Final = Struct(">IBBH")
"""Size of the whole frame, data offset in words of four bytes, type, channel."""
FRAME_HEADER_BYTES: Final = 8
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""Sent against the idle time-out of the peer (2.4.5)."""

TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
FLOW: Final = 0x13
DETACH: Final = 0x16
CLOSE: Final = 0x18

_pack_header = FRAME_HEADER.pack


def frame(channel: int, body: bytes) -> bytes:
    """An AMQP frame around an encoded performative (and payload)."""
    return _pack_header(len(body) + 8, 2, AMQP_FRAME, channel) + body


def head(channel: int, body: bytes, size: int) -> bytes:
    """The same without its payload, which follows and has `size` bytes."""
    return _pack_header(len(body) + size + 8, 2, AMQP_FRAME, channel) + body


def sasl_frame(body: bytes) -> bytes:
    """A SASL frame around one of its five bodies; bytes 6 and 7 are zero."""
    return _pack_header(len(body) + 8, 2, SASL_FRAME, 0) + body


def uint(value: int) -> bytes:
    """A uint in its smallest encoding (types 1.6.5)."""
    if value == 0:
        return b"\x43"
    if value < 256:
        return bytes((0x52, value))
    return b"\x70" + value.to_bytes(4, "big")


# --- the two small frames that answer batches: written and read by hand --------------------------------


def disposition(channel: int, receiver: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """A disposition frame (2.7.6); `state` is encoded, b"" for none; first and last are wire numbers."""
    fields = (
        (b"\x41" if receiver else b"\x42")
        + uint(first)
        + (uint(last) if last != first else b"\x40")
        + (b"\x41" if settled else b"\x42")
    )
    count = 4
    if state:
        fields += state
        count = 5
    return frame(channel, _list(0x15, count, fields))


def _list(descriptor: int, count: int, fields: bytes) -> bytes:
    size = len(fields) + 1
    if size < 256:
        return bytes((0x00, 0x53, descriptor, 0xC0, size, count)) + fields
    return (
        bytes((0x00, 0x53, descriptor, 0xD0))
        + (size + 3).to_bytes(4, "big")
        + count.to_bytes(4, "big")
        + fields
    )


def flow(
    channel: int,
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int | None = None,
    delivery_count: int | None = None,
    link_credit: int | None = None,
    available: int | None = None,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    """A flow frame (2.7.4) without properties; trailing fields that have their default are left out."""
    parts = [
        b"\x40" if next_incoming_id is None else uint(next_incoming_id),
        uint(incoming_window),
        uint(next_outgoing_id),
        uint(outgoing_window),
    ]
    if handle is not None:
        parts.append(uint(handle))
        parts.append(b"\x40" if delivery_count is None else uint(delivery_count))
        parts.append(b"\x40" if link_credit is None else uint(link_credit))
        if available is not None or drain or echo:
            parts.append(b"\x40" if available is None else uint(available))
            if drain or echo:
                parts.append(b"\x41" if drain else b"\x42")
                if echo:
                    parts.append(b"\x41")
    elif echo:
        parts += (b"\x40", b"\x40", b"\x40", b"\x40", b"\x40", b"\x41")
    return frame(channel, _list(FLOW, len(parts), b"".join(parts)))


def read_small_fields(data: bytes, position: int, stop: int) -> list[int | bool | None] | None:
    """The fields of a frame body that is a list8 of uints, booleans and nulls, after its descriptor.

    `position` is that of the list's constructor. None when it is anything else or reaches beyond `stop`, for
    the complete decoder. Flow (2.7.4) without properties is always of this form.
    """
    if stop - position < 3 or data[position] != 0xC0:
        return None
    end = position + 2 + data[position + 1]
    if end > stop:
        return None
    count = data[position + 2]
    position += 3
    fields: list[int | bool | None] = []
    append = fields.append
    while position < end:
        code = data[position]
        if code == 0x52:
            if position + 2 > end:
                return None
            append(data[position + 1])
            position += 2
        elif code == 0x70:
            if position + 5 > end:
                return None
            append(int.from_bytes(data[position + 1 : position + 5], "big"))
            position += 5
        elif code == 0x43:
            append(0)
            position += 1
        elif code == 0x40:
            append(None)
            position += 1
        elif code == 0x41:
            append(True)
            position += 1
        elif code == 0x42:
            append(False)
            position += 1
        else:
            return None
    return fields if len(fields) == count and end == stop else None


def read_disposition(data: bytes, position: int, stop: int) -> tuple[bool, int, int, bool, int] | None:
    """Role, first, last, settled and the outcome's descriptor code (0 for no state) of a plain disposition.

    `position` is that of the list's constructor. None when the state is not accepted or released without
    fields, or anything else is uncommon.
    """
    if stop - position < 6 or data[position] != 0xC0:
        return None
    end = position + 2 + data[position + 1]
    count = data[position + 2]
    if end != stop or count < 4:
        return None
    role = data[position + 3]
    if role != 0x41 and role != 0x42:
        return None
    at = position + 4
    numbers = []
    for _ in range(2):
        if at >= end:
            return None
        code = data[at]
        if code == 0x70 and at + 5 <= end:
            numbers.append(int.from_bytes(data[at + 1 : at + 5], "big"))
            at += 5
        elif code == 0x52 and at + 2 <= end:
            numbers.append(data[at + 1])
            at += 2
        elif code == 0x43:
            numbers.append(0)
            at += 1
        # `last` that is null is `first` (2.7.6).
        elif code == 0x40 and numbers:
            numbers.append(numbers[0])
            at += 1
        else:
            return None
    tail = data[at:end]
    settled = tail[:1] == b"\x41"
    if not settled and tail[:1] != b"\x42":
        return None
    state = tail[1:]
    # batchable is for the peer's own use (2.7.6).
    if count == 6 and state[-1:] in (b"\x41", b"\x42"):
        state = state[:-1]
    elif count == 4 and not state:
        return role == 0x41, numbers[0], numbers[1], settled, 0
    elif count != 5:
        return None
    # Accepted and released have no fields: each is one of two byte strings, and is compared without being
    # decoded.
    if state == b"\x00S\x24\x45" or state == b"\x00S\x24\xc0\x01\x00":
        return role == 0x41, numbers[0], numbers[1], settled, 0x24
    if state == b"\x00S\x26\x45":
        return role == 0x41, numbers[0], numbers[1], settled, 0x26
    if state == b"\x40":
        return role == 0x41, numbers[0], numbers[1], settled, 0
    return None


@lru_cache(maxsize=1024)
def _pack(first: int, tag: int, number: str, last: int) -> Callable[..., bytes]:
    return Struct(f">I{first}sI{tag}s{number}{last}s").pack


class Template:
    """The constant bytes around delivery-id and payload; the delivery-tag ends with the delivery-id."""

    __slots__ = ("first_part", "last_part", "message_format", "overhead", "pack", "settled", "state", "tag")

    number: ClassVar[str] = "I"
    """The form of what the delivery-tag ends with."""
    number_bytes: ClassVar[int] = 4

    def __init__(
        self,
        channel: int,
        handle: bytes,
        settled: bool,
        message_format: int,
        state: Any = None,
        encoded_state: bytes = b"",
        tag_prefix: bytes = b"",
    ) -> None:
        """`encoded_state` has at most 100 bytes: what a transaction's id and an outcome take."""
        last = (b"\x43" if message_format == 0 else b"\x70" + message_format.to_bytes(4, "big")) + (
            b"\x41" if settled else b"\x42"
        )
        count = 5
        if state is not None:
            # more is false, rcv-settle-mode that of the link.
            last += b"\x42\x40" + encoded_state
            count = 8
        size = 1 + len(handle) + 5 + 2 + len(tag_prefix) + self.number_bytes + len(last)
        fixed = bytes((0x00, 0x53, 0x14, 0xC0, size, count))
        self.first_part = b"\x02\x00" + channel.to_bytes(2, "big") + fixed + handle + b"\x70"
        self.tag = bytes((0xA0, self.number_bytes + len(tag_prefix))) + tag_prefix
        self.last_part = last
        self.settled = settled
        self.state = state
        self.message_format = message_format
        self.overhead = 4 + len(self.first_part) + 4 + len(self.tag) + self.number_bytes + len(last)
        self.pack = _pack(len(self.first_part), len(self.tag), self.number, len(last))

    def put(
        self,
        output: list[bytes | memoryview],
        ends: Sequence[int],
        blob: bytes | memoryview,
        base: int,
        start: int,
        wire: int,
        most: int,
    ) -> int:
        """Append transfer frames for the messages that `ends` delimits until one is larger than `most` bytes.

        Returns the number of messages written. The first begins at blob[start], message i ends at
        ends[i] - base. `wire` is the delivery-id of the first, and must not wrap within this call.
        """
        pack = self.pack
        first_part = self.first_part
        tag = self.tag
        last_part = self.last_part
        overhead = self.overhead
        append = output.append
        first = wire
        for end in ends:
            end -= base
            size = end - start
            if size > most:
                break
            append(pack(size + overhead, first_part, wire, tag, wire, last_part))
            append(blob[start:end])
            start = end
            wire += 1
        return wire - first


class DeliverySource(Protocol):
    """What sends deliveries by numbers of its own."""

    transmitted: int
    """The number of the next one."""


class NumberedTemplate(Template):
    """The same for a link that may be resumed: the delivery-tag ends with the link's own number.

    The loop of `put` is here once more, so that other links, whose tag is the id, pay nothing for it.
    """

    __slots__ = ("numbered",)

    numbered: DeliverySource
    mask: ClassVar[int] = WIRE
    """The bits of a number that the delivery-tag has."""

    def put(
        self,
        output: list[bytes | memoryview],
        ends: Sequence[int],
        blob: bytes | memoryview,
        base: int,
        start: int,
        wire: int,
        most: int,
    ) -> int:
        """See Template."""
        first = wire
        number = self.numbered.transmitted
        mask = self.mask
        for end in ends:
            end -= base
            size = end - start
            if size > most:
                break
            output.append(
                self.pack(
                    size + self.overhead, self.first_part, wire, self.tag, number & mask, self.last_part
                )
            )
            output.append(blob[start:end])
            start = end
            wire += 1
            number += 1
        return wire - first


class WideTemplate(NumberedTemplate):
    """The same with numbers of eight bytes, which never wrap: the tags are known beyond the link."""

    __slots__ = ()

    number = "Q"
    number_bytes = 8
    mask = (1 << 64) - 1
