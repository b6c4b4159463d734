"""Work: the budget of queues in one turn besides deliveries and settlements, counted and not timed."""

from typing import Final

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


class Work:
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


def unlimited() -> Work:
    """A budget without limits, for a machine without turns."""
    return Work(1 << 62, 1 << 62)
