"""The spare segment, which is allocated in advance, and the behaviour on a full disk.

Messages are appended only while there is a spare segment, or while one can be made; otherwise the rest of the
current segment is reserved for settlements, whose number is bounded by the stored messages. When the disk is
full, a segment that the cleaner dropped becomes the spare at once.

Two threads use this module: the loop begins segments, the commit thread prepares the next one. A call of the
disk may block the commit thread for as long as the disk hangs; the loop uses a segment that is ready and
never waits for that thread. While a commit is under way, the commit thread makes the spare and retries on a
full disk. The loop makes a segment only between commits, or if one message needs more than the quarter of a
segment that is left when new messages begin to wait (`Tail.is_crowded`) and the commit thread is not making
one.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightrail.model import limits
from lightrail.shard.journal.files import NO_SPACE, DiskFile, Files
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.shard.journal.store import StoreBusyError, StoreFullError

CLEAN_LIVE_FACTOR: Final[int] = 2
"""Disk use stays below this times the live bytes, and CLEAN_SLACK_SEGMENTS segments."""
CLEAN_SLACK_SEGMENTS: Final[int] = 2
CLEAN_SLACK_FILES: Final[int] = 16
"""Files beyond the number that the bytes need that are not cleaned: each restart makes a short file."""
NOT_READY: Final = (
    "expected the next segment to be ready, found that the commit before it has not ended, because the disk "
    "is slower than the incoming messages: send again in a moment"
)


def oldest_to_clean(
    segments: Sequence[Segment], segment_bytes: int, spare_bytes: int, room: int | None
) -> int | None:
    """The oldest segment, if it has no live messages, or if settled messages use too much of the disk.

    Disk use stays within a factor of live bytes. Only the oldest segment may be dropped: a settlement refers
    to messages in the same segment or an older one, so no message that is settled in the oldest segment can
    return when this segment is dropped.

    Args:
        segments: in order; the last one is being written.
        spare_bytes: size of the prepared spare segment.
        room: if the disk is full, number of bytes that can still be written; else None.
    """
    if len(segments) < 2:
        return None
    oldest = segments[0]
    if oldest.live <= 0:
        return oldest.number
    total = spare_bytes + sum([segment.capacity for segment in segments])
    live = sum([segment.live_bytes for segment in segments])
    needed = CLEAN_LIVE_FACTOR * live + CLEAN_SLACK_SEGMENTS * segment_bytes
    if total <= needed and len(segments) <= CLEAN_SLACK_FILES + 2 * (total // segment_bytes):
        return None
    if room is not None and oldest.live_bytes * 2 > room:
        return None
    return oldest.number


@dataclass(slots=True, eq=False, repr=False)
class Space:
    """Makes segment files, one ahead of need, and removes those that are not needed."""

    _files: Files
    _segment_bytes: int
    _next: int
    _making: threading.Lock = field(default_factory=threading.Lock)
    """Lock for making and removing files; the loop never waits for it."""
    _is_wanted: bool = False
    """The loop needs a spare segment, which the commit under way makes at its end."""
    _asked_at_ms: int = -limits.FULL_RETRY_MS
    spare: Segment | None = None
    is_committing: bool = False
    """A commit is under way. Set by the loop."""
    full: bool = False
    """Whether the last attempt to make a spare found no space."""
    made: int = 0
    free: Callable[[int], bool] | None = None
    """Called to make room before the disk counts as full; returns whether it removed anything."""

    def ensure(self, now_ms: int) -> None:
        """Makes sure that there is a spare segment; retries on a full disk every FULL_RETRY_MS.

        While a commit is under way, its thread makes one, and the rest of the current segment is used.

        Raises:
            StoreFullError: there is no spare segment, and none can be made.
        """
        if self.full and self._asked_at_ms <= now_ms < self._asked_at_ms + limits.FULL_RETRY_MS:
            raise StoreFullError(self.refusal())
        self._asked_at_ms = now_ms
        if self.is_committing:
            self._is_wanted = True
            if self.full:
                raise StoreFullError(self.refusal())
            return
        self._prepare_without_waiting()
        if self.spare is None:
            raise StoreFullError(self.refusal())

    def take(self, needed: int) -> Segment:
        """Returns the spare segment, with room for at least `needed` bytes.

        Raises:
            StoreFullError: there is none of that size; nothing has changed.
            StoreBusyError: the commit under way makes one at its end.
        """
        if self.spare is None:
            self._prepare_without_waiting()
        spare = self.spare
        if spare is None:
            if self.is_committing and not self.full:
                raise StoreBusyError(NOT_READY)
            raise StoreFullError(self.refusal() if self.full else NOT_READY)
        if spare.capacity < needed:
            try:
                self._allocate(spare.file, needed)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                raise StoreFullError(self.refusal()) from error
            spare.capacity = needed
        # In this order, because the commit thread makes the next spare as soon as there is none.
        self._next = spare.number + 1
        self.spare = None
        return spare

    @property
    def is_untidy(self) -> bool:
        """Whether `tidy` would have something to do, without drops."""
        return self._is_wanted or (self.spare is None and not self.full)

    def tidy(self, drops: list[Segment]) -> None:
        """Called by the commit thread after the sync: removes these segments, the oldest first, and makes
        the spare."""
        with self._making:
            for segment in drops:
                if not (self.full and self._recycle(segment)):
                    segment.close()
                    self._files.remove(name_of(segment.number))
                    self._files.sync()
            if not self.full or drops or self._is_wanted:
                self._is_wanted = False
                self._prepare()

    def close(self) -> None:
        """Closes the spare's file; the next start removes it."""
        if self.spare is not None:
            self.spare.close()
            self.spare = None

    def _prepare_without_waiting(self) -> None:
        """Called by the loop: makes a spare, unless the commit thread will make one."""
        if self.full and self.is_committing:
            self._is_wanted = True
        elif self._making.acquire(blocking=False):
            try:
                self._prepare()
            finally:
                self._making.release()

    def _prepare(self) -> None:
        if self.spare is None:
            name = name_of(self._next)
            file = None
            try:
                file = self._files.create(name)
                self._allocate(file, self._segment_bytes)
            except OSError as error:
                if file is not None:
                    file.close()
                    self._files.remove(name)
                if error.errno not in NO_SPACE:
                    raise
                self.full = True
                return
            self._files.sync()
            self._ready(file, self._segment_bytes)
        self.full = False

    def _allocate(self, file: DiskFile, size: int) -> None:
        """Like `DiskFile.allocate`; on a full disk, calls `free` first."""
        while True:
            try:
                file.allocate(size)
                return
            except OSError as error:
                if error.errno not in NO_SPACE or self.free is None or not self.free(size):
                    raise

    def _recycle(self, segment: Segment) -> bool:
        """Makes the file of a dropped segment the spare, unless it is too small or in the archive too.

        Its old records have lower numbers than all that will be written, so that recovery does not mistake
        them for records of the new segment.
        """
        if self.spare is not None or segment.capacity * 2 < self._segment_bytes:
            return False
        if segment.file.links() > 1 or not segment.close():
            return False  # The file is in the archive, or is being read.
        name = name_of(self._next)
        self._files.rename(name_of(segment.number), name)
        self._files.sync()
        file = self._files.open(name)
        capacity = segment.capacity
        try:
            file.allocate(self._segment_bytes)
            capacity = max(capacity, self._segment_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        self._ready(file, capacity)
        return True

    def _ready(self, file: DiskFile, capacity: int) -> None:
        self.spare = Segment(self._next, file, capacity)
        self.made += 1

    def refusal(self) -> str:
        """The error text while the disk is full."""
        return (
            f"expected room for a segment of {self._segment_bytes} bytes, found none: free space on the "
            "disk, or let receivers settle messages; then senders continue without a restart"
        )
