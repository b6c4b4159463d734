"""Columns of a frame that are no arrays.

Delivery-tags in a frame: the length of each in one byte, then its bytes (transport 2.8.7: at most 32).

Ranges of delivery numbers in a frame: the first number u64 and the count u32 of each.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from lightrail.wire.frames import Buffer, WireError

RANGE: Final = struct.Struct("<QI")
SUSPENDED: Final = struct.Struct("<QQ")
"""Before the ranges of an UNSETTLED to a consumer: the prefix of the link's delivery-tags, and the next
delivery number."""

Range = tuple[int, int]
"""First number, and count."""


def encode_ranges(ranges: Iterable[Range]) -> bytes:
    """The ranges as (the end of) the body of a frame."""
    return b"".join(RANGE.pack(*each) for each in ranges)


def decode_ranges(body: Buffer) -> list[Range]:
    """The ranges of such a body. Raises WireError."""
    try:
        return [(first, count) for first, count in RANGE.iter_unpack(body)]
    except struct.error as error:
        raise WireError(
            f"expected ranges of {RANGE.size} bytes each, found {len(bytes(body))} bytes"
        ) from error


def encode_suspended(terminus: int, number: int, ranges: Iterable[Range]) -> bytes:
    """The body of an UNSETTLED to a consumer."""
    return SUSPENDED.pack(terminus, number) + encode_ranges(ranges)


def decode_suspended(body: Buffer) -> tuple[int, int, list[Range]]:
    """(terminus, next number, ranges) of such a body. Raises WireError."""
    try:
        terminus, number = SUSPENDED.unpack_from(body)
    except struct.error as error:
        raise WireError(f"expected at least {SUSPENDED.size} bytes, found {len(bytes(body))}") from error
    return terminus, number, decode_ranges(memoryview(body)[SUSPENDED.size :])


def joined(numbers: Iterable[int]) -> Iterator[Range]:
    """Ranges of rising numbers."""
    first = count = 0
    for number in numbers:
        if count and number == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count


def encode_tags(tags: Iterable[bytes]) -> bytes:
    """The tags as the body of a frame."""
    parts: list[bytes] = []
    for tag in tags:
        parts += (len(tag).to_bytes(1, "big"), tag)
    return b"".join(parts)


def decode_tags(body: Buffer) -> list[bytes]:
    """The tags of such a body. Raises WireError."""
    data = bytes(body)
    tags: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + 1 + data[position]
        if end > len(data):
            raise WireError(f"expected a tag of {data[position]} bytes, found {len(data) - position - 1}")
        tags.append(data[position + 1 : end])
        position = end
    return tags
