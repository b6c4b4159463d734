"""Counters and gauges of one queue; counters never fall, and together they account for every message."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Counters:
    """Messages since the machine was made."""

    enqueued: int = 0
    duplicates: int = 0
    """Came with a message-id that had come before within the window; they never were in the queue."""
    dropped: int = 0
    """Came while the queue was full and were accepted and dropped; they never were in the queue."""
    refused: int = 0
    """Came and were refused: too many, or too large; they never were in the queue."""
    restored: int = 0
    """Came from recovery instead."""
    delivered: int = 0
    browsed: int = 0
    """Copies sent to browsers; not part of `delivered`."""
    redelivered: int = 0
    """Of the delivered ones, those that had been delivered before."""
    accepted: int = 0
    released: int = 0
    modified: int = 0
    rejected: int = 0
    expired: int = 0
    purged: int = 0
    replaced: int = 0
    """By a newer message with the same key."""
    cancelled: int = 0
    """While they were delayed."""
    locks_expired: int = 0
    """Came back because a timed lock ran out; counted as failed deliveries, not as `modified`."""
    unannotated: int = 0
    """Came back without annotations of their outcome, with which they would have been too large."""
    lost: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason; what was rejected or expired is counted here too where it went to the dead-letter queue."""
    discarded: dict[str, int] = field(default_factory=dict)
    """By reason: what would have been dead-lettered, but the queue has no dead-letter queue, and what gave
    way to newer messages."""

    @property
    def arrived(self) -> int:
        """Everything that ever was in the queue."""
        return self.enqueued + self.restored

    @property
    def left(self) -> int:
        """Everything that is not in the queue any more."""
        gone = sum(self.dead_lettered.values()) + sum(self.discarded.values())
        return self.accepted + self.purged + self.replaced + self.cancelled + self.lost + gone


class Gauges(NamedTuple):
    """How much is in a queue now."""

    ready: int
    in_flight: int
    bytes: int
    """Of all messages, in memory or on disk."""
    resident_bytes: int
    consumers: int
    delayed: int = 0
    """Messages that wait for their time; not part of `ready`, but of `bytes`."""
