"""Failures: messages for which a rule of a subscription has no result, as dead letters of its queue."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lightrail.amqp import dead_letters
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import DecodeError, Symbol, Timestamp, UInt
from lightrail.filters.message import MessageView
from lightrail.model.clock import wall_ms

FAILURE_CHARACTERS_MAX: Final[int] = 1_024
"""Characters of the description of a failure."""
REASON: Final = "filter-error"
"""The reason of such dead letters (docs/concepts.md)."""


def noted(message: bytes, queue: str, description: str) -> bytes:
    """The message with the annotations of a dead letter; unchanged if its sections are malformed."""
    notes = {
        Symbol("x-opt-dead-letter-source"): queue,
        dead_letters.REASON: Symbol(REASON),
        dead_letters.COUNT: UInt(dead_letters.count_of(dead_letters.history_of(message, 0)) + 1),
        Symbol("x-opt-dead-letter-time"): Timestamp(wall_ms()),
        Symbol("x-opt-dead-letter-description"): description[:FAILURE_CHARACTERS_MAX],
    }
    try:
        return with_annotations(message, notes)
    except (DecodeError, ValueError):
        return message


@dataclass(slots=True, eq=False, repr=False)
class Noting:
    """The action that makes a dead letter of a message for which a filter has no result."""

    error: Callable[[MessageView], str | None]
    """The error of the filter for a message."""
    queue: str
    weight: int

    def apply(self, message: bytes) -> bytes:
        """The dead letter."""
        return noted(message, self.queue, self.error(MessageView(message)) or "")
