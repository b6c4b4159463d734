"""Outgoing messages that wait for the session's window or for credit."""

from collections.abc import Sequence


class Backlog:
    """Outgoing messages of one send that wait for the session's window or for credit to come back."""

    __slots__ = (
        "base",
        "blob",
        "count",
        "delivery_id",
        "ends",
        "index",
        "message_format",
        "offset",
        "settled",
    )

    def __init__(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | memoryview,
        base: int,
        settled: bool,
        message_format: int,
    ) -> None:
        self.count = count
        self.ends = ends
        self.blob = blob
        self.base = base
        self.settled = settled
        self.message_format = message_format
        self.index = 0
        """The message that is sent next, or is being sent."""
        self.offset = 0
        """Bytes of it that have gone out in earlier frames."""
        self.delivery_id = 0
        """Its id, once its first frame has gone out."""

    def start_of(self, index: int) -> int:
        """Offset in the blob where message `index` begins."""
        return self.ends[index - 1] - self.base if index else 0
