"""The record of a terminus: the state of a client's link that outlives the process of a shard (2.6.13).

The layout is drawn in docs/formats/journal.md, with those of the other records (layout.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

TERMINUS_FIXED: Final = Struct("<Q16sQBBHI")
"""queue, digits of the client's link, suspended_ms u64, event u8, durability u8, bytes of the user u16, bytes
of the tags u32."""
DIGITS_BYTES: Final = 16
"""Length of the digits of a client's link, which are 32 hexadecimal digits everywhere else."""


class TerminusEvent(IntEnum):
    """What happened to a terminus; the journal stores the number."""

    BEGUN = 1
    """It exists, with the fields of the record, and has these tags besides those that it had. With the flag
    REWRITTEN the record has all of its tags, and older records are no longer needed."""
    STORED = 2
    """Messages with these tags were stored. In one group with their Append."""
    SETTLED = 3
    """The client has settled the deliveries with these tags."""
    ENDED = 4
    """Nothing of it is kept any longer."""


@dataclass(slots=True)
class Terminus:
    """A change of the terminus of a client's link that sends to a queue."""

    queue: int
    link: bytes
    """16 bytes: the digits that identify the client's link (`client_link` in wire/bodies.py)."""
    event: int
    durability: int = 0
    """`terminus-durability` (messaging 3.5.5): 1 configuration, 2 unsettled-state."""
    suspended_ms: int = 0
    """How long it is kept without a link."""
    tags: Sequence[bytes] = ()
    """Delivery-tags, of at most 32 bytes each."""
    flags: int = 0
    user: str = ""
    """BEGUN: the user towards whose share it counts; "" if it is not known, as in format version 7."""

    @property
    def size(self) -> int:
        """Bytes of the user and of the column of its tags."""
        return len(self.user.encode()) + len(self.tags) + sum(map(len, self.tags))


def encode_terminus(record: Terminus) -> bytes:
    """Body of a Terminus record."""
    user, tags = record.user.encode(), encode_tags(record.tags)
    fixed = TERMINUS_FIXED.pack(
        record.queue,
        record.link,
        record.suspended_ms,
        record.event,
        record.durability,
        len(user),
        len(tags),
    )
    return b"".join((fixed, user, tags))


def decode_terminus(data: bytes | memoryview, start: int, end: int, flags: int) -> Terminus:
    """The Terminus record whose body is data[start:end]. Raises ValueError."""
    queue, link, suspended_ms, event, durability, named, size = TERMINUS_FIXED.unpack_from(data, start)
    position = start + TERMINUS_FIXED.size
    middle = position + named
    if middle + size != end:
        raise ValueError(f"a Terminus with {named} bytes of a user, {size} of tags has {end - start} bytes")
    user, tags = bytes(data[position:middle]).decode(), decode_tags(bytes(data[middle:end]))
    return Terminus(queue, link, TerminusEvent(event), durability, suspended_ms, tags, flags, user)


def encode_tags(tags: Iterable[bytes]) -> bytes:
    """A column of tags: the length of each in one byte, then its bytes."""
    parts: list[bytes] = []
    for tag in tags:
        parts += (len(tag).to_bytes(1, "big"), tag)
    return b"".join(parts)


def decode_tags(data: bytes) -> list[bytes]:
    """The tags of such a column. Raises ValueError."""
    tags: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + 1 + data[position]
        if end > len(data):
            raise ValueError(f"a tag of {data[position]} bytes has {len(data) - position - 1}")
        tags.append(data[position + 1 : end])
        position = end
    return tags
