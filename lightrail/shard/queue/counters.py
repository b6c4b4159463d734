"""Counters and gauges of one queue; counters never fall, and together they account for every message."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Counters:
    """Messages since the machine was made."""

    enqueued: int = 0
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
    lost: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason; what was rejected or expired is counted here too where it went to the dead-letter queue."""
    discarded: dict[str, int] = field(default_factory=dict)
    """By reason: what would have been dead-lettered, but the queue has no dead-letter queue."""

    @property
    def arrived(self) -> int:
        """Everything that ever was in the queue."""
        return self.enqueued + self.restored

    @property
    def left(self) -> int:
        """Everything that is not in the queue any more."""
        gone = sum(self.dead_lettered.values()) + sum(self.discarded.values())
        return self.accepted + self.purged + self.lost + gone


class Gauges(NamedTuple):
    """How much is in a queue now."""

    ready: int
    in_flight: int
    bytes: int
    """Of all messages, in memory or on disk."""
    resident_bytes: int
    consumers: int
