"""A segment: one file of the journal, with the figures of its space and its readers."""

import threading
from typing import Final

from lightrail.journal.index import BLOCK_BYTES, Block, SegmentIndex
from lightrail.journal.layout import (
    HEADER_SIZE,
    IDS_FIXED,
)
from lightrail.journal.record import Ids
from lightrail.journal.segment_header import (
    SEGMENT_HEADER_SIZE,
)
from lightrail.shard.journal.files import DiskFile, Files

SUFFIX: Final = ".segment"


def name_of(number: int) -> str:
    """File name; sorted by name is sorted by number."""
    return f"{number:012d}{SUFFIX}"


def numbers(files: Files) -> list[int]:
    """Numbers of the segment files, in order."""
    return sorted(
        int(name[: -len(SUFFIX)])
        for name in files.names()
        if name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdigit()
    )


class Segment:
    """One file. The loop's thread changes it, readers of any thread pin it while they read."""

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
        """Bytes of the file on disk."""
        self.index = SegmentIndex(number, 0, 0, SEGMENT_HEADER_SIZE)
        """Its blocks and queues grow with every record; the rest is set when it is sealed."""
        self.mark = 0
        """The record at this offset, or the first one behind it, begins a block of the index."""
        self.messages_before = 0
        """The counts of the journal when this segment began."""
        self.begun_ms = 0
        self.captured = False
        """A captured queue was there while this segment was written."""
        self.captured_from: dict[int, int] = {}
        """The next sequence of each when it was begun, or captured first."""
        self.touched = False
        """Whether it has deliveries or ends of messages of a captured queue."""
        self.end = SEGMENT_HEADER_SIZE
        """The offset of the next record."""
        self.written = 0
        """Up to here the file can be read; beyond, records wait for a commit."""
        self.append_bytes = 0
        """Bytes of Append records on disk."""
        self.appended = 0
        """Of the messages in them, once per queue."""
        self.live = 0
        """Bytes of messages that are still in their queue."""
        self._readers = 0
        self._closing = False
        self._lock = threading.Lock()

    def holds_ids(self, record: Ids) -> None:
        """Counts message-ids in this segment, as messages are counted. The caller counts them as live."""
        self.holds(len(record.digests), HEADER_SIZE + IDS_FIXED.size)

    def holds(self, size: int, around: int = HEADER_SIZE) -> None:
        """Counts bytes that are kept in this segment until something ends them, as messages are counted."""
        self.append_bytes += around + size
        self.appended += size

    def note(self, lsn: int, offset: int, messages: int, now_ms: int) -> None:
        """Begins a block of the index at this record; `messages` is the journal's count before it."""
        self.index.blocks.append(Block(lsn, offset, messages - self.messages_before, now_ms))
        self.mark = offset + BLOCK_BYTES

    def seal(self, end: int, next_lsn: int, messages: int, last_ms: int) -> None:
        """Nothing will be added; `messages` as in `note`."""
        index = self.index
        index.end, index.next_lsn, index.last_ms = end, next_lsn, last_ms
        index.messages = messages - self.messages_before
        index.sealed = True

    def cut(self, lsn: int, last_ms: int) -> None:
        """Cuts the records from this one to the end; their messages were not counted yet."""
        index = self.index
        index.blocks = [block for block in index.blocks if block.lsn < lsn]
        index.queues = [offset for offset in index.queues if offset < self.end]
        index.end, index.next_lsn, index.last_ms = self.end, lsn, last_ms

    @property
    def live_bytes(self) -> int:
        """Bytes on disk of records that are still needed, in proportion to their messages."""
        if not self.appended or self.live <= 0:
            return 0
        return min(self.append_bytes, self.append_bytes * self.live // self.appended)

    def pin(self) -> bool:
        """Keeps the file open for a reader; False when it is already going."""
        with self._lock:
            if self._closing:
                return False
            self._readers += 1
            return True

    def unpin(self) -> None:
        """The reader is done."""
        with self._lock:
            self._readers -= 1
            close = self._closing and self._readers == 0
        if close:
            self.file.close()

    def close(self) -> bool:
        """Closes the file, now or when the last reader is done; True when there was none."""
        with self._lock:
            if self._closing:
                return True
            self._closing = True
            idle = self._readers == 0
        if idle:
            self.file.close()
        return idle
