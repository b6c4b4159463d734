"""Sent: a batch of a sender that is being passed to listeners."""

from bisect import bisect_right

from lightrail.shard.links.relaying.sender import Sender
from lightrail.wire.frames import (
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    HEADER_SIZE,
    OutcomeCode,
)


class Sent:
    """The messages of one batch of a sender that no listener has received yet."""

    __slots__ = (
        "_base",
        "_ends",
        "_part",
        "count",
        "expires_at_ms",
        "first",
        "message_format",
        "number",
        "sender",
    )

    def __init__(self, sender: Sender, part: bytes, messages: int, number: int) -> None:
        self.sender = sender
        self.number = number
        self.count = messages
        self.first = 0
        """Index of the next message."""
        self.expires_at_ms, self.message_format, _size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        self._part = part
        self._base = ENQUEUE_ENDS + 4 * messages
        self._ends = memoryview(part)[ENQUEUE_ENDS : self._base].cast("I")

    @property
    def size(self) -> int:
        """Bytes in memory, which are used until its last message is passed on."""
        return len(self._part)

    @property
    def left(self) -> int:
        """Number of remaining messages."""
        return self.count - self.first

    def fitting(self, last: int, room: int) -> int:
        """The end of the messages before `last` that have at most `room` bytes together."""
        return bisect_right(self._ends, self._start + room, self.first, last)

    def size_to(self, last: int) -> int:
        """Bytes of the messages from the next one to before `last`."""
        size: int = self._ends[last - 1] - self._start
        return size

    def take(self, last: int) -> tuple[int, memoryview, memoryview]:
        """Removes the messages before `last`; returns the offset from which their ends count, the ends, and
        the bytes."""
        start, first = self._start, self.first
        self.first = last
        blob = memoryview(self._part)[self._base + start : self._base + self._ends[last - 1]]
        return start, self._ends[first:last], blob

    def release(self) -> None:
        """Releases the remaining messages, which return to their sender."""
        if self.left:
            self.sender.outcome(self.number, self.first, self.left, OutcomeCode.RELEASED, b"")
            self.first = self.count

    @property
    def _start(self) -> int:
        return self._ends[self.first - 1] if self.first else 0
