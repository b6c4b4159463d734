"""The record of a receiver: a client's link on which it receives, and its deliveries, which outlive the
process of a shard (2.6.13).

The layout is drawn in docs/formats/journal.md, with those of the other records (layout.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

RECEIVER_FIXED: Final = Struct("<Q16sQB3xII")
"""queue, digits of the client's link, next delivery number u64, event u8, 3 reserved bytes, bytes of the
opening u32, number of runs u32."""
DELIVERY_RUN: Final = Struct("<QQQ")
"""delivery number, sequence, count."""

DeliveryRun = tuple[int, int, int]
"""(delivery number, sequence, count): deliveries that are consecutive in both."""


class ReceiverEvent(IntEnum):
    """What happened to a receiver; the journal stores the number."""

    BEGUN = 1
    """It exists, with this opening. With the flag REWRITTEN the record has all of its deliveries, and older
    records are no longer needed; without it, it has these besides those that it had."""
    DELIVERED = 2
    """These messages are about to be delivered to it."""
    SETTLED = 3
    """These deliveries have ended, with or without an outcome."""
    ENDED = 4
    """Nothing of it is kept any longer."""


@dataclass(slots=True)
class Receiver:
    """A change of a link on which a client receives from a queue, and that it may resume."""

    queue: int
    link: bytes
    """16 bytes: the digits that identify the client's link (`client_link` in wire/bodies.py)."""
    event: int
    next: int = 0
    """Its next delivery number."""
    opening: bytes = b""
    """BEGUN: the body of its CONSUMER_OPEN."""
    runs: Sequence[DeliveryRun] = ()
    flags: int = 0

    @property
    def size(self) -> int:
        """Bytes of the opening and the runs."""
        return len(self.opening) + DELIVERY_RUN.size * len(self.runs)


def encode_receiver(record: Receiver) -> bytes:
    """Body of a Receiver record."""
    fixed = RECEIVER_FIXED.pack(
        record.queue, record.link, record.next, record.event, len(record.opening), len(record.runs)
    )
    return b"".join((fixed, record.opening, *(DELIVERY_RUN.pack(*run) for run in record.runs)))


def decode_receiver(data: bytes | memoryview, start: int, end: int, flags: int) -> Receiver:
    """The Receiver record whose body is data[start:end]. Raises ValueError."""
    queue, link, next_number, event, size, count = RECEIVER_FIXED.unpack_from(data, start)
    position = start + RECEIVER_FIXED.size
    middle = position + size
    if middle + DELIVERY_RUN.size * count != end:
        raise ValueError(f"a Receiver of {count} runs has {end - start} bytes")
    runs = [
        (first, sequence, length) for first, sequence, length in DELIVERY_RUN.iter_unpack(data[middle:end])
    ]
    opening = bytes(data[position:middle])
    return Receiver(queue, link, ReceiverEvent(event), next_number, opening, runs, flags)
