"""The header of a segment file, drawn in docs/formats/journal.md; little-endian."""

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

FORMAT_VERSION: Final = 9
SEGMENT_MAGIC: Final = b"LRSEGMNT"
SEGMENT_HEADER: Final = Struct("<8sHHIQQII")
"""magic, format version u16, reserved u16, crc32 u32 (of the rest), segment u64, first lsn u64, salt u32,
epoch u32."""
_SEGMENT_REST: Final = Struct("<QQII")
SEGMENT_HEADER_SIZE: Final = SEGMENT_HEADER.size

Bytes = bytes | memoryview


class SegmentHeader(NamedTuple):
    """The header of a segment file."""

    version: int
    segment: int
    first_lsn: int
    salt: int
    """Start value of the checksums of its records; one per journal, drawn when the journal is made. Without
    it a client could send bytes that look like a record, and a torn end could be mistaken for damage."""
    epoch: int = 0
    """The epoch of the owner that wrote the segment; 0 for a shard without replicas, and up to version 8."""


def encode_segment_header(segment: int, first_lsn: int, salt: int, epoch: int = 0) -> bytes:
    """The first bytes of a segment file."""
    checksum = crc32(_SEGMENT_REST.pack(segment, first_lsn, salt, epoch))
    return SEGMENT_HEADER.pack(SEGMENT_MAGIC, FORMAT_VERSION, 0, checksum, segment, first_lsn, salt, epoch)


def decode_segment_header(data: Bytes) -> SegmentHeader | None:
    """Decodes the first bytes of a file; None if they are no header of a segment."""
    if len(data) < SEGMENT_HEADER_SIZE:
        return None
    magic, version, _, checksum, segment, first_lsn, salt, epoch = SEGMENT_HEADER.unpack_from(data)
    if magic != SEGMENT_MAGIC or checksum != crc32(_SEGMENT_REST.pack(segment, first_lsn, salt, epoch)):
        return None
    return SegmentHeader(version, segment, first_lsn, salt, epoch)
