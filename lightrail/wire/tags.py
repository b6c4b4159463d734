"""Delivery-tags in a frame: the length of each in one byte, then its bytes (transport 2.8.7: at most 32)."""

from collections.abc import Iterable

from lightrail.wire.frames import Buffer, WireError


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
