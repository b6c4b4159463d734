"""The index of a segment: offsets of some of its records, so that readers may begin in the middle.

A block is about BLOCK_BYTES long. It begins at a record, which is at or before the end of the previous block.
The index has no records within a block; readers go from record to record.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lightrail.journal.layout import APPEND, GAP, HEADER_SIZE, QUEUE, U64, decode_append_head
from lightrail.journal.scan import Found, Readable, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, SegmentHeader

FORMAT: Final = 1
BLOCK_BYTES: Final = 1024 * 1024


class Block(NamedTuple):
    """A record that a reader may begin at."""

    lsn: int
    offset: int
    """Offset of the record in the segment."""
    messages: int
    """Messages in the Append records of the segment before it; a message for several queues counts once."""
    timestamp: int
    """Time of the record, in milliseconds since 1970-01-01 UTC."""


@dataclass(slots=True)
class SegmentIndex:
    """Offsets in the committed part of one segment."""

    segment: int
    first_lsn: int
    next_lsn: int
    """Number after that of the last record: the index covers records first_lsn to before this."""
    end: int
    """Offset at which record next_lsn begins, or will begin: bytes before it are committed."""
    messages: int = 0
    last_ms: int = 0
    """The latest time of a record."""
    sealed: bool = False
    """Whether no more records will be added to the segment."""
    blocks: list[Block] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    """Offsets of Queue records, each of which changes the name or policy of a queue number. The Snapshot at
    the head has the names at the start."""

    def encode(self) -> str:
        """The text of an index file."""
        fields = {name: getattr(self, name) for name in _PLAIN}
        return json.dumps({"format": FORMAT, **fields, "blocks": self.blocks, "queues": self.queues})


_PLAIN: Final = ("segment", "first_lsn", "next_lsn", "end", "messages", "last_ms", "sealed")


class BadIndexError(Exception):
    """The text of an index that is not of this format."""


def decode_index(text: str) -> SegmentIndex:
    """Decodes an index file.

    Raises:
        BadIndexError: it is not of this format.
    """
    try:
        fields = json.loads(text)
        if fields["format"] > FORMAT:
            raise BadIndexError(f"the index has format {fields['format']}, this version reads up to {FORMAT}")
        plain = {name: fields[name] for name in _PLAIN}
        return SegmentIndex(
            **plain, blocks=[Block(*each) for each in fields["blocks"]], queues=fields["queues"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadIndexError(f"expected the index of a segment, found {text[:100]!r}") from error


def index_of(header: SegmentHeader, found: Iterable[Found]) -> SegmentIndex:
    """Makes the index from records that were read in order."""
    index = SegmentIndex(header.segment, header.first_lsn, header.first_lsn, SEGMENT_HEADER_SIZE)
    marked = -BLOCK_BYTES
    for each in found:
        if each.offset - marked >= BLOCK_BYTES:
            index.blocks.append(Block(each.lsn, each.offset, index.messages, each.timestamp))
            marked = each.offset
        if each.code == APPEND:
            index.messages += decode_append_head(each.view, each.start, each.length)[0].messages
        elif each.code == QUEUE:
            index.queues.append(each.offset)
        index.next_lsn, index.end = each.lsn + 1, each.offset + each.length
        index.last_ms = max(index.last_ms, each.timestamp)
    return index


def read_index(header: SegmentHeader, file: Readable, end: int) -> tuple[SegmentIndex, str]:
    """Makes the index by reading a segment; also returns the description of what follows its last record."""
    scan = Scan(file, header.salt, SEGMENT_HEADER_SIZE, end, header.first_lsn)
    index = index_of(header, over_gaps(scan))
    if scan.lsn is not None:
        index.next_lsn = scan.lsn
    return index, scan.found


def over_gaps(scan: Scan) -> Iterator[Found]:
    """All records, across ranges that a repair replaced by Gap records."""
    for found in scan:
        if found.code == GAP:
            (next_lsn,) = U64.unpack_from(found.view, found.start + HEADER_SIZE)
            scan.skip_to(next_lsn)
        yield found
