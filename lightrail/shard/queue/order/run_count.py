"""Run count: how many runs of one queue are in flight, counted from time to time."""

from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.values.counters import Counters

RENEWED_LOCK_BYTES: Final[int] = 100
"""Bytes of the note of a lock that was renewed, beside its run."""


def runs_of(consumer: Consumer) -> int:
    """The runs in flight at a consumer; renewed locks, each noted by itself, count by their memory."""
    return len(consumer.in_flight) + len(consumer.renewed) * RENEWED_LOCK_BYTES // limits.RUN_BYTES


class RunCount:
    """The number of runs in flight, about: it may differ by a fourth of the messages.

    A delivery adds one run at most, and so does a settlement, which may leave two parts of one. To count at
    each of them would cost more than to count all runs when many messages were delivered or settled.
    """

    __slots__ = ("_at", "_consumers", "_counters", "_runs", "tolerance")

    def __init__(self, consumers: Consumers, counters: Counters) -> None:
        self._consumers = consumers
        self._counters = counters
        self._at = 0
        self._runs = 0
        self.tolerance = -1
        """Deliveries and settlements after which the runs are counted again."""

    def of(self, messages: int) -> int:
        """The number of runs, if so many messages are in flight."""
        # Twice the deliveries minus the growth is the number of deliveries and settlements.
        at = 2 * self._counters.delivered - messages
        if not -self.tolerance <= at - self._at <= self.tolerance:
            self._at = at
            self._runs = sum(map(runs_of, self._consumers))
            self.tolerance = max(messages >> 2, len(self._consumers.by_id), limits.RUNS_UNCOUNTED_MAX)
        return min(self._runs, messages)

    def outdate(self) -> None:
        """Notes that runs were parted or joined otherwise: they are counted again."""
        self.tolerance = -1

    def came_otherwise(self, messages: int) -> None:
        """Notes messages in flight that were not delivered; otherwise they would count as settled."""
        self._at -= 2 * messages
