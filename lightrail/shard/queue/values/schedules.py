"""Commands for messages that transactions schedule, and for schedules that they cancel (ADR 62).

A client gets the number of a message that it schedules in a transaction before the commit. So the number is
taken first, and the commit adds the message under it, among messages with higher numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lightrail.shard.queue.values.runs import Batch


class TakeNumbers(NamedTuple):
    """Takes the next sequences of the queue for messages that a transaction may add later."""

    wanted: int


class EnqueueUnder(NamedTuple):
    """Adds a batch under sequences that were taken, to the delayed messages of a queue with delays.

    Messages that are due already leave these at once, as others do when their time comes.
    """

    batch: Batch
    sequence: int
    """Of the first message."""


class Withhold(NamedTuple):
    """Keeps delayed messages delayed, also when they are due, until a prepared transaction is decided."""

    sequences: Sequence[int]


class Release(NamedTuple):
    """Ends Withhold: the messages that are still there become due as before, or are due now."""

    sequences: Sequence[int]


ScheduleCommand = TakeNumbers | EnqueueUnder | Withhold | Release
