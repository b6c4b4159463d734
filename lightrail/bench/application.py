"""Messages as applications send them, with the fields of most client libraries and bodies of many sizes.

::

    00 53 70 list  durable, priority, ttl                              header (spec 3.2.1)
    00 53 72 map   kind of message and of destination                  message-annotations, of JMS clients
    00 53 73 list  message-id, subject, content-type,                  properties (spec 3.2.4)
                   absolute-expiry-time (of JMS clients, with a ttl), creation-time
    00 53 74 map   two texts                                           application-properties (spec 3.2.5)

A list is list8 (c0) as qpid-proton writes it, or list32 (d0) as rhea and go-amqp write each list.
"""

import random
import struct
import time
from dataclasses import dataclass
from typing import Final

from lightrail.bench.values import NULL, listed, text

SIZES: Final = (50, 750)
"""Smallest and largest body, in bytes."""
FORMS: Final = 256
"""Number of different sizes, which are sent in turn."""
_TIMESTAMP: Final = struct.Struct(">q")
_JMS: Final = b"\x00\x53\x72\xc1\x29\x04\xa3\x12x-opt-jms-msg-type\x51\x03\xa3\x0ex-opt-jms-dest\x51\x00"
"""Annotations of Qpid JMS for a message of bytes to a queue."""


def sizes(origin: int) -> list[int]:
    """Sizes of the bodies of one sender: random, and the same in each run of the same sender."""
    chance = random.Random(origin & 0xFFFFF)
    return [chance.randint(*SIZES) for _ in range(FORMS)]


@dataclass(frozen=True, slots=True)
class Times:
    """Times of expiry and creation, as JMS clients write them into each message.

    Two timestamps of nine octets each, the first of them at ``at``.
    """

    at: int
    ttl_ms: int

    def write(self, buffer: bytearray, sequence: int) -> None:
        """Write the times of one message that is sent now."""
        now_ms = time.time_ns() // 1_000_000
        _TIMESTAMP.pack_into(buffer, self.at + 1, now_ms + self.ttl_ms)
        _TIMESTAMP.pack_into(buffer, self.at + 10, now_ms)


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections before the body, and the offsets of the parts that differ between messages; 0 for none."""

    octets: bytes
    priority_at: int
    id_digits_at: int
    times: Times | None


def sections(
    durable: bool, priority: bool, ttl_ms: int, jms: bool, id: str, digits: int, wide: bool
) -> Sections:
    """The sections before the body.

    Args:
        priority: whether the header has one.
        ttl_ms: of the header; 0: none.
        jms: with annotations as JMS clients write them, and with a ttl absolute-expiry-time.
        id: beginning of the message-id; `digits` zeros follow.
        wide: lists as list32.
    """
    head = [b"\x41" if durable else b"\x42"]
    if priority or ttl_ms:
        head.append(b"\x50\x04" if priority else NULL)
    if ttl_ms:
        head.append(b"\x70" + struct.pack(">I", ttl_ms))
    header = b"\x00\x53\x70" + listed(head, wide)
    priority_at = len(header) - (6 if ttl_ms else 1) if priority else 0
    if jms:
        header += _JMS
    message_id = text(id + "0" * digits)
    created = b"\x83" + _TIMESTAMP.pack(time.time_ns() // 1_000_000)
    fields = [message_id, NULL, NULL, text("order.created"), NULL, NULL, b"\xa3\x10application/json"]
    fields += [NULL, created if jms and ttl_ms else NULL, created]
    properties = b"\x00\x53\x73" + listed(fields, wide)
    pairs = text("tenant") + text("acme") + text("region") + text("eu-west-1")
    application = b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 4]) + pairs
    id_end = len(header) + properties.index(message_id) + len(message_id)
    expiry_at = len(header) + len(properties) - 2 * len(created)
    return Sections(
        header + properties + application,
        priority_at,
        id_end - digits,
        Times(expiry_at, ttl_ms) if jms and ttl_ms else None,
    )
