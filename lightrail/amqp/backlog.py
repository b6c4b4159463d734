"""Outgoing messages that wait for the session's window or for credit."""

from collections.abc import Sequence
from typing import Any


class Backlog:
    """Messages of one send."""

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
        "state",
    )

    def __init__(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | memoryview,
        base: int,
        settled: bool,
        message_format: int,
        state: Any = None,
    ) -> None:
        self.count = count
        self.ends = ends
        self.blob = blob
        self.base = base
        self.settled = settled
        self.message_format = message_format
        self.state = state
        """Of the transfers, as in a transaction; None for none."""
        self.index = 0
        """The message that is sent next, or of which some frames are sent."""
        self.offset = 0
        """Bytes of that message in earlier frames."""
        self.delivery_id = 0
        """Id of that message, once its first frame is written."""

    @property
    def is_passed_over(self) -> bool:
        """Whether it stands for the number of one message that is not sent."""
        return not self.ends

    def start_of(self, index: int) -> int:
        """Offset in the blob where message `index` begins."""
        return self.ends[index - 1] - self.base if index else 0
