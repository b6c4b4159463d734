"""A segment: one file of the journal, with counts of its bytes and its readers."""

import threading
from typing import Final

from lightrail.journal.index import BLOCK_BYTES, Block, SegmentIndex
from lightrail.journal.layout import HEADER_SIZE, IDS_FIXED
from lightrail.journal.record import Ids
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.shard.journal.files import DiskFile, Files

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


class Segment:
    """One file. Only the loop's thread changes it; readers on any thread pin it while they read."""

    __slots__ = (
        "_closing",
        "_lock",
        "_readers",
        "append_bytes",
        "appended",
        "begun_ms",
        "capacity",
        "captured",
        "captured_from",
        "end",
        "file",
        "index",
        "live",
        "mark",
        "messages_before",
        "number",
        "touched",
        "written",
    )

    def __init__(self, number: int, file: DiskFile, capacity: int) -> None:
        self.number: Final = number
        self.file = file
        self.capacity = capacity
        """Size of the file on disk in bytes."""
        self.index = SegmentIndex(number, 0, 0, SEGMENT_HEADER_SIZE)
        """The index: records add blocks and queues; its other fields are set when the segment is sealed."""
        self.mark = 0
        """The first record at or after this offset begins the next block of the index."""
        self.messages_before = 0
        """The journal's count of messages when this segment began."""
        self.begun_ms = 0
        self.captured = False
        """Whether there was a captured queue while this segment was written."""
        self.captured_from: dict[int, int] = {}
        """Next sequence of each captured queue when the segment began, or when its capture began."""
        self.touched = False
        """Whether it has deliveries or ends of messages of a captured queue."""
        self.end = SEGMENT_HEADER_SIZE
        """The offset of the next record."""
        self.written = 0
        """Offset up to which the file can be read; later records wait for a commit."""
        self.append_bytes = 0
        """Bytes of Append records on disk."""
        self.appended = 0
        """Bytes of the messages in these records, counted once per queue."""
        self.live = 0
        """Bytes of messages that are still in their queue."""
        self._readers = 0
        self._closing = False
        self._lock = threading.Lock()

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
