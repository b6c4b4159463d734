"""A segment: one file of the journal, with counts of its bytes and its readers.

`begun` finds the segments whose header is on disk and not only in the page cache. After a failed sync the
kernel marks written pages as clean although they are not on disk, so a new process may read a header that is
lost when the machine restarts. Only the newest segment can be in this state: a segment is synced before
anything is written to the next one.
"""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightrail.journal.index import BLOCK_BYTES, Block, SegmentIndex
from lightrail.journal.layout import HEADER_SIZE, IDS_FIXED
from lightrail.journal.record import Ids
from lightrail.journal.segment_header import (
    FORMAT_VERSION,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from lightrail.shard.journal.files import DiskFile, Files
from lightrail.shard.journal.store import JournalDamagedError, NewerFormatError
from lightrail.shard.replicas.lineage import RecordEnd
from lightrail.wire.replication import CHECKED_BYTES, checksum_of

SUFFIX: Final = ".segment"


def name_of(number: int) -> str:
    """File name; the order of names is the order of numbers."""
    return f"{number:012d}{SUFFIX}"


def numbers(files: Files) -> list[int]:
    """Numbers of the segment files, in order."""
    return sorted(
        int(name[: -len(SUFFIX)])
        for name in files.names()
        if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdigit()
    )


def checksum_before(file: DiskFile, salt: int, end: RecordEnd) -> int:
    """The checksum of the bytes before this end of a segment, CHECKED_BYTES of them or all; see CHECKED in
    wire/replication.py. Raises OSError."""
    start = max(0, end.offset - CHECKED_BYTES)
    return checksum_of(salt, *end, (file.read(start, end.offset - start),))


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """One file. Only the loop's thread changes it; readers on any thread pin it while they read."""

    number: int
    file: DiskFile
    capacity: int
    """Size of the file on disk in bytes."""
    epoch: int = 0
    """The epoch of the owner that wrote it, as in its header."""
    mark: int = 0
    """The first record at or after this offset begins the next block of the index."""
    messages_before: int = 0
    """The journal's count of messages when this segment began."""
    begun_ms: int = 0
    captured: bool = False
    """Whether there was a captured queue while this segment was written."""
    captured_from: dict[int, int] = field(default_factory=dict)
    """Next sequence of each captured queue when the segment began, or when its capture began."""
    touched: bool = False
    """Whether it has deliveries or ends of messages of a captured queue."""
    end: int = SEGMENT_HEADER_SIZE
    """The offset of the next record."""
    written: int = 0
    """Offset up to which the file can be read; later records wait for a commit."""
    append_bytes: int = 0
    """Bytes of Append records on disk."""
    appended: int = 0
    """Bytes of the messages in these records, counted once per queue."""
    live: int = 0
    """Bytes of messages that are still in their queue."""
    _readers: int = 0
    _closing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    index: SegmentIndex = field(init=False)
    """The index: records add blocks and queues; its other fields are set when the segment is sealed."""

    def __post_init__(self) -> None:
        self.index = SegmentIndex(self.number, 0, 0, SEGMENT_HEADER_SIZE)

    def holds_ids(self, record: Ids) -> None:
        """Counts message-ids as bytes of this segment. The caller counts them as live."""
        self.holds(len(record.digests), HEADER_SIZE + IDS_FIXED.size)

    def holds(self, size: int, around: int = HEADER_SIZE) -> None:
        """Counts bytes that are kept in this segment for a time, as those of messages are."""
        self.append_bytes += around + size
        self.appended += size

    def note(self, lsn: int, offset: int, messages: int, now_ms: int) -> None:
        """Begins a block of the index at this record; `messages` is the journal's count before it."""
        self.index.blocks.append(Block(lsn, offset, messages - self.messages_before, now_ms))
        self.mark = offset + BLOCK_BYTES

    def seal(self, end: int, next_lsn: int, messages: int, last_ms: int) -> None:
        """Seals the segment: no record will be added. `messages` as in `note`."""
        index = self.index
        index.end, index.next_lsn, index.last_ms = end, next_lsn, last_ms
        index.messages = messages - self.messages_before
        index.sealed = True

    def cut(self, lsn: int, last_ms: int) -> None:
        """Cuts the records from this one to the end; their messages must not have been counted yet."""
        index = self.index
        index.blocks = [block for block in index.blocks if block.lsn < lsn]
        index.queues = [offset for offset in index.queues if offset < self.end]
        index.end, index.next_lsn, index.last_ms = self.end, lsn, last_ms

    def written_after(self, size: int) -> int:
        """Number of bytes from the end to the last one of `size` that is not zero; used for a report only."""
        zeros = bytes(1 << 20)
        for start, stop in reversed(self.file.written(self.end)):
            position = min(stop, size)
            while position > start:
                before = max(start, position - len(zeros))
                chunk = self.file.read(before, position - before)
                if chunk != zeros[: len(chunk)]:
                    return before + len(chunk.rstrip(b"\0")) - self.end
                position = before
        return 0

    @property
    def live_bytes(self) -> int:
        """Bytes on disk of records that are still needed, in proportion to their messages."""
        if not self.appended or self.live <= 0:
            return 0
        return min(self.append_bytes, self.append_bytes * self.live // self.appended)

    def pin(self) -> bool:
        """Keeps the file open for a reader; False if the file is already closing."""
        with self._lock:
            if self._closing:
                return False
            self._readers += 1
            return True

    def unpin(self) -> None:
        """Ends the use by one reader."""
        with self._lock:
            self._readers -= 1
            close = self._closing and self._readers == 0
        if close:
            self.file.close()

    def close(self) -> bool:
        """Closes the file, now or when the last reader has ended; True if there was no reader."""
        with self._lock:
            if self._closing:
                return True
            self._closing = True
            idle = self._readers == 0
        if idle:
            self.file.close()
        return idle


def begun(opened: Mapping[int, DiskFile], salt: int) -> list[tuple[int, SegmentHeader]]:
    """All segments from the first begun one to the last, in order.

    The last of them is synced, and its cached pages are dropped, so that later reads come from the disk.

    Raises:
        JournalDamagedError: a header between the first and the last is missing or of another journal.
        NewerFormatError: a segment has a newer format.
        OSError: a call of the disk failed.
    """
    return _Headers(opened, salt).run()


@dataclass(slots=True, eq=False, repr=False)
class _Headers:
    """Reads and checks the headers of a journal's files, once."""

    _opened: Mapping[int, DiskFile]
    _salt: int

    def run(self) -> list[tuple[int, SegmentHeader]]:
        """See `begun`."""
        opened = self._opened
        for number in sorted(opened, reverse=True):
            if self._header(number) is not None:
                # After a power cut or a failed sync the page cache may have bytes that the disk lacks, so the
                # header is read again from the disk. If it is not there, the segment was never begun, and the
                # segment before it is checked in the same way.
                opened[number].sync()
                opened[number].forget()
                if self._header(number) is not None:
                    break
        found = {number: header for number in opened if (header := self._header(number)) is not None}
        if found:
            for number in range(max(found), min(opened) - 1, -1):
                if number not in opened:
                    raise JournalDamagedError(name_of(number), 0, "the file is missing")
                if number not in found:
                    found[number] = self._unused(number, found[number + 1])
        return sorted(found.items())

    def _header(self, number: int) -> SegmentHeader | None:
        """The header of a segment; None if the file has none, or one from its use for an earlier segment."""
        header = decode_segment_header(self._opened[number].read(0, SEGMENT_HEADER_SIZE))
        if header is None or header.segment != number:
            return None
        if header.version > FORMAT_VERSION:
            raise NewerFormatError(
                f"segment {name_of(number)} has format version {header.version}, this program knows "
                f"{FORMAT_VERSION} and older: start it with the newer program that wrote it"
            )
        if header.salt != self._salt:
            raise JournalDamagedError(name_of(number), 0, "the header of a segment of another journal")
        return header

    def _unused(self, number: int, following: SegmentHeader) -> SegmentHeader:
        """Writes the header of an empty segment again.

        Earlier versions accepted a header that was only in the page cache, truncated its segment to the
        length of a header that was not on disk, and began the next segment. A file too short for any record
        has lost none; recovery checks for a gap between the neighbouring segments as usual.
        """
        file = self._opened[number]
        if file.size() > SEGMENT_HEADER_SIZE or file.links() > 1:
            raise JournalDamagedError(name_of(number), 0, "no header of this segment")
        data = encode_segment_header(number, following.first_lsn, self._salt, following.epoch)
        file.write(0, [data])
        file.sync()
        header = decode_segment_header(data)
        assert header is not None
        return header


def salt_of(files: Files) -> int | None:
    """The salt in the first segment header that can be read: for a directory that lost its identity file."""
    for number in numbers(files):
        with contextlib.closing(files.open(name_of(number))) as file:
            header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
            if header is not None:
                return header.salt
    return None
