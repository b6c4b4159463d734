"""A segment: one file of the journal, with what is known of its space and of who reads it."""

import threading
from typing import Final

from lightrail.journal.layout import HEADER_SIZE, IDS_FIXED, SEGMENT_HEADER_SIZE
from lightrail.journal.record import Ids
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
        "capacity",
        "end",
        "file",
        "first_lsn",
        "live",
        "number",
        "written",
    )

    def __init__(self, number: int, file: DiskFile, capacity: int) -> None:
        self.number: Final = number
        self.file: Final = file
        self.capacity = capacity
        """Bytes the file takes on disk."""
        self.first_lsn = 0
        self.end = SEGMENT_HEADER_SIZE
        """Where the next record goes."""
        self.written = 0
        """Up to here the file can be read; beyond, records wait for a commit."""
        self.append_bytes = 0
        """Of Append records, as they take space on disk."""
        self.appended = 0
        """Of the messages in them, once per queue."""
        self.live = 0
        """Of those that are still in their queue."""
        self._readers = 0
        self._closing = False
        self._lock = threading.Lock()

    def holds_ids(self, record: Ids) -> None:
        """Message-ids were written here: they take space as messages do. The caller counts them as live."""
        size = len(record.digests)
        self.append_bytes += HEADER_SIZE + IDS_FIXED.size + size
        self.appended += size

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
