"""Joining: small batches at the tail of the ready line become one run when a backlog has built up."""

from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.merging import join_neighbours
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.order.special import Special

JOIN_BACKLOG_BYTES: Final[int] = 8 * limits.JOINED_BYTES
"""Ready bytes below which batches are not joined: they will be delivered before joining pays."""


class Joining:
    """How far the ready line of one queue is joined."""

    __slots__ = ("_joined_to", "bytes", "known_to")

    def __init__(self) -> None:
        self.bytes = 0
        """Number of bytes enqueued since the tail was last joined."""
        self._joined_to = 0
        self.known_to = 0
        """Messages with lower sequences are from earlier steps, so the engine has set their locations."""

    def begin(self, next_sequence: int) -> None:
        """Notes that all messages below a sequence were recovered or moved here."""
        self._joined_to = self.known_to = next_sequence

    def join(self, ready: Ready, special: Special | None) -> None:
        """Joins neighbours among the messages of earlier steps."""
        self.bytes = 0
        if ready.bytes < JOIN_BACKLOG_BYTES or (special is not None and special.singles):
            return
        start = ready.index(self._joined_to)
        self._joined_to = self.known_to
        stop = ready.index(self.known_to)
        # The last run of the former call may have room left.
        start = max(start - 1, ready.head)
        runs = ready.runs[start:stop]
        if special is not None:
            runs = [run for run in runs if run is not GONE]
        joined = join_neighbours(runs)
        if len(joined) < len(runs):
            ready.swap(start, stop, joined)
