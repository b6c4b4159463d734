"""Counters and gauges of one queue; counters never decrease, and their sums match the messages.

`TurnWork` is the budget of queues in one turn besides deliveries and settlements, counted and not timed.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

QUEUE_WORK_OF_A_TURN: Final[int] = 20_000
"""Units of about a microsecond that the queues of a shard may spend in one step on expiry, a lost frontend or
a new policy; the next step continues."""
DELIVERIES_OF_A_TURN: Final[int] = 20_000
"""Runs that the queues of a shard deliver in one step, 2.2 us each; the next step continues."""
NO_BOUND: Final = 1 << 62
RUN: Final = 2
"""Units of taking one run out of a line, or of putting it back: 2 microseconds, with what follows from it."""
LEAVING: Final = 8
"""Further units for a run that leaves the queue."""
LETTER: Final = 30
"""Further units for a run that becomes a dead letter."""
LETTER_MESSAGE: Final = 10
"""Units for each of its messages, which are annotated."""


class TurnWork:
    """A budget in units of about a microsecond, shared by all queues of a shard; and one of deliveries.

    A piece of work that has begun is finished, so a turn costs one piece more.
    """

    __slots__ = ("deliveries", "is_bounded", "left", "unsettled_runs_max")

    def __init__(self, left: int = QUEUE_WORK_OF_A_TURN, deliveries: int = DELIVERIES_OF_A_TURN) -> None:
        self.left = left
        self.deliveries = deliveries
        """Number of runs that may still be delivered, 2.2 microseconds each."""
        self.unsettled_runs_max = NO_BOUND
        """Unsettled runs from which a consumer gets no more."""
        self.is_bounded = False
        """Whether there is such a bound, because the shard is short of memory."""

    def begin(self) -> None:
        """Begins a turn."""
        self.left = QUEUE_WORK_OF_A_TURN
        self.deliveries = DELIVERIES_OF_A_TURN

    def bound(self, unsettled_runs_max: int) -> None:
        """Sets the unsettled runs from which a consumer gets no more; `NO_BOUND` for no bound."""
        self.unsettled_runs_max = unsettled_runs_max
        self.is_bounded = unsettled_runs_max < NO_BOUND


def unlimited() -> TurnWork:
    """A budget without limits, for a machine without turns."""
    return TurnWork(1 << 62, 1 << 62)


@dataclass(slots=True)
class Counters:
    """Numbers of messages since the machine was made."""

    enqueued: int = 0
    duplicates: int = 0
    """Dropped because of a message-id that had arrived within the window; they never were in the queue."""
    dropped: int = 0
    """Accepted and dropped because the queue was full; they never were in the queue."""
    refused: int = 0
    """Refused: too many, or too large; they never were in the queue."""
    restored: int = 0
    """Recovered from the store."""
    delivered: int = 0
    browsed: int = 0
    """Copies sent to browsers; not part of `delivered`."""
    redelivered: int = 0
    """Delivered messages that had been delivered before."""
    accepted: int = 0
    released: int = 0
    modified: int = 0
    rejected: int = 0
    expired: int = 0
    purged: int = 0
    replaced: int = 0
    """Replaced by a newer message with the same key."""
    cancelled: int = 0
    """Cancelled while they were delayed."""
    locks_expired: int = 0
    """Returned because a timed lock expired; counted as failed deliveries, not as `modified`."""
    unannotated: int = 0
    """Returned without the annotations of their outcome, which would have made them too large."""
    lost: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason; rejected and expired messages are counted here too, if they were dead-lettered."""
    discarded: dict[str, int] = field(default_factory=dict)
    """By reason: messages that would be dead letters if the queue had a dead-letter queue, and messages that
    were dropped for newer ones."""

    @property
    def arrived(self) -> int:
        """Number of messages that were ever in the queue."""
        return self.enqueued + self.restored

    @property
    def left(self) -> int:
        """Number of messages that have left the queue."""
        gone = sum(self.dead_lettered.values()) + sum(self.discarded.values())
        return self.accepted + self.purged + self.replaced + self.cancelled + self.lost + gone


class Gauges(NamedTuple):
    """The current numbers of messages of a queue."""

    ready: int
    in_flight: int
    bytes: int
    """Bytes of all messages, in memory or on disk."""
    resident_bytes: int
    consumers: int
    delayed: int = 0
    """Messages that wait for their time; not part of `ready`, but of `bytes`."""
    deferred: int = 0
    """Messages that are deferred and not locked; not part of `in_flight`, but of `bytes`."""
