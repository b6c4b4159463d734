"""Messages as applications send them, in the encodings of several clients, by hand."""

import struct
from collections.abc import Callable

from lightrail.amqp.events import Transfers
from lightrail.amqp.sections import attributes, decode_header
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError
from lightrail.model.limits import EXPIRY_SPAN_MS

Lists = Callable[..., bytes]

HEAD = b"\x00Sp\xc0\x02\x01A"


def list8(*items: bytes) -> bytes:
    """A list as qpid-proton writes it."""
    body = b"".join(items)
    return b"\xc0" + bytes((len(body) + 1, len(items))) + body


def list32(*items: bytes) -> bytes:
    """A list as rhea and go-amqp write it."""
    body = b"".join(items)
    return b"\xd0" + struct.pack(">II", len(body) + 4, len(items)) + body


LISTS = [list8, list32]


def text(value: str) -> bytes:
    return b"\xa1" + bytes((len(value),)) + value.encode()


def application_message(
    number: int, lists: Lists = list8, *, priority: int | None = None, expiry: int | None = None
) -> bytes:
    """Message-id, subject, content-type, creation-time, two application properties, and a data section."""
    null = b"\x40"
    header = [b"\x41"] if priority is None else [b"\x41", b"\x50" + bytes((priority,))]
    properties = [text(f"message-{number}"), null, null, text("order.created"), null, null]
    properties += [b"\xa3\x10application/json", null]
    properties.append(null if expiry is None else b"\x83" + struct.pack(">q", expiry))
    properties.append(b"\x83" + struct.pack(">q", 1_700_000_000_000 + number))
    pairs = text("tenant") + text("acme") + text("number") + b"\x55" + bytes((number % 128,))
    body = bytes(50 + number * 37 % 700)
    return b"".join(
        (
            b"\x00Sp" + lists(*header),
            b"\x00Ss" + lists(*properties),
            b"\x00St\xc1" + bytes((len(pairs) + 1, 4)) + pairs,
            b"\x00Su\xb0" + struct.pack(">I", len(body)) + body,
        )
    )


def transfer_frame(
    delivery: int,
    message: bytes,
    lists: Lists = list8,
    settled: bool | None = False,
    *,
    handle: int = 0,
    tag: bytes | None = None,
) -> bytes:
    """One transfer frame on channel 0."""
    tag = struct.pack(">I", delivery) if tag is None else tag
    fields = [
        b"\x43" if handle == 0 else b"\x52" + bytes((handle,)),
        b"\x70" + struct.pack(">I", delivery),
        b"\xa0" + bytes((len(tag),)) + tag,
        b"\x43",
        {None: b"\x40", False: b"\x42", True: b"\x41"}[settled],
    ]
    body = b"\x00S\x14" + lists(*fields) + message
    return struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body


def expiries(event: Transfers) -> list[int | None]:
    """The absolute-expiry-time of each message, by the complete decoder; the event's has to be the latest.

    The law of an event, as that of its headers in `lasting`: none of its messages ends after the event does,
    and none more than EXPIRY_SPAN_MS before.
    """
    own = [_expiry(payload) if event.message_format == 0 else None for payload in event.payloads]
    known = [each for each in own if each is not None]
    if event.absolute_expiry_ms is None:
        assert not known
        assert event.earliest_expiry_ms is None
    else:
        assert len(known) == len(own)
        assert (min(known), max(known)) == (event.earliest_expiry_ms, event.absolute_expiry_ms)
        assert max(known) - min(known) <= EXPIRY_SPAN_MS
    return own


def _expiry(message: bytes) -> int | None:
    try:
        return attributes(message)[3]
    except DecodeError:
        # Properties without that field are not looked at any further.
        return None


def lasting(event: Transfers) -> list[tuple[bool, int | None]]:
    """durable and ttl of each message; the header that the event has is one with the longest ttl."""
    if event.message_format:
        return [(False, None)] * len(event.payloads)
    # Without what follows it: a broker does not look at bodies.
    headers = [decode_header(payload[: survey(payload).head_end]) for payload in event.payloads]
    said = decode_header(event.head)
    assert {header.durable for header in headers} == {said.durable}
    if said.ttl is None:
        assert {header.ttl for header in headers} == {None}
    else:
        times = [header.ttl for header in headers if header.ttl is not None]
        assert len(times) == len(headers)
        assert max(times) == said.ttl
        assert said.ttl - min(times) <= EXPIRY_SPAN_MS
    return [(header.durable, header.ttl) for header in headers]
